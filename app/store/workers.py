"""Workers: who has shown itself, when, and what it holds. `app/store/registry.py` keeps each replica's part of it in memory."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from app.store.database import Pool, Row, fetch
from app.store.durations import seconds
from app.store.keys import key

CHANNEL = "leasebeat_workers"
"""Where replicas hear of workers that somebody has drained, let work again, or deleted: `changed` or `deleted`, and the worker's id."""

_STALE_S = 120
_FORGET_S = 86_400
_FORGET_DRAINING_S = 7 * 86_400
_BATCH = 1000
_FORGET_BATCH = 100

_FACTS = f"""
    worker.worker_id, worker.host, worker.version, worker.first_seen_at, worker.last_seen_at, worker.draining,
    greatest(0, {seconds("now() - worker.last_seen_at")}) as silent_for,
    worker.last_seen_at < now() - make_interval(secs => {_STALE_S}) as stale
"""

_NOTE = """
-- Locks: its own rows, in id order, so that two replicas never deadlock.
-- Index: worker_pkey. The update touches no indexed column, so it is heap-only; none is made within the interval, unless there is news.
insert into worker (worker_id, host, version)
select * from unnest($1::text[], $2::text[], $3::text[]) as sign(worker_id, host, version)
order by worker_id collate "C"
on conflict (worker_id) do update
set last_seen_at = now(), host = coalesce(excluded.host, worker.host), version = coalesce(excluded.version, worker.version)
where worker.last_seen_at <= now() - make_interval(secs => $4)
   or coalesce(excluded.host, worker.host) is distinct from worker.host
   or coalesce(excluded.version, worker.version) is distinct from worker.version
"""

_PAGE = f"""
-- Locks: none. Index: worker_pkey.
select {_FACTS}
from worker
where worker_id > $1
order by worker_id
limit $2
"""

_GET = f"""
-- Locks: none. Index: worker_pkey.
select {_FACTS} from worker where worker_id = $1
"""

_DRAINING = """
-- Locks: none. Index: worker_draining.
select worker_id from worker where draining
"""

_SET_DRAINING = f"""
-- Locks: the worker's row, and the notification queue's own, at commit. Index: worker_pkey.
with changed as (
    update worker set draining = $2 where worker_id = $1 returning *
)
select {_FACTS} from changed as worker cross join pg_notify('{CHANNEL}', 'changed ' || worker_id)
"""

_DELETE = f"""
-- Locks: the worker's row, and the notification queue's own, at commit. Index: worker_pkey.
with gone as (
    delete from worker where worker_id = $1 returning worker_id
)
select worker_id from gone cross join pg_notify('{CHANNEL}', 'deleted ' || worker_id)
"""

HOLDS = """
    select * from lease
    where lease.shard = queue.shard and lease.queue_id = queue.id and lease.worker_id = {worker_id} and lease.generation > 0
    offset 0  -- probed once per queue, never the other way round
"""

HOLDINGS = f"""
-- Locks: none. Index: queue_pkey; lease_of_worker, by one probe per queue.
select lease.shard, lease.message_id, lease.generation, now() as read_at
from queue
cross join lateral ({HOLDS.format(worker_id="$1")}) as lease
where lease.message_id > $2 and lease.granted_at <= coalesce($3, now())
order by lease.message_id
limit $4
"""

COUNT_HELD = f"""
-- Locks: none. Index: queue_pkey; lease_of_worker, by one probe per queue.
select count(*) as held from queue cross join lateral ({HOLDS.format(worker_id="$1")}) as lease
"""

FORGET_SILENT = f"""
-- Locks: the rows of the workers forgotten, skipping those in other hands.
-- Index: worker_pkey; queue_pkey and lease_of_worker, by one probe per queue and worker that has been silent for so long, in the collation
-- of that index: by another it could not be probed for a worker.
with silent as materialized (
    select worker_id
    from worker
    where last_seen_at < now() - make_interval(secs => case when draining then {_FORGET_DRAINING_S} else {_FORGET_S} end)
      and not exists (select from queue cross join lateral ({HOLDS.format(worker_id='worker.worker_id collate "default"')}) as lease)
    limit {_FORGET_BATCH}
    for update skip locked
)
delete from worker using silent where {key("worker.worker_id", "silent.worker_id")}
returning worker.worker_id
"""


@dataclass(frozen=True, slots=True)
class Sign:
    """A worker has shown itself. None is what it did not say."""

    worker_id: str
    host: str | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Holding:
    """A lease that a worker holds."""

    shard: int
    message_id: int
    generation: int


async def note(pool: Pool, interval: float, signs: Sequence[Sign]) -> list[None]:
    """Write down when workers were last seen, at most once per `interval` seconds, and what they newly say of themselves."""
    columns = [each.worker_id for each in signs], [each.host for each in signs], [each.version for each in signs]
    await fetch(pool, _NOTE, *columns, interval)
    return [None] * len(signs)


async def page(pool: Pool, after: str, limit: int) -> list[Row]:
    """Return up to `limit` workers by name, from the first after `after` on."""
    return await fetch(pool, _PAGE, after, limit)


async def get(pool: Pool, worker_id: str) -> Row | None:
    rows = await fetch(pool, _GET, worker_id)
    return rows[0] if rows else None


async def draining(pool: Pool) -> frozenset[str]:
    """Return the workers that are to stop taking work."""
    return frozenset(row["worker_id"] for row in await fetch(pool, _DRAINING))


async def set_draining(pool: Pool, worker_id: str, value: bool) -> Row | None:
    """Say whether a worker is to stop taking work, and return it, or None if there is none. Every replica is told."""
    rows = await fetch(pool, _SET_DRAINING, worker_id, value)
    return rows[0] if rows else None


async def delete(pool: Pool, worker_id: str) -> bool:
    """Take a worker out of the registry, and return whether it was there. Every replica is told."""
    return bool(await fetch(pool, _DELETE, worker_id))


async def holdings(pool: Pool, worker_id: str) -> AsyncIterator[list[Holding]]:
    """Walk the leases that a worker holds when this begins, in batches, by message id."""
    after, began_at = 0, None
    while rows := await fetch(pool, HOLDINGS, worker_id, after, began_at, _BATCH):
        began_at = began_at or rows[0]["read_at"]
        after = rows[-1]["message_id"]
        yield [Holding(row["shard"], row["message_id"], row["generation"]) for row in rows]


async def count_held(pool: Pool, worker_id: str) -> int:
    (row,) = await fetch(pool, COUNT_HELD, worker_id)
    held: int = row["held"]
    return held


async def forget_silent(pool: Pool) -> bool:
    """Forget a batch of workers without a lease, and a sign for a day (draining: a week). Returns whether there may be more."""
    return len(await fetch(pool, FORGET_SILENT)) == _FORGET_BATCH
