"""Remove: take the messages of deleted queues away, in small batches, so that no other queue waits for it."""

from app.store.database import Pool, fetch

REMOVE = """
-- Locks: the deleted queue's own row, skipping one that another replica works on; its messages, which only a late report may use.
-- Index: message_status, message_pkey, checkpoint_pkey.
with gone as materialized (
    select id, shard from deleted_queue order by id limit 1 for update skip locked
),
doomed as materialized (
    select message.shard, message.id
    from gone
    cross join lateral (
        select shard, id from message
        where message.shard = gone.shard and message.queue_id = gone.id and message.status <> ''
        limit $1
        for update
    ) as message
),
forgotten as (
    delete from checkpoint using doomed where checkpoint.shard = doomed.shard and checkpoint.message_id = doomed.id
),
removed as (
    delete from message using doomed where message.shard = doomed.shard and message.id = doomed.id
),
finished as (
    delete from deleted_queue using gone where deleted_queue.id = gone.id and not exists (select from doomed)
)
select exists (select from gone) as more
"""

_BATCH = 1000


async def remove(pool: Pool) -> bool:
    """Remove one batch. Returns whether there may be more."""
    (row,) = await fetch(pool, REMOVE, _BATCH)
    more: bool = row["more"]
    return more
