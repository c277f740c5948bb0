"""Purge: remove a queue's messages in given states, batch by batch, so that nobody waits for it."""

from collections.abc import AsyncGenerator, Collection

from app.store.batches import BATCH_ROWS
from app.store.database import Pool, fetch
from app.store.models import STATUSES

_NEWEST = """
-- Locks: none. Index: message_status, the last entry per state.
select coalesce(max(last.id), 0) as newest
from unnest($3::text[]) as wanted(status)
cross join lateral (
    select message.id
    from message
    where message.shard = $1 and message.queue_id = $2 and message.status = wanted.status and message.status <> ''
    order by message.id desc
    limit 1
) as last
"""

PURGE = """
-- Locks: the messages picked, in id order within a state, skipping those in other hands.
-- Index: message_status, one range per state; message_pkey, checkpoint_pkey. What decides is the row as locked: one that has just been
-- leased stays.
with doomed as materialized (
    select picked.shard, picked.id
    from unnest($3::text[]) as wanted(status)
    cross join lateral (
        select message.shard, message.id
        from message
        where message.shard = $1 and message.queue_id = $2 and message.status = wanted.status and message.status <> '' and message.id <= $4
        order by message.id
        limit $5
        for update skip locked
    ) as picked
    limit $5
),
forgotten as (
    delete from checkpoint using doomed where checkpoint.shard = doomed.shard and checkpoint.message_id = doomed.id
),
removed as (
    delete from message using doomed where message.shard = doomed.shard and message.id = doomed.id returning message.id
)
select count(*) as removed from removed
"""


async def purge(pool: Pool, shard: int, queue_id: int, statuses: Collection[str]) -> AsyncGenerator[int]:
    """Remove the messages in these states that are there now. Yields how many, batch by batch."""
    # Scheduled ones come first: those that become ready meanwhile are then met as pending.
    wanted = [status for status in STATUSES if status in statuses]
    (row,) = await fetch(pool, _NEWEST, shard, queue_id, wanted)
    newest, removed = row["newest"], BATCH_ROWS
    while removed == BATCH_ROWS:
        (row,) = await fetch(pool, PURGE, shard, queue_id, wanted, newest, BATCH_ROWS)
        removed = row["removed"]
        yield removed
