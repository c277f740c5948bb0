"""Figures for people, counted in the background by one replica for all, and never in a request (scar 47)."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

import orjson

from app.store.chores import ALL_SHARDS, Chore
from app.store.database import Pool, fetch
from app.store.durations import seconds
from app.store.faults import answering

SHORTEST_REFRESH_S = 10.0
REST = 30
"""How many times longer than a count the time from one to the next is: counting takes a thirtieth of one connection's time, at most."""
_COUNT_TIMEOUT_S = 300.0

_REFRESH = f"greatest({SHORTEST_REFRESH_S}, {REST} * took)"

_TAKE_TURN = f"""
-- Locks: the chore's own, until the transaction ends.
select pg_try_advisory_xact_lock({Chore.COUNT.value}, {ALL_SHARDS})
"""

_IS_DUE = f"""
-- Locks: none. Index: figure_pkey.
select not exists (select from figure where name = 'queues' and as_of + make_interval(secs => {_REFRESH}) > now())
"""

COUNT = f"""
-- Locks: the figure's own row. Index: message_status, alone, where that is less to read than the table; leases are read as a whole.
with counted as materialized (
    select json_build_object(
        'queues', (
            select json_agg(json_build_array(queue.id, queue.name, coalesce(active, 0), coalesce(stale, 0), coalesce(overdue, 0)))
            from queue
            left join (
                select queue_id, count(*) as active,
                       count(*) filter (where coalesce(beat_at, granted_at) < now() - interval '2 minutes') as stale,
                       count(*) filter (where expires_at <= now()) as overdue
                from lease
                group by queue_id
            ) as health on health.queue_id = queue.id
        ),
        'messages', (
            select coalesce(json_agg(json_build_array(queue_id, status, attempt_count, messages)), '[]')
            from (
                select queue_id, status, case when status in ('completed', 'failed') then attempt_count end, count(*)
                from message
                where status <> ''
                group by 1, 2, 3
            ) as counted(queue_id, status, attempt_count, messages)
            join queue on queue.id = queue_id
        ),
        'workers', (
            select coalesce(json_object_agg(worker_id, leases), '{{}}')
            from (select worker_id, count(*) from lease join queue on queue.id = queue_id group by worker_id) as holder(worker_id, leases)
        )
    ) as value
)
insert into figure (name, as_of, took, value)
select 'queues', now(), {seconds("clock_timestamp() - now()")}, value from counted
on conflict (name) do update set as_of = excluded.as_of, took = excluded.took, value = excluded.value
"""

_LOAD = f"""
-- Locks: none. Index: figure_pkey. The counts themselves only if they are others than those of $1.
select as_of, {_REFRESH}::float8 as refresh, {seconds("as_of - now()")} + {_REFRESH} as due_in,
       case when as_of is distinct from $1 then value end as value
from figure
where name = 'queues'
"""


@dataclass(slots=True)
class Counts:
    """What is counted of one queue, or of all.

    `leases` is by health: `active`, and of these `stale` and `overdue`. `messages` is by status, `retries` by status and number of
    failed attempts, of completed and failed messages.
    """

    leases: Counter[str] = field(default_factory=Counter)
    messages: Counter[str] = field(default_factory=Counter)
    retries: Counter[tuple[str, int]] = field(default_factory=Counter)

    def add(self, other: Self) -> None:
        self.leases.update(other.leases)
        self.messages.update(other.messages)
        self.retries.update(other.retries)


class Figures:
    """The newest count, as this replica has it in memory."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._queues: Mapping[int, tuple[str, Counts]] = {}
        self.as_of: datetime | None = None
        self.refresh_s = SHORTEST_REFRESH_S
        self.overall = Counts()
        self.held_leases: Mapping[str, int] = {}
        """Leases by worker id."""

    def of_queue(self, queue_id: int) -> Counts | None:
        """Return a queue's counts, or None if it has not been counted yet."""
        _, counts = self._queues.get(queue_id, (None, None))
        return counts

    def by_name(self) -> Iterable[tuple[str, Counts]]:
        """Return the queues that have been counted."""
        return self._queues.values()

    async def refresh(self) -> float:
        """Count if that is due and no other replica is at it, load what is new, and return the seconds until the next count is due.

        Raises:
            UnavailableError: Postgres did not answer.

        """
        await self._count()
        rows = await fetch(self._pool, _LOAD, self.as_of)
        if not rows:
            return 0  # another replica is at the first count
        (row,) = rows
        if row["value"] is not None:
            self._show(orjson.loads(row["value"]))
            self.as_of, self.refresh_s = row["as_of"], row["refresh"]
        due_in: float = row["due_in"]
        return due_in

    async def _count(self) -> None:
        # The lock has a statement of its own, as the next one has to see what was committed before it was taken.
        with answering():
            async with self._pool.acquire() as connection, connection.transaction():
                if await connection.fetchval(_TAKE_TURN) and await connection.fetchval(_IS_DUE):
                    await connection.execute(COUNT, timeout=_COUNT_TIMEOUT_S)

    def _show(self, value: Mapping[str, Any]) -> None:
        """Show other counts, all at once: whoever exports metrics may read them in a thread of its own."""
        queues = {
            queue_id: (name, Counts(leases=Counter(active=active, stale=stale, overdue=overdue)))
            for queue_id, name, active, stale, overdue in value["queues"]
        }
        for queue_id, status, attempt_count, messages in value["messages"]:
            _, counts = queues[queue_id]
            counts.messages[status] += messages
            if attempt_count is not None:
                counts.retries[status, attempt_count] += messages
        overall = Counts()
        for _, counts in queues.values():
            overall.add(counts)
        self._queues, self.overall, self.held_leases = queues, overall, value["workers"]
