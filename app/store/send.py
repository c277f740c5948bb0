"""Send: store messages, all of a call or none."""

from dataclasses import dataclass, field

from app.store.database import Pool, fetch

SEND = """
-- Locks: the queues sent to, in id order and shared, so that none is deleted under its new messages.
-- Index: queue_pkey.
with item as materialized (
    select nextval('message_id_seq') as id, item.*
    from unnest($2::bigint[], $3::json[], $4::json[], $5::smallint[], $6::float8[], $7::text[], $8::text[], $9::text[], $10::int[])
         with ordinality as item(queue_id, body, headers, priority, delay, fairness_key, work_type, task_id, max_attempts, position)
),
open_queue as materialized (
    select id from queue where id = any($2) order by id for key share
),
sent as (
    insert into message (shard, id, queue_id, body, headers, priority, available_at, status, fairness_key, work_type, task_id, max_attempts)
    select $1, item.id, item.queue_id, body, headers, priority, now() + make_interval(secs => delay),
           case when delay > 0 then 'scheduled' else 'pending' end, fairness_key, work_type, task_id, max_attempts
    from item
    join open_queue on open_queue.id = item.queue_id
    returning id
)
select sent.id
from item
left join sent on sent.id = item.id
order by item.position
"""


@dataclass(frozen=True, slots=True)
class NewMessage:
    """One message to store. JSON values are given as their text."""

    body: str = field(repr=False)
    headers: str | None = field(repr=False)
    priority: int
    delay: float
    fairness_key: str
    work_type: str | None
    task_id: str | None
    max_attempts: int | None


@dataclass(frozen=True, slots=True)
class Sending:
    """The messages of one call, for one queue."""

    queue_id: int
    messages: list[NewMessage] = field(repr=False)


async def send(pool: Pool, shard: int, sendings: list[Sending]) -> list[list[int] | None]:
    """Store every message; return each call's ids in order, or None for a call whose queue is gone."""
    pairs = [(sending.queue_id, message) for sending in sendings for message in sending.messages]
    rows = await fetch(
        pool,
        SEND,
        shard,
        [queue_id for queue_id, _ in pairs],
        [message.body for _, message in pairs],
        [message.headers for _, message in pairs],
        [message.priority for _, message in pairs],
        [message.delay for _, message in pairs],
        [message.fairness_key for _, message in pairs],
        [message.work_type for _, message in pairs],
        [message.task_id for _, message in pairs],
        [message.max_attempts for _, message in pairs],
    )
    ids = iter(row["id"] for row in rows)
    stored = [[next(ids) for _ in sending.messages] for sending in sendings]
    return [None if None in call else call for call in stored]
