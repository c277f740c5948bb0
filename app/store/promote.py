"""Promote: make delayed messages ready when their time has come."""

from collections.abc import Collection
from dataclasses import dataclass

from app.store.database import Pool, fetch
from app.store.due import first_id, since
from app.store.keys import shard_key
from app.store.ready import Ready, first_ready_of

PROMOTE = f"""
-- Locks: the delayed messages that are due, earliest first, skipping those in other hands.
-- Index: message_due stops at the first that is not due; message_pkey.
with due as materialized (
    select shard, id
    from message
    where shard = $1 and status = 'scheduled' and available_at > {since("$4")} and available_at <= now() and id <> all($3::bigint[])
    order by available_at
    limit $2
    for update skip locked
),
promoted as (
    update message set status = 'pending'
    from due
    where {shard_key("message.id", "due.id")}
    returning message.queue_id, message.id, message.fairness_key, message.priority
)
select count(*) as promoted, {first_ready_of("promoted", queue="queue_id", message="id")} as ready from promoted
"""

_FIRST = f"""
-- Locks: none that lasts. Index: message_due.
select id
from message
where shard = $1 and status = 'scheduled' and available_at > {since("$3")} and available_at <= now() and id <> all($2::bigint[])
order by available_at
limit 1
for update skip locked
"""


@dataclass(frozen=True, slots=True)
class Promoted:
    """What one batch did. `ready` are the first of these messages."""

    promoted: int
    ready: list[Ready]


async def promote(pool: Pool, shard: int, limit: int, aside: Collection[int], reach: float | None) -> Promoted:
    """Make up to `limit` delayed messages ready whose time has come. Messages set `aside` are left alone."""
    (row,) = await fetch(pool, PROMOTE, shard, limit, aside, reach)
    return Promoted(**row)


async def first_delayed(pool: Pool, shard: int, aside: Collection[int], reach: float | None) -> int | None:
    """Return the delayed message that a batch of one would promote."""
    return first_id(await fetch(pool, _FIRST, shard, aside, reach))
