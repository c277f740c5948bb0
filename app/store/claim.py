"""Claim: grant leases on ready messages, by turns among fairness keys, then by priority, then by age."""

import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import asyncpg

from app.leases.rotation import Rotation, Visit
from app.store.database import Pool, Row, fetch
from app.store.faults import StoreError

_PICK = """
-- Locks: the messages picked, skipping those in other hands, so it never waits.
-- Index: message_ready, by one probe per fairness key (loose index scan) and one range per key visited; message_pkey; queue_pkey.
-- No row is read that is not ready. `visited` starts at the key whose turn it is and goes once around, no further than the batch needs.
with recursive visited(fairness_key, lap, position, weight) as (
    select $3::text collate "C", 0, 0, 0::bigint
    union all
    select next.fairness_key, next.lap, visited.position + 1, coalesce((queue.weights ->> next.fairness_key)::bigint, 1)
    from visited
    join queue on queue.id = $2
    cross join lateral (
        (select message.fairness_key, visited.lap
         from message
         where message.shard = $1 and message.queue_id = $2 and message.status = 'pending' and message.fairness_key > visited.fairness_key
         order by message.fairness_key
         limit 1)
        union all
        (select message.fairness_key, 1
         from message
         where message.shard = $1 and message.queue_id = $2 and message.status = 'pending' and visited.lap = 0
         order by message.fairness_key
         limit 1)
        limit 1
    ) as next(fairness_key, lap)
    where visited.position < $5::bigint - $4::bigint and (next.lap = 0 or next.fairness_key <= $3)
),
quanta as (
    select fairness_key, position,
           case position when 0 then $4 else weight * greatest(1, ceil(($5 - $4)::float8 / sum(weight) over ()))::bigint end as quantum
    from visited
),
allowances as (
    select *, least(quantum, $5 - (sum(quantum) over (order by position) - quantum)) as allowance from quanta
),
turn as materialized (
    -- The key whose turn it is comes by twice if the rotation goes all around: for the rest of its quantum, and for a new one.
    select fairness_key, max(position) as position, sum(quantum)::bigint as quantum, sum(allowance)::bigint as allowance
    from allowances
    where allowance > 0
    group by fairness_key
),
picked as materialized (
    select ready.shard, ready.id, row_number() over () as slot
    from (select * from turn order by position) as turn
    cross join lateral (
        select message.shard, message.id
        from message
        where message.shard = $1 and message.queue_id = $2 and message.status = 'pending' and message.fairness_key = turn.fairness_key
          and message.id <> all($6::bigint[])
        order by message.priority desc, message.id
        limit turn.allowance
        for update skip locked
    ) as ready
)
"""

CLAIM = f"""{_PICK},
started as (
    update message
    set status = 'in_progress', generation = message.generation + 1, ended_by = null, started_at = now()
    from picked
    where message.shard = picked.shard and message.id = picked.id
    returning message.*, picked.slot
),
termed as (
    select
        started.*,
        now() + make_interval(secs => least(
            ($9::float8[])[slot], coalesce(($8::float8[])[slot], queue.visibility_timeout), queue.max_lease
        )) as expires_at,
        now() + make_interval(secs => queue.max_lease) as deadline,
        case when ($9::float8[])[slot] is not null then coalesce(($8::float8[])[slot], queue.visibility_timeout) end as confirm_timeout,
        queue.beat_interval, queue.extension, coalesce(started.max_attempts, queue.max_attempts) as attempts_allowed
    from started
    join queue on queue.id = started.queue_id
),
granted as (
    insert into lease (shard, message_id, queue_id, generation, granted_at, expires_at, check_at, deadline, confirm_timeout,
                       worker_id, claim_id, claim_slot)
    select shard, id, queue_id, generation, now(), expires_at, expires_at, deadline, confirm_timeout,
           ($7::text[])[slot], ($10::text[])[slot], ($11::int[])[slot]
    from termed
)
select
    case slot when 1 then (
        select json_agg(json_build_array(fairness_key, quantum, allowance) order by position)::text from turn
    ) end as visits,
    shard, id, generation, expires_at,
    extract(epoch from expires_at - now())::float8 as expires_in, extract(epoch from deadline - now())::float8 as deadline_in,
    beat_interval, extension, body, headers, priority, fairness_key, work_type, task_id, created_at, attempt_count,
    attempts_allowed, source_queue, progress, detail
from termed
order by slot
"""  # noqa: S608 - a constant fragment

_PEEK = f"""{_PICK}
select id from picked
"""  # noqa: S608 - a constant fragment

REPEATED = """
-- Locks: none.
-- Index: lease_holder, message_pkey, queue_pkey.
select
    lease.worker_id, lease.claim_id,
    lease.shard, lease.message_id, lease.generation, lease.expires_at,
    extract(epoch from lease.expires_at - now())::float8 as expires_in,
    extract(epoch from lease.deadline - now())::float8 as deadline_in,
    queue.beat_interval, queue.extension,
    message.body, message.headers, message.priority, message.fairness_key, message.work_type, message.task_id, message.created_at,
    message.attempt_count, coalesce(message.max_attempts, queue.max_attempts) as max_attempts, message.source_queue, message.progress,
    message.detail
from (select distinct * from unnest($2::text[], $3::text[]) as asked(worker_id, claim_id)) as asked
cross join lateral (
    select *
    from lease
    where lease.shard = $1 and lease.queue_id = $4 and lease.worker_id = asked.worker_id and lease.claim_id = asked.claim_id
      and lease.expires_at > now()
    offset 0  -- looked up once per claim id, never the other way round
) as lease
join message on message.shard = lease.shard and message.id = lease.message_id
join queue on queue.id = lease.queue_id
order by lease.worker_id, lease.claim_id, lease.claim_slot
"""


_MAX_ROUNDS = 16
"""Statements that one batch may take: keys that ran dry leave slots for a next round. What is left then waits for the next wake-up."""


ClaimName = tuple[str, str]
"""What a call that may be repeated is known by: its worker and its claim id."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One call for leases. Times are in seconds; None takes the queue's."""

    worker_id: str
    max_messages: int
    visibility_timeout: float | None = None
    confirm_within: float | None = None
    claim_id: str | None = None

    @property
    def name(self) -> ClaimName | None:
        return None if self.claim_id is None else (self.worker_id, self.claim_id)


@dataclass(frozen=True, slots=True)
class GrantedLease:
    """A lease and its message. JSON values are their text; times are in seconds."""

    shard: int
    message_id: int
    generation: int
    expires_at: datetime
    expires_in: float
    deadline_in: float
    beat_interval: float
    extension: float
    body: str = field(repr=False)
    headers: str | None = field(repr=False)
    priority: int
    fairness_key: str
    work_type: str | None
    task_id: str | None
    created_at: datetime
    attempt_count: int
    max_attempts: int
    source_queue: str | None
    progress: int | None
    detail: str | None = field(repr=False)


Granted = list[list[GrantedLease]]


async def claim(pool: Pool, shard: int, queue_id: int, rotation: Rotation, claims: Sequence[Claim], aside: Collection[int]) -> Granted:
    """Grant leases to the calls in order, as far as ready messages go, and return the leases of each call.

    Messages set `aside` are left alone. Whatever fails after some leases are granted only ends the call early: they are committed.
    """
    slots = [(call, number) for call, each in enumerate(claims) for number in range(each.max_messages)]
    granted: Granted = [[] for _ in claims]
    for _ in range(_MAX_ROUNDS):
        wanted, left = len(slots), rotation.left
        try:
            rows = await fetch(pool, CLAIM, shard, queue_id, rotation.fairness_key, left, wanted, aside, *_columns(claims, slots))
        except (asyncpg.PostgresError, StoreError):
            if any(granted):
                break
            raise
        for (call, _), row in zip(slots, rows, strict=False):
            granted[call].append(GrantedLease(*row[1:]))
        slots = slots[len(rows) :]
        visits = _visits(rows)
        rotation.advance(visits)
        if not slots or not _more_may_be_ready(visits, wanted, left):
            break
    return granted


async def first_ready(pool: Pool, shard: int, queue_id: int, rotation: Rotation, aside: Collection[int]) -> int | None:
    """Return the message that a claim for one would pick."""
    rows = await fetch(pool, _PEEK, shard, queue_id, rotation.fairness_key, rotation.left, 1, aside)
    return rows[0]["id"] if rows else None


def _columns(claims: Sequence[Claim], slots: list[tuple[int, int]]) -> tuple[object, ...]:
    return (
        [claims[call].worker_id for call, _ in slots],
        [claims[call].visibility_timeout for call, _ in slots],
        [claims[call].confirm_within for call, _ in slots],
        [claims[call].claim_id for call, _ in slots],
        [number for _, number in slots],
    )


def _visits(rows: list[Row]) -> list[Visit]:
    """Read which keys the statement visited, from its first row, and count what each gave."""
    taken = Counter(row["fairness_key"] for row in rows)
    visited = json.loads(rows[0]["visits"]) if rows else []
    return [Visit(fairness_key, quantum, allowance, taken[fairness_key]) for fairness_key, quantum, allowance in visited]


def _more_may_be_ready(visits: list[Visit], wanted: int, left: int) -> bool:
    """Tell whether a statement that did not fill all slots may have left messages behind.

    It goes once around the keys, but no further than the batch needs: the key whose quantum was `left`, and one key per message wanted
    beyond that. A key that gave all it was allowed may have more.
    """
    if not visits:
        return left > 0
    return len(visits) >= wanted - left or any(visit.taken == visit.allowance for visit in visits)


async def repeated(pool: Pool, shard: int, queue_id: int, names: Collection[ClaimName]) -> dict[ClaimName, list[GrantedLease]]:
    """Return the living leases that were granted to calls of these names before."""
    found: dict[ClaimName, list[GrantedLease]] = {}
    for row in await fetch(pool, REPEATED, shard, [worker for worker, _ in names], [claim for _, claim in names], queue_id):
        found.setdefault((row["worker_id"], row["claim_id"]), []).append(GrantedLease(*row[2:]))
    return found
