"""What the ideas behind the design are worth, each measured alone on Postgres: `python -m bench.ideas`.

Coalescing: many beats in one statement, beside one statement each. Heap-only beats: the same with an index on the column that beats move,
as a timer would need that has no index of its own.
"""

import asyncio
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass

import asyncpg
import uvloop
from harness.postgres import execute

from app.store.beat import BEAT
from app.store.database import HOT_SESSION
from bench.service import QUEUE
from bench.tables import rows, store
from bench.world import World, serving, world

_LEASES = 20_000
_SECONDS = 5.0
_CALLERS = 8


@dataclass(frozen=True, slots=True)
class Cost:
    """What beats took: how many a second, and for each the microseconds of Postgres and the bytes of its log."""

    rate: float
    cpu_us: float
    wal_bytes: float


def main() -> None:
    with world() as bench:
        url = bench.database()
        with serving(url) as server:
            server.api.put_queue(QUEUE, beat_interval=0)
        store(url, in_progress=_LEASES, lease_s=200)  # so that each beat extends
        found = [("one beat per statement", _cost(bench, url, 1)), ("100 per statement", _cost(bench, url, 100))]
        execute(url, "create index lease_expiry on lease (shard, expires_at)")
        found.append(("100 per statement, with an index on expires_at", _cost(bench, url, 100)))
    print(f"{'':50}{'beats/s':>10}{'us of Postgres':>16}{'bytes of log':>14}")
    for name, cost in found:
        print(f"{name:50}{cost.rate:10.0f}{cost.cpu_us:16.1f}{cost.wal_bytes:14.0f}")


def _cost(bench: World, url: str, batch: int) -> Cost:
    leases = [row["message_id"] for row in rows(url, "select message_id from lease order by message_id")]
    batches = itertools.cycle([leases[first : first + batch] for first in range(0, _LEASES, batch)])
    execute(url, "vacuum analyze lease")
    execute(url, "checkpoint")
    uvloop.run(_beat_from_all(url, batches, 1.0))  # warms up
    cpu, log = bench.cpu(), _log_position(url)
    began = time.monotonic()
    beats = uvloop.run(_beat_from_all(url, batches, _SECONDS))
    rate = beats / (time.monotonic() - began)
    return Cost(rate, 1e6 * (bench.cpu() - cpu) / beats, (_log_position(url) - log) / beats)


def _log_position(url: str) -> int:
    (row,) = rows(url, "select (pg_current_wal_insert_lsn() - '0/0')::bigint as position")
    return int(row["position"])


async def _beat_from_all(url: str, batches: Iterator[list[int]], seconds: float) -> int:
    return sum(await asyncio.gather(*(_beat(url, batches, seconds) for _ in range(_CALLERS))))


async def _beat(url: str, batches: Iterator[list[int]], seconds: float) -> int:
    """Beat one batch after the other, and return how many leases that were."""
    sql = await asyncpg.connect(url, server_settings=HOT_SESSION)
    statement = await sql.prepare(BEAT)
    done = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        leases = next(batches)
        done += len(await statement.fetch(0, leases, [1] * len(leases), (), ()))
    await sql.close()
    return done


if __name__ == "__main__":
    main()
