"""Full tables: messages and leases by the million, stored directly, as the service would have left them."""

import asyncio

import asyncpg

from app.store.recheck import BLOCK
from bench.service import QUEUE

_STORED = f"""
insert into message (shard, queue_id, body, size, priority, status, fairness_key, available_at, generation, ended_by, started_at,
                     finished_at)
select
    shard, id, '{{"file": "s3://bucket/some/object"}}', 35, 0, $1,
    case when $3 > 0 then 'key-' || lpad((number % $3)::text, 5, '0') else '' end,
    now() + case $1 when 'scheduled' then interval '1 hour' + number * interval '1 millisecond' else '0' end,
    case when $1 in ('in_progress', 'completed') then 1 else 0 end, case $1 when 'completed' then 'acked' end,
    case when $1 in ('in_progress', 'completed') then now() end, case $1 when 'completed' then now() end
from queue
cross join generate_series(1, $2::int) as number
where name = '{QUEUE}'
"""

_LEASED = f"""
-- As they are a while after their claims: each extended within the last fifth of its length, their next looks spread over time.
with leased as (
    insert into lease (shard, message_id, queue_id, generation, granted_at, expires_at, check_at, deadline, worker_id)
    select shard, id, queue_id, generation, now(), now() + (0.8 + 0.2 * random()) * length, 'infinity', now() + interval '12 hours',
           'worker-' || id % 1000
    from message
    cross join make_interval(secs => $1) as length
    where status = 'in_progress' and not exists (select from lease where lease.shard = message.shard and message_id = id)
    returning *
)
insert into recheck (shard, block, check_at)
select shard, message_id / {BLOCK}, now() + 0.8 * random() * make_interval(secs => $1)
from leased
group by 1, 2
"""


def store(url: str, *, keys: int = 0, lease_s: float = 3600, **counts: int) -> None:
    """Store so many messages of each status, those that are ready under so many fairness keys, if any, and leases of this length.

    The indexes stay: they get their entries in the order that the service would give them, and to build them anew afterwards takes longer.
    A service that uses the tables at the same time would stand still.
    """
    asyncio.run(_store(url, counts, keys, lease_s))


async def _store(url: str, counts: dict[str, int], keys: int, lease_s: float) -> None:
    sql = await asyncpg.connect(url)
    try:
        for status, count in counts.items():
            halves = (count // 2, count - count // 2)  # at once, as there are two cores or more
            await asyncio.gather(*(_insert(url, status, half, keys if status == "pending" else 0) for half in halves))
        await sql.execute("set enable_nestloop = off")  # else each to lease may be looked up among all leases stored so far, one by one
        await sql.execute(_LEASED, lease_s)
        for table in ("message", "lease", "recheck"):
            await sql.execute(f"vacuum analyze {table}")
        await sql.execute("checkpoint")
    finally:
        await sql.close()


async def _insert(url: str, status: str, count: int, keys: int) -> None:
    sql = await asyncpg.connect(url)
    try:
        await sql.execute(_STORED, status, count, keys)
    finally:
        await sql.close()


def rows(url: str, query: str) -> list[asyncpg.Record]:
    """Return what a query finds."""

    async def run() -> list[asyncpg.Record]:
        sql = await asyncpg.connect(url)
        try:
            return list(await sql.fetch(query))
        finally:
            await sql.close()

    return asyncio.run(run())
