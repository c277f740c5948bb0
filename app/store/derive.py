"""Derive: an adaptive queue's lease duration, from how long its messages have taken (seed 003, future enhancements)."""

from app.store.chores import Chore, mine
from app.store.database import Pool, fetch

_LEAST_SAMPLES = 10
_MOST_SAMPLES = 1000
_MOST_LOOKED_AT = 10_000


def within_bounds(lease: str, queue: str = "queue") -> str:
    """Return a lease duration, as SQL, within the bounds that the row `queue` sets."""
    return f"case when {lease} is not null then least(greatest({lease}, {queue}.adaptive_min), {queue}.adaptive_max) end"


DERIVE = f"""
-- Locks: the chore's own, so that one replica at a time does it; the queues whose times change, in id order. They wait for claims, as
-- those share a queue's row; to skip a busy one could be to skip it for ever.
-- Index: message_finished backwards, a bounded way per adaptive queue; queue_pkey.
with {mine(Chore.DERIVE)},
sampled as materialized (
    select queue.id, sample.samples, 2 * sample.p95 as lease
    from mine
    cross join queue
    cross join lateral (
        select count(*) as samples, percentile_cont(0.95) within group (order by taken.seconds) as p95
        from (
            select extract(epoch from finished_at - started_at)::float8 as seconds
            from (
                select status, started_at, finished_at
                from message
                where message.shard = mine.shard and message.queue_id = queue.id and message.finished_at is not null
                order by finished_at desc
                limit {_MOST_LOOKED_AT}
            ) as newest
            where status = 'completed' and started_at is not null
            limit {_MOST_SAMPLES}
        ) as taken
    ) as sample
    where queue.shard = mine.shard and queue.adaptive
),
wanted as materialized (
    select id, true as adaptive, lease, samples from sampled where samples >= {_LEAST_SAMPLES}
    union all
    select queue.id, false, null, null
    from mine
    join queue on queue.shard = mine.shard
    where not queue.adaptive and queue.derived_samples is not null
),
changed as materialized (
    select wanted.id, held.lease, wanted.samples
    from (select * from wanted order by id) as wanted
    cross join lateral (
        select {within_bounds("wanted.lease")} as lease
        from queue
        where queue.id = wanted.id and queue.adaptive = wanted.adaptive
          and (queue.derived_lease, queue.derived_samples) is distinct from ({within_bounds("wanted.lease")}, wanted.samples)
        for no key update
    ) as held
)
update queue set derived_lease = changed.lease, derived_samples = changed.samples
from changed
where queue.id = changed.id
"""


async def derive(pool: Pool, shard: int) -> bool:
    """Derive the times of all adaptive queues, and drop those of queues that are adaptive no more. There is never more to do."""
    await fetch(pool, DERIVE, shard)
    return False
