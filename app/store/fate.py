"""Fate: how leases that no longer live came to their end. Read only after a verb found that it has nothing to act on."""

from collections.abc import Iterable

from app.leases.outcomes import Fate
from app.store.database import Pool, fetch
from app.store.keys import WITH_A_QUEUE

FATE = f"""
-- Locks: none. Runs after the verb's own statement, so it sees whatever ended the lease.
-- Index: message_pkey, queue_pkey. A message whose queue is deleted is gone.
select
    asked.message_id, asked.generation,
    case
        when message.id is null or message.generation < asked.generation then 'unknown'
        when message.generation > asked.generation then 'lost'
        when message.status = 'in_progress' then 'expired'  -- ran out, and is not reclaimed yet
        else message.ended_by
    end as fate
from unnest($2::bigint[], $3::bigint[]) as asked(message_id, generation)
left join lateral (
    select message.id, message.generation, message.status, message.ended_by
    from message
    {WITH_A_QUEUE}
    where message.shard = $1 and message.id = asked.message_id
    limit 1
) as message on true
"""


LeaseKey = tuple[int, int]
"""A lease within its shard: message id and generation."""


async def fates_of(pool: Pool, shard: int, leases: Iterable[LeaseKey]) -> dict[LeaseKey, Fate]:
    """Return the fate of each lease."""
    leases = list(leases)
    rows = await fetch(pool, FATE, shard, [message_id for message_id, _ in leases], [generation for _, generation in leases])
    return {(row["message_id"], row["generation"]): row["fate"] for row in rows}
