"""Reclaim: end the leases that ran out, and put their messages back or give them up (design rules 8 and 9; seeds 003 and 004)."""

from collections.abc import Collection
from dataclasses import dataclass

from app.store.database import Pool, Row, fetch
from app.store.settle import ATTEMPT_FACTS, KEEP_REPORT, LAST_ATTEMPT, counted

MAX_UNCONFIRMED = 20
"""Deliveries that nobody confirmed, after which a message is given up: nothing that takes it ever answers for it."""

_GIVEN_UP = f"case when ended.unconfirmed then message.unconfirmed_count >= {MAX_UNCONFIRMED - 1} else {LAST_ATTEMPT} end"
_RAN_OUT = "(not ended.unconfirmed)::int"
_UNCONFIRMED = "ended.unconfirmed::int"

RECLAIM = f"""
-- Locks: the leases due for a look, earliest first, skipping those that a beat or a settle has in hand; their messages.
-- Index: lease_check stops at the first that is not due; lease_pkey, message_pkey, queue_pkey, checkpoint_pkey.
-- A lease that was extended has its next look moved to its expiry; only one that ran out ends. What decides is the row as locked.
with due as materialized (
    select shard, message_id, expires_at
    from lease
    where shard = $1 and check_at <= now() and message_id <> all($3::bigint[])
    order by check_at
    limit $2
    for update skip locked
),
moved as (
    update lease set check_at = due.expires_at
    from due
    where due.expires_at > now() and lease.shard = due.shard and lease.message_id = due.message_id
),
ended as (
    delete from lease
    using due
    where due.expires_at <= now() and lease.shard = due.shard and lease.message_id = due.message_id
    returning lease.*, lease.confirm_timeout is not null as unconfirmed
),
returned as (
    update message
    set status = case when {_GIVEN_UP} then 'failed' else 'pending' end,
        finished_at = case when {_GIVEN_UP} then now() end,
        available_at = now(),
        ended_by = case when ended.unconfirmed then 'unconfirmed' else 'expired' end,
        error = case
            when ended.unconfirmed and {_GIVEN_UP} then 'Never confirmed'
            when ended.unconfirmed then message.error
            when {_GIVEN_UP} then 'Max retries exceeded'
            else format('Lease expired - retry %s/%s', message.attempt_count + 1, coalesce(message.max_attempts, queue.max_attempts))
        end,
        {counted("attempt_count", _RAN_OUT)}, {counted("expired_count", _RAN_OUT)}, {counted("unconfirmed_count", _UNCONFIRMED)},
        {KEEP_REPORT}
    from ended
    join queue on queue.id = ended.queue_id
    where message.shard = ended.shard and message.id = ended.message_id and message.generation = ended.generation
    returning ended.*, message.status, message.attempt_count,
              coalesce(message.max_attempts, queue.max_attempts) as max_attempts
),
noted as (
    insert into checkpoint (shard, message_id, generation, kind, facts)
    select shard, message_id, generation, case when unconfirmed then 'unconfirmed' else 'lease_expired' end,
           json_build_object('error', case when unconfirmed then 'Delivery was not confirmed' else 'Lease expired' end, {ATTEMPT_FACTS})
    from returned
    on conflict do nothing
    returning kind
)
select
    (select count(*) from due) as looked_at,
    (select count(*) from noted) as noted,
    count(*) as expired,
    count(*) filter (where status = 'failed') as given_up,
    coalesce(array_agg(distinct queue_id) filter (where status <> 'failed'), array[]::bigint[]) as ready_queues,
    coalesce(max(extract(epoch from now() - expires_at))::float8, 0) as lag
from returned
"""  # noqa: S608 - constant fragments

PROMOTE = """
-- Locks: the delayed messages that are due, earliest first, skipping those in other hands.
-- Index: message_due stops at the first that is not due; message_pkey.
with due as materialized (
    select shard, id
    from message
    where shard = $1 and status = 'scheduled' and available_at <= now() and id <> all($3::bigint[])
    order by available_at
    limit $2
    for update skip locked
),
promoted as (
    update message set status = 'pending'
    from due
    where message.shard = due.shard and message.id = due.id
    returning message.queue_id
)
select count(*) as promoted, coalesce(array_agg(distinct queue_id), array[]::bigint[]) as ready_queues from promoted
"""

_FIRST_LEASE = """
-- Locks: none that lasts. Index: lease_check.
select message_id as id
from lease
where shard = $1 and check_at <= now() and message_id <> all($2::bigint[])
order by check_at
limit 1
for update skip locked
"""

_FIRST_DELAYED = """
-- Locks: none that lasts. Index: message_due.
select id
from message
where shard = $1 and status = 'scheduled' and available_at <= now() and id <> all($2::bigint[])
order by available_at
limit 1
for update skip locked
"""

NEXT_DUE = """
-- Locks: none. Index: the first entries of lease_check and message_due.
select extract(epoch from least(
    (select min(check_at) from lease where shard = $1 and message_id <> all($2::bigint[])),
    (select min(available_at) from message where shard = $1 and status = 'scheduled' and id <> all($2::bigint[]))
) - now())::float8 as seconds
"""


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """What one pass did.

    `noted` is how many checkpoints it wrote; `lag` is the longest time, in seconds, that one of these leases had been over.
    """

    looked_at: int
    noted: int
    expired: int
    given_up: int
    ready_queues: list[int]
    lag: float


@dataclass(frozen=True, slots=True)
class Promoted:
    """What one pass did with delayed messages."""

    promoted: int
    ready_queues: list[int]


async def reclaim(pool: Pool, shard: int, limit: int, aside: Collection[int]) -> Reclaimed:
    """Look at up to `limit` leases that are due for a look, and end those that ran out. Messages set `aside` are left alone."""
    (row,) = await fetch(pool, RECLAIM, shard, limit, aside)
    return Reclaimed(**row)


async def promote(pool: Pool, shard: int, limit: int, aside: Collection[int]) -> Promoted:
    """Make up to `limit` delayed messages ready whose time has come. Messages set `aside` are left alone."""
    (row,) = await fetch(pool, PROMOTE, shard, limit, aside)
    return Promoted(**row)


async def first_lease(pool: Pool, shard: int, aside: Collection[int]) -> int | None:
    """Return the message of the lease that a batch of one would look at."""
    return _id(await fetch(pool, _FIRST_LEASE, shard, aside))


async def first_delayed(pool: Pool, shard: int, aside: Collection[int]) -> int | None:
    """Return the delayed message that a batch of one would promote."""
    return _id(await fetch(pool, _FIRST_DELAYED, shard, aside))


async def next_due(pool: Pool, shard: int, aside: Collection[int]) -> float | None:
    """Return the seconds until the next lease or delayed message is due, negative if it is overdue, None if there is none."""
    (row,) = await fetch(pool, NEXT_DUE, shard, aside)
    seconds: float | None = row["seconds"]
    return seconds


def _id(rows: list[Row]) -> int | None:
    return rows[0]["id"] if rows else None
