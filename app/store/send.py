"""Send: store messages, all of a call or none."""

from collections.abc import Iterator

from app.store.database import Pool, fetch
from app.store.send_once import send_once
from app.store.sending import COLUMNS, VALUES, NotSent, Sending, Sent, SentMessage, columns_of

SEND = f"""
-- Locks: the queues sent to, in id order and shared, so that none is deleted under its new messages.
-- Index: queue_pkey. Ids are handed out in order, and come back in order; a queue that is gone gets none.
with open_queue as materialized (
    select id from queue where id = any($2) order by id for key share
)
insert into message (shard, queue_id, {COLUMNS})
select $1, queue_id, {VALUES}
from unnest($3::bigint[], $4::json[], $5::json[], $6::smallint[], $7::float8[], $8::text[], $9::text[], $10::text[], $11::int[])
     with ordinality as item(queue_id, body, headers, priority, delay, fairness_key, work_type, task_id, max_attempts, position)
where queue_id = any(array(select id from open_queue))
order by position
returning id, queue_id
"""


async def send(pool: Pool, shard: int, sendings: list[Sending]) -> list[Sent | NotSent]:
    """Store every message whose keys are new. A batch without any key takes a shorter way."""
    if any(sending.has_keys for sending in sendings):
        return await send_once(pool, shard, sendings)
    messages = [message for sending in sendings for message in sending.messages]
    rows = await fetch(
        pool,
        SEND,
        shard,
        list({sending.queue_id for sending in sendings}),
        [sending.queue_id for sending in sendings for _ in sending.messages],
        *columns_of(messages),
    )
    open_queues = {row["queue_id"] for row in rows}
    ids = iter(sorted(row["id"] for row in rows))
    return [_stored(sending, ids) if sending.queue_id in open_queues else NotSent.QUEUE_GONE for sending in sendings]


def _stored(sending: Sending, ids: Iterator[int]) -> Sent:
    sent = [SentMessage(next(ids), message.first_status, duplicate=False) for message in sending.messages]
    return Sent(sent, stored=len(sent))
