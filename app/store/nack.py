"""Nack: the attempt failed; the message is delivered again, or given up at its last attempt (design rule 9)."""

import json
from dataclasses import dataclass, field

from app.store.database import Pool, fetch
from app.store.settle import ATTEMPT_FACTS, HELD, KEEP_REPORT, LAST_ATTEMPT, Settled, counted, explain, keep_reports, verdicts_of

NACK = f"""
-- Locks: the leases named, in id order; their messages, which nobody awaits who has not their leases.
-- Index: lease_pkey, message_pkey, queue_pkey, checkpoint_pkey.
with asked as materialized (
    select *
    from unnest($2::bigint[], $3::bigint[], $4::text[], $5::float8[], $6::bool[])
        as asked(message_id, generation, error, delay, retryable)
    order by message_id
),
{HELD},
ended as (
    delete from lease
    using held
    where lease.shard = held.shard and lease.message_id = held.message_id
    returning lease.*, held.error, held.delay, held.retryable
),
returned as (
    update message
    set status = case when not ended.retryable or {LAST_ATTEMPT} then 'failed' when ended.delay > 0 then 'scheduled' else 'pending' end,
        finished_at = case when not ended.retryable or {LAST_ATTEMPT} then now() end,
        available_at = now() + make_interval(secs => ended.delay),
        ended_by = 'nacked', error = ended.error, {counted("attempt_count")}, {counted("nacked_count")},
        {KEEP_REPORT}
    from ended
    join queue on queue.id = ended.queue_id
    where message.shard = ended.shard and message.id = ended.message_id and message.generation = ended.generation
    returning message.shard, ended.message_id, ended.generation, message.status, message.queue_id, message.attempt_count,
              coalesce(message.max_attempts, queue.max_attempts) as max_attempts,
              ended.error, ended.worker_id, ended.granted_at, ended.expires_at, ended.beat_at
),
noted as (
    insert into checkpoint (shard, message_id, generation, kind, facts)
    select shard, message_id, generation, 'nacked',
           json_build_object('error', error, {ATTEMPT_FACTS})
    from returned
    on conflict do nothing
)
select message_id, generation,
       case status when 'failed' then 'given_up' else 'nacked' end as fate,
       case status when 'pending' then queue_id end as ready_queue
from returned
"""  # noqa: S608 - constant fragments


@dataclass(frozen=True, slots=True)
class Nack:
    """One lease whose attempt failed. `delay` is in seconds."""

    message_id: int
    generation: int
    error: str | None = field(repr=False)
    delay: float
    retryable: bool


async def nack(pool: Pool, shard: int, nacks: list[Nack]) -> list[Settled]:
    """End the lease of every message that is still held, and put it back or give it up."""
    first = {(each.message_id, each.generation): each for each in reversed(nacks)}
    rows = await fetch(
        pool,
        NACK,
        shard,
        [message_id for message_id, _ in first],
        [generation for _, generation in first],
        [each.error for each in first.values()],
        [each.delay for each in first.values()],
        [each.retryable for each in first.values()],
    )
    verdicts = verdicts_of(rows)
    await explain(pool, shard, verdicts, first)
    await keep_reports(pool, shard, verdicts, {lease: json.dumps({"verb": "nack", "error": each.error}) for lease, each in first.items()})
    return [verdicts[each.message_id, each.generation] for each in nacks]
