"""Recheck: look again at leases that were alive when their first look came due (design rule 8).

A look at `lease` would write a new version of a wide row, and an entry in each of its indexes, wherever they are. So after the first look a
lease is left alone, and later looks are at blocks of neighbours: one row of `recheck` says when the first of them would run out. A lease
that is extended costs a look no more than to be read.
"""

from collections.abc import Collection

from app.store.database import Pool, fetch
from app.store.due import first_id, since
from app.store.keys import shard_key

BLOCK = 64
"""Message ids to a block. It is in the data: `recheck.block` is the message id divided by it."""

EARLY_S = 1.0
"""How long before its time a block is looked at, along with one whose time has come: they would wake the timer one by one."""

_SOON = f"now() + make_interval(secs => {EARLY_S})"
_IS_DUE = "recheck.shard = $1 and recheck.check_at > {since} and recheck.check_at <= {soon} and recheck.block >= 0"

RECHECK = f"""
-- Locks: the blocks that are due, or will be soon, earliest first, skipping those in other hands; of the leases in them that would run out
-- by then, theirs, skipping those that a beat or a settle has in hand.
-- Index: recheck_due, up to the first that is not due soon; recheck_pkey; lease_pkey, one range per block.
-- A block is left alone if a lease has been added to it since this statement began: it would not see that one. Leases that will run out are
-- left to the reclaim, which looks at each at its end; $3 are set aside, and at most $4 are taken at once. Of the others, the first to
-- run out decides when the block is looked at again.
with due as materialized (
    select ahead.shard, ahead.block
    from (
        select shard, block, xmin as version
        from recheck
        where {_IS_DUE.format(since=since("$5"), soon=_SOON)}
        order by check_at
        limit $2
    ) as ahead
    cross join lateral (
        select xmin as version
        from recheck
        where recheck.shard = ahead.shard and recheck.block = ahead.block
        for update skip locked
    ) as locked
    where locked.version = ahead.version
),
looked_at as materialized (
    select due.shard, due.block, lease.message_id, lease.generation, lease.expires_at,
           count(*) filter (where lease.ends_soon) over (order by due.block, lease.message_id) as nth, lease.ends_soon
    from due
    cross join lateral (
        select message_id, generation, expires_at, expires_at <= {_SOON} and message_id <> all($3::bigint[]) as ends_soon
        from lease
        where lease.shard = due.shard and lease.message_id >= due.block * {BLOCK} and lease.message_id < (due.block + 1) * {BLOCK}
          and lease.check_at = 'infinity'
        order by message_id
    ) as lease
),
judged as materialized (
    select looked_at.*, coalesce(held.is_held, false) as ending
    from looked_at
    left join lateral (
        select true as is_held
        from lease
        where looked_at.ends_soon and looked_at.nth <= $4 and lease.shard = looked_at.shard and lease.message_id = looked_at.message_id
          and lease.generation = looked_at.generation
        for update skip locked
    ) as held on true
),
left_to_reclaim as (
    update lease set check_at = greatest(judged.expires_at, now())
    from judged
    where judged.ending and {shard_key("lease.message_id", "judged.message_id")}
),
living as materialized (
    -- What others had in hand is looked at again in a moment: not at once, or there would be no end of it. What was too much is.
    select shard, block,
           min(case when ends_soon and nth > $4 then now() else greatest(expires_at, {_SOON} + interval '50 ms') end) as check_at
    from judged
    where not ending
    group by shard, block
),
moved as (
    update recheck set check_at = living.check_at
    from living
    where {shard_key("recheck.block", "living.block")}
),
dropped as (
    delete from recheck
    using due
    where {shard_key("recheck.block", "due.block")} and recheck.block <> all(array(select block from living))
)
select count(*) as blocks from due
"""

_FIRST = f"""
-- Locks: none that lasts. Index: recheck_due, lease_pkey.
select lease.message_id as id
from (
    select shard, block
    from recheck
    where {_IS_DUE.format(since=since("$3"), soon=_SOON)}
    order by check_at
    limit 1
    for update skip locked
) as due
cross join lateral (
    select message_id
    from lease
    where lease.shard = due.shard and lease.message_id >= due.block * {BLOCK} and lease.message_id < (due.block + 1) * {BLOCK}
      and lease.check_at = 'infinity' and lease.expires_at <= {_SOON} and lease.message_id <> all($2::bigint[])
    order by message_id
    limit 1
) as lease
"""


async def recheck(pool: Pool, shard: int, limit: int, aside: Collection[int], reach: float | None) -> int:
    """Look at blocks of leases again, and leave up to `limit` leases that will run out to the reclaim. Messages set `aside` are left alone.

    Returns `limit` if more may be due, else less.
    """
    most = max(1, limit // BLOCK)
    (row,) = await fetch(pool, RECHECK, shard, most, aside, limit, reach)
    return limit if row["blocks"] == most else row["blocks"]


async def first_rechecked(pool: Pool, shard: int, aside: Collection[int], reach: float | None) -> int | None:
    """Return the message of the lease that would be the only one to be left to the reclaim."""
    return first_id(await fetch(pool, _FIRST, shard, aside, reach))
