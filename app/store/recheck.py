"""Recheck: look again at leases that were alive when their first look came due (design rule 8).

A look at `lease` would write a new version of a wide row, and an entry in each of its indexes, wherever they are. So after the first look a
lease is left alone, and its next look is a row in `recheck`, narrow and in order of time. The row of a lease that has ended stays until its
time comes.
"""

from collections.abc import Collection

from app.store.database import Pool, fetch
from app.store.due import first_id, since

EARLY_S = 1.0
"""How long before its time a lease is looked at again, along with one whose time has come: they would wake the timer one by one."""

RECHECK = f"""
-- Locks: the rechecks that are due, or will be soon, earliest first, skipping those in another replica's hands; of the leases that were not
-- extended, theirs, skipping those that a beat or a settle has in hand.
-- Index: recheck_pkey, up to the first that is not due soon; lease_pkey.
-- A lease that was extended is looked at again at its new end. One that was not is left to the reclaim, which looks at its end.
with due as materialized (
    select ctid as place, shard, check_at, message_id, generation
    from recheck
    where shard = $1 and check_at > {since("$4")} and check_at <= now() + make_interval(secs => {EARLY_S})
      and message_id <> all($3::bigint[])
    order by check_at
    limit $2
    for update skip locked
),
looked_at as materialized (
    select due.*, lease.expires_at
    from due
    left join lateral (
        select expires_at
        from lease
        where lease.shard = due.shard and lease.message_id = due.message_id and lease.generation = due.generation
    ) as lease on true
),
ending as materialized (
    select looked_at.*
    from looked_at
    cross join lateral (
        select from lease
        where looked_at.expires_at <= now() + make_interval(secs => {EARLY_S})
          and lease.shard = looked_at.shard and lease.message_id = looked_at.message_id and lease.generation = looked_at.generation
        for update skip locked
    ) as lease
),
left_to_reclaim as (
    update lease set check_at = ending.expires_at
    from ending
    where lease.shard = ending.shard and lease.message_id = ending.message_id
),
extended as (
    insert into recheck (shard, check_at, message_id, generation)
    select shard, expires_at, message_id, generation
    from looked_at
    where expires_at > now() + make_interval(secs => {EARLY_S})
),
done as (
    delete from recheck
    using (
        select place from ending
        union all
        select place from looked_at where expires_at is null or expires_at > now() + make_interval(secs => {EARLY_S})
    ) as done
    where recheck.ctid = done.place
    returning 1
)
select count(*) as handled from done
"""

_FIRST = f"""
-- Locks: none that lasts. Index: recheck_pkey.
select message_id as id
from recheck
where shard = $1 and check_at > {since("$3")} and check_at <= now() + make_interval(secs => {EARLY_S}) and message_id <> all($2::bigint[])
order by check_at
limit 1
for update skip locked
"""


async def recheck(pool: Pool, shard: int, limit: int, aside: Collection[int], reach: float | None) -> int:
    """Look at up to `limit` leases again, and return for how many that changed something. Messages set `aside` are left alone."""
    (row,) = await fetch(pool, RECHECK, shard, limit, aside, reach)
    handled: int = row["handled"]
    return handled


async def first_rechecked(pool: Pool, shard: int, aside: Collection[int], reach: float | None) -> int | None:
    """Return the message of the lease that a batch of one would look at again."""
    return first_id(await fetch(pool, _FIRST, shard, aside, reach))
