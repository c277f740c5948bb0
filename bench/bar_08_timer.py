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
from bench.bars import Bar, Scale
from bench.clients import Connection, in_a_process
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

_TIMER = "select pid from pg_stat_activity where query like '%recheck%' and pid <> pg_backend_pid()"


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
            timer, both = _timer_cpu(url), bench.cpu() + cpu_seconds(server.process.pid)
            rate = in_a_process(_beat_all, server.url, receipts, leases / _BEAT_EVERY_S, seconds, timeout=seconds + 120)
            timer, both = _timer_cpu(url) - timer, bench.cpu() + cpu_seconds(server.process.pid) - both
        assert number(url, "select count(*) from lease") == leases, "leases were lost"
    note = f"{leases:,} leases, {rate:.0f} beats/s, {_SHARE:.0%} of the full load; {timer:.1f} s of {both:.0f} s"
    return [Bar(8, "timer's statements, share of CPU", 100 * timer / both, 5, at_most=True, unit="%", note=note)]


def _timer_cpu(url: str) -> float:
    return sum(cpu_seconds(row["pid"]) for row in rows(url, _TIMER))


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
