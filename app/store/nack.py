"""Nack: the attempt failed; the message is delivered again, or given up at its last attempt (design rule 9)."""

import json
from dataclasses import dataclass, field

from app.store.attempts import counted, end_attempts
from app.store.coalescer import OrFault
from app.store.columns import sparse
from app.store.database import Pool
from app.store.keys import shard_key
from app.store.settle import HELD, OnSettled, Settled, keep_reports, settle

_RETURNED_AND_NOTED = end_attempts(
    kind="'nacked'",
    ended_by="case when ended.failed then 'given_up' when ended.given_up then 'dead_lettered' else 'nacked' end",
    note="error",
    error="ended.error",
    counters=counted("nacked_count"),
)

NACK = f"""
-- Locks: the leases named, in id order; their messages, which nobody awaits who has not their leases; dead-letter queues, shared.
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
    where {shard_key("lease.message_id", "held.message_id")}
    returning lease.*, held.error, held.delay, held.retryable, true as is_attempt
),
{_RETURNED_AND_NOTED}
select message_id, generation, ended_by as fate, freed, wait, ready_in, fairness_key, priority from returned
"""


@dataclass(frozen=True, slots=True)
class Nack:
    """One lease whose attempt failed. `delay` is in seconds; None takes the queue's backoff."""

    message_id: int
    generation: int
    error: str | None = field(repr=False)
    delay: float | None
    retryable: bool


async def nack(pool: Pool, shard: int, nacks: list[Nack], on_settled: OnSettled) -> list[OrFault[Settled]]:
    """End the lease of every message that is still held, and put it back or give it up."""
    first = {(each.message_id, each.generation): each for each in reversed(nacks)}
    verdicts = await settle(
        pool,
        shard,
        list(first),
        on_settled,
        NACK,
        sparse([each.error for each in first.values()]),
        sparse([each.delay for each in first.values()]),
        [each.retryable for each in first.values()],
    )
    verdicts = await keep_reports(pool, shard, verdicts, first, _report)
    return [verdicts[each.message_id, each.generation] for each in nacks]


def _report(nack: Nack) -> str:
    return json.dumps({"verb": "nack", "error": nack.error})
