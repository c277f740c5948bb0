"""Derive: an adaptive queue's lease duration, from how long its messages have taken (seed 003, future enhancements)."""

from app.store.chores import Chore, mine
from app.store.database import Pool, fetch
from app.store.durations import seconds
from app.store.keys import key

_LEAST_SAMPLES = 10
_MOST_SAMPLES = 1000
_MOST_LOOKED_AT = 10_000
_BATCH = 50


def within_bounds(lease: str, queue: str = "queue") -> str:
    """Return a lease duration, as SQL, within the bounds that the row `queue` sets."""
    return f"case when {lease} is not null then least(greatest({lease}, {queue}.adaptive_min), {queue}.adaptive_max) end"


DERIVE = f"""
-- Locks: the chore's own, so that one replica at a time does it; the queues whose times change, in id order. They wait for claims, as
-- those share a queue's row; to skip a busy one could be to skip it for ever.
-- Index: queue_pkey, from where the last batch ended; message_finished backwards, a bounded way per adaptive queue.
with {mine(Chore.DERIVE)},
asked as materialized (
    select queue.id, queue.adaptive
    from mine
    cross join lateral (
        select *
        from queue
        where queue.id > $2 and queue.shard = mine.shard and (queue.adaptive or queue.derived_samples is not null)
        order by queue.id
        limit {_BATCH}
    ) as queue
),
wanted as materialized (
    select
        asked.id, asked.adaptive,
        case when asked.adaptive then 2 * sample.p95 end as lease,
        case when asked.adaptive then sample.samples end as samples
    from asked
    cross join mine
    cross join lateral (
        select count(*) as samples, percentile_cont(0.95) within group (order by taken.seconds) as p95
        from (
            select {seconds("finished_at - started_at")} as seconds
            from (
                select status, started_at, finished_at
                from message
                where message.shard = mine.shard and message.queue_id = asked.id and message.finished_at is not null
                order by finished_at desc
                limit {_MOST_LOOKED_AT}
            ) as newest
            where status = 'completed' and started_at is not null
            limit {_MOST_SAMPLES}
        ) as taken
    ) as sample
    where not asked.adaptive or sample.samples >= {_LEAST_SAMPLES}
    order by asked.id
),
changed as materialized (
    select wanted.id, held.lease, wanted.samples
    from wanted
    cross join lateral (
        select {within_bounds("wanted.lease")} as lease
        from queue
        where queue.id = wanted.id and queue.adaptive = wanted.adaptive
          and (queue.derived_lease, queue.derived_samples) is distinct from ({within_bounds("wanted.lease")}, wanted.samples)
        for no key update
    ) as held
),
derived as (
    update queue set derived_lease = changed.lease, derived_samples = changed.samples
    from changed
    where {key("queue.id", "changed.id")}
)
select exists (select from mine) as mine, count(*) as asked, max(id) as last from asked
"""


class Deriver:
    """One replica's way through the queues of one shard, batch by batch."""

    def __init__(self, pool: Pool, shard: int) -> None:
        self._pool = pool
        self._shard = shard
        self._last = 0

    async def derive(self) -> bool:
        """Derive the times of some adaptive queues, and drop those of some that are so no more. Returns whether there are others."""
        (row,) = await fetch(self._pool, DERIVE, self._shard, self._last)
        if not row["mine"]:
            return False
        more: bool = row["asked"] == _BATCH
        self._last = row["last"] if more else 0
        return more
