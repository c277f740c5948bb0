"""What operators read: messages, their history, and active leases. Never a receipt."""

from collections.abc import Sequence
from datetime import datetime

from app.store.database import Database, Row, fetch
from app.store.durations import seconds
from app.store.faults import answering
from app.store.pick import ANSWER_BYTES
from app.store.recheck import BLOCK
from app.store.states import in_state
from app.store.workers import HOLDS

_PREFETCHED = 16

_MESSAGE_FACTS = """
    message.id, queue.name as queue, message.status, message.body, message.headers, message.priority, message.fairness_key,
    message.work_type, message.task_id, message.created_at, message.available_at, message.finished_at, message.generation,
    message.attempt_count, coalesce(message.max_attempts, queue.max_attempts) as max_attempts,
    message.nacked_count as failed_count, message.expired_count, message.released_count, message.unconfirmed_count,
    coalesce(lease.progress, message.progress) as progress, coalesce(lease.detail, message.detail) as detail,
    message.output, message.error, message.reason, message.failed_workers, message.source_queue, message.dedup_key,
    case when lease.expires_at > now() then lease.granted_at end as leased_at, message.started_at
"""

_LEASE_OF_MESSAGE = """
    select * from lease where lease.shard = message.shard and lease.message_id = message.id
    offset 0  -- looked up once per message, never the other way round
"""

_MESSAGE = f"""
-- Locks: none. Index: message_pkey, once per shard.
select {_MESSAGE_FACTS}
from message
join queue on queue.id = message.queue_id
left join lateral ({_LEASE_OF_MESSAGE}) as lease on true
where message.shard = any($1::smallint[]) and message.id = $2
"""

MESSAGES = f"""
-- Locks: none. Index: message_status, one range per status asked for.
select {_MESSAGE_FACTS}
from (
    select found.*
    from unnest($3::text[]) as wanted(status)
    cross join lateral (
        select message.*
        from message
        where message.shard = $1 and message.queue_id = $2 and {in_state("$4")}
        order by message.status, message.id
        limit $5
    ) as found
    order by found.id
    limit $5
) as message
join queue on queue.id = message.queue_id
left join lateral ({_LEASE_OF_MESSAGE}) as lease on true
order by message.id
"""

_CHECKPOINTS = """
-- Locks: none. Index: checkpoint_pkey. What ended an attempt is its reason; to people, all such entries are of one kind (seed 003).
select
    case when kind in ('nacked', 'lease_expired') then 'error_boundary' else kind end as kind,
    case when kind in ('nacked', 'lease_expired') then kind end as reason, generation, created_at, facts
from checkpoint
where shard = any($1::smallint[]) and message_id = $2
order by generation desc, created_at desc
limit 200
"""

_LEASE_FACTS = f"""
    lease.message_id, queue.name as queue, lease.worker_id, lease.generation, lease.granted_at as acquired_at, lease.expires_at,
    {seconds("lease.expires_at - now()")} as expires_in, lease.expires_at <= now() as expired,
    lease.beat_at as last_beat_at, {seconds("now() - coalesce(lease.beat_at, lease.granted_at)")} as since_beat,
    greatest(0, {seconds("now() - lease.expires_at")}) as overdue, lease.progress, lease.detail
"""

_LEASES = f"""
-- Locks: none. Index: lease_pkey. Walks active leases until the page is full.
select {_LEASE_FACTS}
from lease
join queue on queue.id = lease.queue_id
where lease.shard = any($1::smallint[]) and lease.message_id > $2
  and ($3::bigint is null or lease.queue_id = $3)
  and ($4::bool is null or (lease.expires_at <= now()) = $4)
order by lease.message_id
limit $5
"""

_LEASES_OF_WORKER = f"""
-- Locks: none. Index: lease_of_worker, by one probe per queue.
select {_LEASE_FACTS}
from queue
cross join lateral ({HOLDS.format(worker_id="$6")}) as lease
where lease.shard = any($1::smallint[]) and lease.message_id > $2
  and ($3::bigint is null or queue.id = $3)
  and ($4::bool is null or (lease.expires_at <= now()) = $4)
order by lease.message_id
limit $5
"""

OVERDUE = f"""
-- Locks: none. Index: lease_due and recheck_due, up to now: a lease that has run out is due for a look, or its block is; lease_pkey.
select {_LEASE_FACTS}
from (
    select shard, message_id, generation from lease where shard = any($1::smallint[]) and check_at <= now() and generation > 0
    union
    select lease.shard, message_id, generation
    from recheck
    join lease on lease.shard = recheck.shard and lease.message_id >= block * {BLOCK} and lease.message_id < (block + 1) * {BLOCK}
    where recheck.shard = any($1::smallint[]) and recheck.check_at <= now() and block >= 0
) as due
join lease on lease.shard = due.shard and lease.message_id = due.message_id and lease.generation = due.generation
join queue on queue.id = lease.queue_id
where lease.expires_at <= now()
  and ($2::bigint is null or lease.queue_id = $2)
  and ($3::text is null or lease.worker_id = $3)
order by lease.expires_at, lease.message_id
limit $4
"""

_MOMENT = """
-- Locks: none. What now() is to all statements of a transaction.
select now()
"""


class Reads:
    """Reads for people. They have a pool of their own, so that a slow one delays no worker."""

    def __init__(self, database: Database, shards: int) -> None:
        self._pool = database.reads
        self._shards = list(range(shards))

    async def message(self, message_id: int) -> Row | None:
        rows = await fetch(self._pool, _MESSAGE, self._shards, message_id)
        return rows[0] if rows else None

    async def messages(self, shard: int, queue_id: int, statuses: Sequence[str], after: int, limit: int) -> tuple[list[Row], bool]:
        """Return messages in one of these states, oldest first, from the first after the id `after` on, and whether there are more.

        There are up to `limit`, or of large ones as many as one page holds: no more than these are read.
        """
        rows: list[Row] = []
        size = 0
        with answering():
            async with self._pool.acquire() as connection, connection.transaction(readonly=True):
                arguments = (shard, queue_id, statuses, after, limit + 1)
                async for row in connection.cursor(MESSAGES, *arguments, prefetch=_PREFETCHED):
                    if len(rows) == limit or size >= ANSWER_BYTES:
                        return rows, True
                    rows.append(row)
                    size += sum(len(row[name] or "") for name in ("body", "headers", "output"))
        return rows, False

    async def checkpoints(self, message_id: int) -> list[Row]:
        """Return a message's history, newest first."""
        return await fetch(self._pool, _CHECKPOINTS, self._shards, message_id)

    async def leases(
        self, *, queue_id: int | None, worker_id: str | None, overdue: bool | None, after: int, limit: int
    ) -> tuple[datetime, list[Row]]:
        """Return the moment of the read and up to `limit` active leases by message id, from the first after `after` on."""
        if worker_id is None:
            return await self._as_of(_LEASES, self._shards, after, queue_id, overdue, limit)
        return await self._as_of(_LEASES_OF_WORKER, self._shards, after, queue_id, overdue, limit, worker_id)

    async def overdue_leases(self, *, queue_id: int | None, worker_id: str | None, limit: int) -> tuple[datetime, list[Row]]:
        """Return the moment of the read and up to `limit` leases that have run out, the longest overdue first."""
        return await self._as_of(OVERDUE, self._shards, queue_id, worker_id, limit)

    async def _as_of(self, statement: str, *arguments: object) -> tuple[datetime, list[Row]]:
        with answering():
            async with self._pool.acquire() as connection, connection.transaction(readonly=True):
                return await connection.fetchval(_MOMENT), await connection.fetch(statement, *arguments)
