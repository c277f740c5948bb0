"""Bar 8: a million live leases, each extended every 60 s of its 300: the timer's sessions of Postgres, as a share of what service and
Postgres use.

This machine carries a part of that load, so time is stretched: leases are longer and beats rarer by the same factor, and beats and looks
of the timer keep their proportion. Beats come as workers with many leases send them, 100 to a request.
"""

import asyncio
import time

import uvloop
from harness.postgres import number

from app.leases.receipts import Receipts
from app.store.due import NEXT_DUE
from app.store.promote import PROMOTE
from app.store.recheck import RECHECK
from app.store.reclaim import RECLAIM
from bench.bars import Bar, Scale, paced
from bench.clients import in_a_process
from bench.http import Connection
from bench.service import QUEUE
from bench.tables import rows, store
from bench.world import cpu_seconds, serving, world

_LEASES = 1_000_000
_SHARE = 0.25
_LEASE_S, _BEAT_EVERY_S = 300 / _SHARE, 60 / _SHARE
_WARM_UP_S = 30
"""What came due while the tables were filled is looked at before it counts."""
_SECONDS = 120
_BATCH = 100
_CALLERS = 8

_SESSIONS = "select pid, query from pg_stat_activity where datname = current_database()"
_LOOK_S, _LOOKS = 0.05, 60
_TIMERS = tuple(statement[:200] for statement in (RECHECK, RECLAIM, PROMOTE, NEXT_DUE))
"""How the statements of the timer begin, as Postgres shows them for the sessions that ran them last."""


def measure(scale: Scale) -> list[Bar]:
    leases, seconds = int(_LEASES * scale.size), max(10.0, _SECONDS * scale.size)
    with world() as bench:
        url = bench.database()
        with serving(url) as server:
            server.api.put_queue(QUEUE, visibility_timeout=_LEASE_S, extension=_LEASE_S, beat_interval=_BEAT_EVERY_S / 2)
        store(url, in_progress=leases, lease_s=_LEASE_S)
        receipts = _receipts(url)
        with serving(url) as server:
            in_a_process(_beat_all, server.url, receipts, leases / _BEAT_EVERY_S, _WARM_UP_S, timeout=_WARM_UP_S + 120)
            receipts = receipts[(beaten := int(leases / _BEAT_EVERY_S * _WARM_UP_S)) :] + receipts[:beaten]
            sessions = _timer_sessions(url)
            timer, both = _cpu(sessions), bench.cpu() + cpu_seconds(server.process.pid)
            rate = in_a_process(_beat_all, server.url, receipts, leases / _BEAT_EVERY_S, seconds, timeout=seconds + 120)
            timer, both = _cpu(sessions) - timer, bench.cpu() + cpu_seconds(server.process.pid) - both
            assert _timer_sessions(url) == sessions, "the timer has changed its sessions"
        assert number(url, "select count(*) from lease") == leases, "leases were lost"
    assert 0 < timer < both, f"the timer used {timer:.2f} s of {both:.2f} s"
    note = f"{leases:,} leases, {_SHARE:.0%} of the full load; {timer:.1f} s of {both:.0f} s"
    bar = Bar(8, "timer's statements, share of CPU", 100 * timer / both, 5, at_most=True, unit="%", note=note)
    return [paced(bar, rate, leases / _BEAT_EVERY_S)]


def _timer_sessions(url: str) -> set[int]:
    """Return the process ids of the timer's sessions, looking for a while: between its statements they also run others."""
    found: set[int] = set()
    for _ in range(_LOOKS):
        found |= {row["pid"] for row in rows(url, _SESSIONS) if row["query"].startswith(_TIMERS)}
        time.sleep(_LOOK_S)
    assert found, "no session of the timer was seen"
    return found


def _cpu(sessions: set[int]) -> float:
    """Return the CPU seconds of sessions, all of which must be there."""
    return sum(map(cpu_seconds, sessions))


def _receipts(url: str) -> list[str]:
    """Issue the receipts of all leases, as the service has it done by claims."""
    (secret,) = rows(url, "select value from secret where name = 'receipt'")
    receipts = Receipts(secret["value"])
    return [receipts.issue(0, row["message_id"], 1) for row in rows(url, "select message_id from lease order by expires_at")]


def _beat_all(url: str, receipts: list[str], rate: float, seconds: float) -> float:
    """Beat for all leases in turn, this many a second. Returns how many a second it were."""
    return uvloop.run(_beats(url, receipts, rate, seconds))


async def _beats(url: str, receipts: list[str], rate: float, seconds: float) -> float:
    started = time.monotonic()

    async def caller(number: int) -> int:
        connection = await Connection.open(url)
        done = 0
        for first in range(number * _BATCH, int(rate * seconds), _CALLERS * _BATCH):
            await asyncio.sleep(started + first / rate - time.monotonic())
            batch = [receipts[each % len(receipts)] for each in range(first, first + _BATCH)]
            answer = await connection.post("/beat", {"leases": [{"receipt": each} for each in batch]})
            assert all(each["status"] == "extended" for each in answer["results"]), answer
            done += _BATCH
        connection.close()
        return done

    done = await asyncio.gather(*map(caller, range(_CALLERS)))
    return sum(done) / (time.monotonic() - started)
