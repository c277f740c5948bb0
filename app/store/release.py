"""Release: give a message back untouched; not an attempt (design rule 9)."""

from dataclasses import dataclass

from app.store.attempts import counted
from app.store.coalescer import OrFault
from app.store.database import Pool
from app.store.keys import key, shard_key
from app.store.settle import HELD, KEEP_REPORT, OnSettled, Settled, settle

RELEASE = f"""
-- Locks: the leases named, in id order; their messages, which nobody awaits who has not their leases.
-- Index: lease_pkey, message_pkey, queue_pkey.
with asked as materialized (
    select * from unnest($2::bigint[], $3::bigint[]) as asked(message_id, generation) order by message_id
),
{HELD},
ended as (
    delete from lease
    using held
    where {shard_key("lease.message_id", "held.message_id")}
    returning lease.*
)
update message
set status = 'pending', available_at = now(), ended_by = 'released',
    {counted("released_count")}, {KEEP_REPORT}
from ended, queue
where {shard_key("message.id", "ended.message_id")} and message.generation = ended.generation
  and {key("queue.id", "message.queue_id")}
returning message.id as message_id, message.generation, 'released' as fate, null::bigint as freed, 0::float8 as wait,
          message.queue_id as ready_in, message.fairness_key, message.priority
"""


@dataclass(frozen=True, slots=True)
class Release:
    """One lease to give back."""

    message_id: int
    generation: int


async def release(pool: Pool, shard: int, releases: list[Release], on_settled: OnSettled) -> list[OrFault[Settled]]:
    """End the lease of every message that is still held, and put it back as ready."""
    leases = [(each.message_id, each.generation) for each in releases]
    verdicts = await settle(pool, shard, list(dict.fromkeys(leases)), on_settled, RELEASE)
    return [verdicts[lease] for lease in leases]
