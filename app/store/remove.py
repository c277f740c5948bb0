"""Remove: take the messages of deleted queues away, in small batches, so that no other queue waits for it."""

from app.store.database import Pool, fetch
from app.store.keys import key, shard_key

REMOVE = f"""
-- Locks: the deleted queue's own row, skipping one that another replica works on; its leases, then its messages, each in id order.
-- Index: lease_of_worker, lease_pkey, message_status, message_pkey, checkpoint_pkey.
with gone as materialized (
    select id, shard from deleted_queue order by id limit 1 for update skip locked
),
held as materialized (
    select lease.shard, lease.message_id
    from gone
    cross join lateral (
        select shard, message_id from lease where lease.shard = gone.shard and lease.queue_id = gone.id and lease.generation > 0
        order by lease.worker_id, lease.claim_id, lease.claim_slot  -- as only the one index has it
        limit $1
    ) as lease
    order by lease.message_id
),
ended as materialized (
    select held.*
    from held
    cross join lateral (
        select from lease where lease.shard = held.shard and lease.message_id = held.message_id for update
    ) as lease
),
released as (
    delete from lease using ended where {shard_key("lease.message_id", "ended.message_id")}
),
found as materialized (
    select message.shard, message.id, message.queue_id
    from gone
    cross join lateral (
        select shard, id, queue_id
        from message
        where message.shard = gone.shard and message.queue_id = gone.id and message.status <> '' and not exists (select from ended)
        order by message.status, message.id  -- as only the one index has it
        limit $1
    ) as message
    order by message.id
),
doomed as materialized (
    select found.*
    from found
    cross join lateral (
        select from message
        where message.shard = found.shard and message.id = found.id and message.queue_id = found.queue_id  -- still, as locked
        for update
    ) as message
),
forgotten as (
    delete from checkpoint using doomed where {shard_key("checkpoint.message_id", "doomed.id")}
),
removed as (
    delete from message using doomed where {shard_key("message.id", "doomed.id")}
),
finished as (
    delete from deleted_queue using gone
    where {key("deleted_queue.id", "gone.id")} and not exists (select from held) and not exists (select from found)
)
select exists (select from gone) as more
"""

_BATCH = 1000


async def remove(pool: Pool) -> bool:
    """Remove one batch. Returns whether there may be more."""
    (row,) = await fetch(pool, REMOVE, _BATCH)
    more: bool = row["more"]
    return more
