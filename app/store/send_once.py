"""Send once: store messages, all of a call or none, and none twice whose key is known.

A call may bear an Idempotency-Key, and each of its messages a `dedup_key`. Both are looked up in the snapshot of the one statement that
also stores what is new, so that a crash never leaves a key without its messages. A key that comes at once by another replica is found by
its unique index: the statement fails as a whole, and is run again, when it sees what the other has committed.
"""

from collections.abc import Hashable, Mapping
from itertools import accumulate, repeat

import asyncpg

from app.store.database import Pool, Row, fetch
from app.store.sending import COLUMNS, VALUES, NotSent, Sending, Sent, SentMessage, columns_of

SEND_ONCE = f"""
-- Locks: the queues sent to, in id order and shared, so that none is deleted under its new messages. Then the new keys of each kind, in
-- their order: where another replica is storing the same one, this waits for its commit.
-- Index: queue_pkey, send_request_pkey, message_dedup, message_pkey.
-- Ids are handed out in the order of the items. A duplicate has the id of its first message, negative; 0 is what is not to be stored.
with open_queue as materialized (
    select id from queue where id = any($2) order by id for key share
),
call as materialized (
    select asked.*, asked.queue_id = any(array(select id from open_queue)) as open,
           earlier.digest as earlier_digest, earlier.message_ids as earlier_ids
    from unnest($3::bigint[], $4::text[], $5::bytea[], $6::int[], $7::int[]) with ordinality
         as asked(queue_id, key, digest, first_item, last_item, number)
    left join lateral (
        select digest, message_ids
        from send_request
        where send_request.shard = $1 and send_request.queue_id = asked.queue_id and send_request.key = asked.key
        offset 0  -- looked up once per call, never the other way round
    ) as earlier on true
),
item as materialized (
    select position, queue_id, dedup_key,
           case when (array(select open and earlier_ids is null from call order by number))[item.call] then coalesce(
               (select -message.id from message
                where message.shard = $1 and message.dedup_queue_id = item.queue_id and message.dedup_key = item.dedup_key),
               nextval('message_id_seq')
           ) else 0 end as id
    from unnest($8::int[], $9::bigint[], $10::text[]) with ordinality as item(call, queue_id, dedup_key, position)
),
named as materialized (
    -- Of items that share a key here, the first is stored, and the others are its duplicates.
    select array_agg(id order by position) as ids
    from (
        select position,
               case when dedup_key is null or row_number() over same_key = 1 then id else -abs(first_value(id) over same_key) end as id
        from item
        window same_key as (partition by queue_id, dedup_key order by id = 0, position)
    ) as item
),
remembered as (
    insert into send_request (shard, queue_id, key, digest, message_ids)
    select $1, queue_id, key, digest, (select ids from named)[first_item:last_item]
    from call
    where key is not null and open and earlier_ids is null
    order by key collate "C", queue_id
),
stored as (
    insert into message (shard, id, queue_id, dedup_queue_id, dedup_key, {COLUMNS})
    select $1, id, queue_id, case when dedup_key is not null then queue_id end, dedup_key, {VALUES}
    from unnest((select ids from named), $9::bigint[], $10::text[], $11::json[], $12::json[], $13::smallint[], $14::float8[], $15::text[],
                $16::text[], $17::text[], $18::int[])
         as item(id, queue_id, dedup_key, body, headers, priority, delay, fairness_key, work_type, task_id, max_attempts)
    where id > 0
    order by dedup_key collate "C", queue_id, id
)
select open, earlier_ids is not null as repeated, coalesce(earlier_digest, digest) as digest, ids,
       case when 0 > any(ids) then array(
           select case when id < 0 then (select status from message where message.shard = $1 and message.id = -answer.id) end
           from unnest(ids) with ordinality as answer(id, position)
           order by position
       ) end as statuses
from (select *, coalesce(earlier_ids, (select ids from named)[first_item:last_item]) as ids from call) as call
order by number
"""

_KEYS = {"message_dedup", "send_request_pkey"}
_TRIES = 10
"""Each try that fails has met a key that another replica has stored by then."""


async def send_once(pool: Pool, shard: int, sendings: list[Sending]) -> list[Sent | NotSent]:
    """Store what is new in each call. Calls with one Idempotency-Key are stored as the first of them, and share its answer."""
    names: list[Hashable] = [
        number if sending.request is None else (sending.queue_id, sending.request.key) for number, sending in enumerate(sendings)
    ]
    firsts: dict[Hashable, Sending] = {}
    for name, sending in zip(names, sendings, strict=True):
        firsts.setdefault(name, sending)
    rows = dict(zip(firsts, await _store(pool, shard, list(firsts.values())), strict=True))
    just_stored = _statuses(firsts, rows) if any(row["statuses"] for row in rows.values()) else {}
    return [
        _verdict(sending, rows[name], just_stored, repeated=rows[name]["repeated"] or sending is not firsts[name])
        for name, sending in zip(names, sendings, strict=True)
    ]


async def _store(pool: Pool, shard: int, sendings: list[Sending]) -> list[Row]:
    arguments = _columns(sendings)
    for _ in range(_TRIES - 1):
        try:
            return await fetch(pool, SEND_ONCE, shard, *arguments)
        except asyncpg.UniqueViolationError as error:
            if error.constraint_name not in _KEYS:
                raise
    return await fetch(pool, SEND_ONCE, shard, *arguments)


def _columns(sendings: list[Sending]) -> tuple[object, ...]:
    messages = [message for sending in sendings for message in sending.messages]
    ends = list(accumulate(len(sending.messages) for sending in sendings))
    return (
        list({sending.queue_id for sending in sendings}),
        [sending.queue_id for sending in sendings],
        [sending.request and sending.request.key for sending in sendings],
        [sending.request and sending.request.digest for sending in sendings],
        [end - len(sending.messages) + 1 for end, sending in zip(ends, sendings, strict=True)],
        ends,
        [number for number, sending in enumerate(sendings, 1) for _ in sending.messages],
        [sending.queue_id for sending in sendings for _ in sending.messages],
        [message.dedup_key for message in messages],
        *columns_of(messages),
    )


def _statuses(sendings: Mapping[Hashable, Sending], rows: Mapping[Hashable, Row]) -> dict[int, str]:
    """Return the status of every message that was stored just now, which the statement's own snapshot does not see."""
    return {
        message_id: message.first_status
        for name, sending in sendings.items()
        for message_id, message in zip(rows[name]["ids"], sending.messages, strict=False)
        if message_id > 0
    }


def _verdict(sending: Sending, row: Row, just_stored: Mapping[int, str], *, repeated: bool) -> Sent | NotSent:
    if not row["open"]:
        return NotSent.QUEUE_GONE
    if sending.request and sending.request.digest != row["digest"]:
        return NotSent.KEY_REUSED
    # In the answer to a repeated call, a duplicate whose message is no longer kept has the status that the call would have given it.
    messages = [
        SentMessage(abs(message_id), status or just_stored.get(-message_id) or message.first_status, message_id < 0)
        for message_id, status, message in zip(row["ids"], row["statuses"] or repeat(None), sending.messages, strict=False)
    ]
    return Sent(messages, 0 if repeated else sum(not message.duplicate for message in messages))
