"""Purge: remove a queue's messages in given states, batch by batch, so that nobody waits for it."""

from collections.abc import AsyncGenerator, Collection

from app.store.batches import BATCH_ROWS
from app.store.database import Pool, fetch
from app.store.keys import shard_key
from app.store.states import in_state

NEWEST = f"""
-- Locks: none. Index: message_status, the last entry per state.
select coalesce(max(last.id), 0) as newest
from unnest($3::text[]) as wanted(status)
cross join lateral (
    select message.id
    from message
    where message.shard = $1 and message.queue_id = $2 and {in_state()}
    order by message.status desc, message.id desc
    limit 1
) as last
"""

PURGE = f"""
-- Locks: the messages seen, in id order.
-- Index: message_status, one range per state; message_pkey, checkpoint_pkey. What decides is the row as locked: one that has just been
-- leased stays.
with seen as materialized (
    select found.shard, found.id
    from unnest($3::text[]) as wanted(status)
    cross join lateral (
        select message.shard, message.id
        from message
        where message.shard = $1 and message.queue_id = $2 and {in_state("$4")} and message.id <= $5
        order by message.status, message.id
        limit {BATCH_ROWS}
    ) as found
    order by found.id
    limit {BATCH_ROWS}
),
doomed as materialized (
    select seen.shard, seen.id
    from seen
    cross join lateral (
        select from message
        where message.shard = seen.shard and message.id = seen.id and message.queue_id = $2 and message.status = any($3::text[])
        for update
    ) as message
),
forgotten as (
    delete from checkpoint using doomed where {shard_key("checkpoint.message_id", "doomed.id")}
),
removed as (
    delete from message using doomed where {shard_key("message.id", "doomed.id")} returning message.id
)
select
    (select count(*) from seen) as seen,
    (select max(id) from seen) as last,
    count(*) as removed
from removed
"""


async def purge(pool: Pool, shard: int, queue_id: int, statuses: Collection[str]) -> AsyncGenerator[int]:
    """Remove the messages in these states that are there now. Yields how many, batch by batch. Each message is looked at once."""
    (row,) = await fetch(pool, NEWEST, shard, queue_id, statuses)
    newest, last, seen = row["newest"], 0, BATCH_ROWS
    while seen == BATCH_ROWS:
        (row,) = await fetch(pool, PURGE, shard, queue_id, statuses, last, newest)
        last, seen = row["last"], row["seen"]
        yield row["removed"]
