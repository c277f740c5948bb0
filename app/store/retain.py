"""Retain: let go of what has been kept long enough, in small batches: finished messages with their history, and answered send requests."""

from app.store.chores import Chore, mine
from app.store.database import Pool, fetch
from app.store.keys import shard_key

_BATCH = 1000

RETAIN = f"""
-- Locks: the chore's own, so that one replica at a time does it; finished messages, skipping those in other hands; their checkpoints.
-- Index: message_finished once per queue, up to the end of its retention; message_pkey, checkpoint_pkey.
with {mine(Chore.RETAIN)},
old as materialized (
    select kept.*
    from mine
    cross join queue
    cross join lateral (
        select shard, id
        from message
        where message.shard = mine.shard and message.queue_id = queue.id
          and message.finished_at < now() - make_interval(secs => queue.retention)
        order by finished_at
        limit $2
        for update skip locked
    ) as kept
    where queue.shard = mine.shard
    limit $2
),
forgotten as (
    delete from checkpoint using old where {shard_key("checkpoint.message_id", "old.id")}
),
gone as (
    delete from message using old where {shard_key("message.id", "old.id")}
)
select count(*) as gone from old
"""

FORGET = f"""
-- Locks: the chore's own, so that one replica at a time does it; requests more than a day old, skipping those in other hands.
-- Index: send_request_made stops at the first that is younger; send_request_pkey.
with {mine(Chore.FORGET)},
old as materialized (
    select request.*
    from mine
    cross join lateral (
        select shard, queue_id, key
        from send_request
        where send_request.shard = mine.shard and send_request.created_at < now() - interval '1 day' and send_request.key <> ''
        order by created_at
        limit $2
        for update skip locked
    ) as request
),
gone as (
    delete from send_request
    using old
    where {shard_key("send_request.queue_id, send_request.key", "old.queue_id, old.key")}
)
select count(*) as gone from old
"""


async def retain(pool: Pool, shard: int) -> bool:
    """Remove a batch of messages that were finished longer ago than their queue's retention. Returns whether there may be more."""
    return await _batch(pool, RETAIN, shard)


async def forget(pool: Pool, shard: int) -> bool:
    """Remove a batch of send requests whose Idempotency-Key has had its day. Returns whether there may be more."""
    return await _batch(pool, FORGET, shard)


async def _batch(pool: Pool, statement: str, shard: int) -> bool:
    (row,) = await fetch(pool, statement, shard, _BATCH)
    more: bool = row["gone"] >= _BATCH
    return more
