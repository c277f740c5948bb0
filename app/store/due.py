"""What the timer's statements share: how much of their indexes they look at, and when the next of all is due.

Leases that were settled and messages that were promoted leave dead entries behind, and a transaction that is held open elsewhere keeps
Postgres from clearing them away (scar 41). So a statement looks back no further than its `reach`: the seconds to where the last sweep left
nothing undone, and some for transactions that commit late. Now and then, and at first, it is None, and everything is looked at.
"""

from collections.abc import Collection

from app.store.database import Pool, Row, fetch
from app.store.durations import seconds


def since(reach: str) -> str:
    """Return the SQL for the moment that a statement looks back to; `reach` is the name of its argument."""
    return f"coalesce(now() - make_interval(secs => {reach}::float8), '-infinity')"


def _until(verb: str, table: str, moment: str, condition: str) -> str:
    """Return the SQL for the seconds until a verb has something to do, as a column of its name.

    The order is what brings Postgres to the index of these moments: `min` may be had from any, as good while the tables are empty.
    """
    first = f"""(
        select {moment} from {table}
        where shard = $1 and {moment} > {since("$3")} and {moment} <= now() + make_interval(secs => $4) and {condition}
        order by {moment}
        limit 1
    )"""
    return f"coalesce({seconds(f'{first} - now()')}, 'infinity') as {verb}"


NEXT_DUE = f"""
-- Locks: none. Index: the first entries within reach of recheck_due, lease_due and message_due.
select
    {_until("recheck", "recheck", "check_at", "block >= 0")},
    {_until("reclaim", "lease", "check_at", "generation > 0 and message_id <> all($2::bigint[])")},
    {_until("promote", "message", "available_at", "status = 'scheduled' and id <> all($2::bigint[])")}
"""


async def next_due(pool: Pool, shard: int, aside: Collection[int], reach: float | None, within: float) -> dict[str, float]:
    """Return the seconds until each verb of the timer has something to do: negative if overdue, infinity if not `within` as many."""
    (row,) = await fetch(pool, NEXT_DUE, shard, aside, reach, within)
    return dict(row)


def first_id(rows: list[Row]) -> int | None:
    return rows[0]["id"] if rows else None
