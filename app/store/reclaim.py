"""Reclaim: end the leases that ran out, and put their messages back or give them up (design rules 8 and 9; seeds 003 and 004)."""

from collections.abc import Collection
from dataclasses import dataclass

from app.store.attempts import counted, end_attempts
from app.store.database import Pool, fetch
from app.store.due import first_id, since
from app.store.durations import seconds
from app.store.keys import shard_key
from app.store.ready import Ready, first_ready_of
from app.store.recheck import BLOCK, EARLY_S

_RETURNED_AND_NOTED = end_attempts(
    kind="case when ended.is_attempt then 'lease_expired' else 'unconfirmed' end",
    ended_by="case when ended.is_attempt then 'expired' else 'unconfirmed' end",
    note="case when is_attempt then 'Lease expired' else 'Delivery was not confirmed' end",
    error="""case
        when ended.is_attempt and ended.given_up then 'Max retries exceeded'
        when ended.is_attempt then format('Lease expired - retry %s/%s', ended.used, ended.max_attempts)
        when ended.given_up then 'Never confirmed'
        else message.error
    end""",
    counters=f"{counted('expired_count', 'ended.is_attempt::int')}, {counted('unconfirmed_count', '(not ended.is_attempt)::int')}",
)

_JUST_AHEAD_S = 0.2
_MOST_AHEAD = 200

RECLAIM = f"""
-- Locks: the leases due for a look, earliest first, skipping those that a beat or a settle has in hand; their messages; dead-letter
-- queues, shared; the blocks of those that live on, in order. Who locks blocks first waits for no lease.
-- Index: lease_due, up to the first that is not due; lease_pkey, message_pkey, queue_pkey, checkpoint_pkey, recheck_pkey.
-- A lease that was extended is looked at again, by the recheck if that is not soon; only one that ran out ends. What decides is the row
-- as locked. Of the next few to come due, those that were extended are moved with them: they would else wake the timer one by one.
with due as materialized (
    select shard, message_id, expires_at
    from lease
    where shard = $1 and check_at > {since("$4")} and check_at <= now() and generation > 0 and message_id <> all($3::bigint[])
    order by check_at
    limit $2
    for update skip locked
),
early as materialized (
    select locked.*
    from (
        select message_id, check_at, expires_at
        from lease
        where shard = $1 and check_at > now() and check_at <= now() + make_interval(secs => {_JUST_AHEAD_S}) and generation > 0
        order by check_at
        limit case when $2 > 1 then {_MOST_AHEAD} else 0 end  -- a batch of one looks for the culprit of those that are due
    ) as ahead
    cross join lateral (
        select shard, message_id, expires_at
        from lease
        where lease.shard = $1 and lease.message_id = ahead.message_id
        for update skip locked
    ) as locked
    where ahead.expires_at > ahead.check_at
),
moved as (
    update lease
    set check_at = case
        when looked_at.expires_at > now() + make_interval(secs => {2 * EARLY_S}) then 'infinity' else looked_at.expires_at
    end
    from (select * from due union all select * from early) as looked_at
    where looked_at.expires_at > now() and {shard_key("lease.message_id", "looked_at.message_id")}
    returning lease.*
),
to_recheck as (
    insert into recheck (shard, block, check_at)
    select shard, message_id / {BLOCK}, min(expires_at) from moved where check_at = 'infinity' group by 1, 2 order by 1, 2
    on conflict (shard, block) do update set check_at = least(recheck.check_at, excluded.check_at)  -- always: it shows that one was added
),
ended as (
    delete from lease
    using due
    where due.expires_at <= now() and {shard_key("lease.message_id", "due.message_id")}
    returning lease.*, lease.confirm_timeout is null as is_attempt, true as retryable, null::float8 as delay
),
{_RETURNED_AND_NOTED}
select
    (select count(*) from due) as looked_at,
    count(*) as expired,
    count(*) filter (where given_up) as given_up,
    (select count(*) from noted) as noted,
    {first_ready_of("returned", queue="ready_in", message="message_id")} as ready,
    array(select distinct freed from returned where freed is not null) as freed,
    coalesce(max({seconds("now() - expires_at")}), 0) as lag
from returned
"""

_FIRST = f"""
-- Locks: none that lasts. Index: lease_due.
select message_id as id
from lease
where shard = $1 and check_at > {since("$3")} and check_at <= now() and generation > 0 and message_id <> all($2::bigint[])
order by check_at
limit 1
for update skip locked
"""


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """What one batch did.

    `noted` counts the checkpoints, `ready` are the first of the messages that are ready again, `freed` the queues with a limit that have
    a place free, and `lag` is the longest time, in seconds, that one of these leases had been over.
    """

    looked_at: int
    expired: int
    given_up: int
    noted: int
    ready: list[Ready]
    freed: list[int]
    lag: float


async def reclaim(pool: Pool, shard: int, limit: int, aside: Collection[int], reach: float | None) -> Reclaimed:
    """Look at up to `limit` leases that are due for a look, and end those that ran out. Messages set `aside` are left alone."""
    (row,) = await fetch(pool, RECLAIM, shard, limit, aside, reach)
    return Reclaimed(**row)


async def first_lease(pool: Pool, shard: int, aside: Collection[int], reach: float | None) -> int | None:
    """Return the message of the lease that a batch of one would look at."""
    return first_id(await fetch(pool, _FIRST, shard, aside, reach))
