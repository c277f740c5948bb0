"""Redrive: send dead letters back to where they came from, or elsewhere, with a fresh budget and all else as it was (scar 51)."""

from collections.abc import AsyncGenerator, Callable

from app.store.batches import BATCH_ROWS
from app.store.database import Pool, fetch
from app.store.keys import shard_key
from app.store.queues import QueueRef
from app.store.ready import QueueFirsts, first_ready_of, firsts_of
from app.store.states import in_state

# Where a message goes: to the queue named in the call; else to where it came from; one that failed here is tried again here.
_DESTINATION = "coalesce($5, message.source_queue, case message.status when 'failed' then $6 end)"

REDRIVE = f"""
-- Locks: the queues sent to, in id order and shared, so that none is deleted under its messages; the messages, in id order, and no more
-- than are wanted.
-- Index: message_status, one range per state; message_pkey, queue_name_key. What decides is the row as locked: one that has just been
-- leased stays, and so does one whose queue is gone.
with seen as materialized (
    select found.shard, found.id
    from unnest(array['scheduled', 'pending', 'failed']) as wanted(status)
    cross join lateral (
        select message.shard, message.id
        from message
        where message.shard = $1 and message.queue_id = $2 and {in_state("$3")}
        order by message.status, message.id
        limit {BATCH_ROWS}
    ) as found
    order by found.id
    limit {BATCH_ROWS}
),
named as materialized (
    select distinct {_DESTINATION} as name
    from seen
    join message on {shard_key("message.id", "seen.id")}
),
open_queue as materialized (
    select id
    from queue
    where name = any(array(select name from named)) and shard = $1
    order by id + 0  -- sorted: to walk all queues in this order would cost more
    for key share
),
held as materialized (
    select message.shard, message.id, destination.id as queue_id
    from seen
    cross join lateral (
        select message.shard, message.id, {_DESTINATION} as destination
        from message
        where cardinality(array(select id from open_queue)) > 0  -- all are locked before any message
          and message.shard = seen.shard and message.id = seen.id
          and message.queue_id = $2 and message.status not in ('in_progress', 'completed', 'cancelled')
        for update
    ) as message
    cross join lateral (
        select id from queue where name = message.destination
        offset 0  -- looked up once per message, never the other way round
    ) as destination
    where destination.id = any(array(select id from open_queue))
    limit $4
),
moved as (
    update message
    set queue_id = held.queue_id, status = 'pending', available_at = now(), finished_at = null, source_queue = null, reason = null,
        attempt_count = 0, attempts_before = 0, unconfirmed_before = message.unconfirmed_count
    from held
    where {shard_key("message.id", "held.id")}
    returning message.queue_id, message.id, message.fairness_key, message.priority
)
select
    (select count(*) from seen) as seen,
    (select max(id) from seen) as last,
    count(*) as redriven,
    {first_ready_of("moved", queue="queue_id", message="id")} as ready
from moved
"""


async def redrive(
    pool: Pool, queue: QueueRef, to: str | None, limit: int | None, on_ready: Callable[[QueueFirsts], None]
) -> AsyncGenerator[int]:
    """Send up to `limit` messages of the queue back, oldest first. Yields how many, batch by batch.

    `on_ready` is told the first of these messages.

    Each message is looked at once: one that comes back while this goes on is not sent on again.
    """
    last, seen = 0, BATCH_ROWS
    while seen == BATCH_ROWS and limit != 0:
        most = BATCH_ROWS if limit is None else min(limit, BATCH_ROWS)
        (row,) = await fetch(pool, REDRIVE, queue.shard, queue.id, last, most, to, queue.name)
        on_ready(firsts_of(row["ready"]))
        last, seen = row["last"], row["seen"]
        if limit is not None:
            limit -= row["redriven"]
        yield row["redriven"]
