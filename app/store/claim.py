"""Claim: grant leases on ready messages, by turns among fairness keys, then by priority, then by age."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby

from app.leases.rotation import Rotation, Visit
from app.store.database import Pool, Row, fetch

# What a worker is told about a lease. Reads from `lease` and `message`, whichever rows bear those names, and from `queue`.
_LEASE_FACTS = """
    lease.shard, lease.message_id, lease.generation, lease.expires_at,
    extract(epoch from lease.expires_at - now())::float8 as expires_in,
    extract(epoch from lease.deadline - now())::float8 as deadline_in,
    queue.beat_interval, queue.extension,
    message.body, message.headers, message.priority, message.fairness_key, message.work_type, message.task_id, message.created_at,
    message.attempt_count, coalesce(message.max_attempts, queue.max_attempts) as max_attempts, message.progress, message.detail
"""

CLAIM = f"""
-- Locks: the messages picked, skipping those in other hands, so it never waits.
-- Index: message_ready, by one probe per fairness key (loose index scan) and one range per key visited; message_pkey; queue_pkey.
-- No row is read that is not ready. `visited` starts at the key whose turn it is and goes once around, no further than the batch needs.
with recursive asked as materialized (
    select *
    from unnest($6::text[], $7::float8[], $8::float8[], $9::text[], $10::int[])
        with ordinality as asked(worker_id, visibility_timeout, confirm_within, claim_id, claim_slot, slot)
),
visited(fairness_key, lap, position, weight) as (
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
    select ready.id, turn.position, row_number() over () as slot
    from (select * from turn order by position) as turn
    cross join lateral (
        select message.id
        from message
        where message.shard = $1 and message.queue_id = $2 and message.status = 'pending' and message.fairness_key = turn.fairness_key
        order by message.priority desc, message.id
        limit turn.allowance
        for update skip locked
    ) as ready
),
started as (
    update message
    set status = 'in_progress', generation = generation + 1, ended_by = null
    where shard = $1 and id = any(array(select id from picked))
    returning *
),
granted as (
    insert into lease (shard, message_id, queue_id, generation, granted_at, expires_at, check_at, deadline, confirm_timeout,
                       worker_id, claim_id, claim_slot)
    select
        $1, started.id, $2, started.generation, now(), term.expires_at, term.expires_at, now() + make_interval(secs => queue.max_lease),
        case when asked.confirm_within is not null then coalesce(asked.visibility_timeout, queue.visibility_timeout) end,
        asked.worker_id, asked.claim_id, asked.claim_slot
    from started
    join picked on picked.id = started.id
    join asked on asked.slot = picked.slot
    join queue on queue.id = $2
    cross join lateral (
        select now() + make_interval(secs => least(
            asked.confirm_within, coalesce(asked.visibility_timeout, queue.visibility_timeout), queue.max_lease
        )) as expires_at
    ) as term
    returning *
)
select turn.fairness_key as visited_key, turn.quantum, turn.allowance, picked.slot, {_LEASE_FACTS}
from turn
left join (
    picked
    join granted as lease on lease.message_id = picked.id
    join started as message on message.id = picked.id
    join queue on queue.id = $2
) on picked.position = turn.position
order by turn.position, picked.slot
"""  # noqa: S608 - a constant fragment

REPEATED = f"""
-- Locks: none.
-- Index: lease_claim, message_pkey, queue_pkey.
select lease.claim_id, {_LEASE_FACTS}
from lease
join message on message.shard = $1 and message.id = lease.message_id
join queue on queue.id = lease.queue_id
where lease.shard = $1 and lease.claim_id = any($2::text[]) and lease.queue_id = $3 and lease.expires_at > now()
order by lease.claim_id, lease.claim_slot
"""  # noqa: S608 - a constant fragment


_MAX_ROUNDS = 16
"""Statements that one batch may take: keys that ran dry leave slots for a next round. What is left then waits for the next wake-up."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One call for leases. Times are in seconds; None takes the queue's."""

    worker_id: str
    max_messages: int
    visibility_timeout: float | None = None
    confirm_within: float | None = None
    claim_id: str | None = None


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
    progress: int | None
    detail: str | None = field(repr=False)


Granted = list[list[GrantedLease]]


async def claim(pool: Pool, shard: int, queue_id: int, rotation: Rotation, claims: Sequence[Claim]) -> Granted:
    """Grant leases to the calls in order, as far as ready messages go, and return the leases of each call."""
    slots = [(call, number) for call, each in enumerate(claims) for number in range(each.max_messages)]
    granted: Granted = [[] for _ in claims]
    for _ in range(_MAX_ROUNDS):
        reach = len(slots) - rotation.left
        rows = await fetch(pool, CLAIM, shard, queue_id, rotation.fairness_key, rotation.left, *_columns(claims, slots))
        visits = _visits(rows)
        rotation.advance(visits)
        leases = [GrantedLease(*row[4:]) for row in rows if row["slot"] is not None]
        for (call, _), lease in zip(slots, leases, strict=False):
            granted[call].append(lease)
        slots = slots[len(leases) :]
        all_dry = all(visit.taken < visit.allowance for visit in visits)
        all_visited = len(visits) < reach
        if not slots or (all_dry and all_visited):
            break
    return granted


def _columns(claims: Sequence[Claim], slots: list[tuple[int, int]]) -> tuple[object, ...]:
    return (
        len(slots),
        [claims[call].worker_id for call, _ in slots],
        [claims[call].visibility_timeout for call, _ in slots],
        [claims[call].confirm_within for call, _ in slots],
        [claims[call].claim_id for call, _ in slots],
        [number for _, number in slots],
    )


def _visits(rows: list[Row]) -> list[Visit]:
    visits = []
    for (fairness_key, quantum, allowance), group in groupby(rows, key=lambda row: (row["visited_key"], row["quantum"], row["allowance"])):
        visits.append(Visit(fairness_key, quantum, allowance, sum(row["slot"] is not None for row in group)))
    return visits


async def repeated(pool: Pool, shard: int, queue_id: int, claim_ids: list[str]) -> dict[str, list[GrantedLease]]:
    """Return the living leases that were granted under these claim ids before."""
    found: dict[str, list[GrantedLease]] = {}
    for row in await fetch(pool, REPEATED, shard, claim_ids, queue_id):
        found.setdefault(row["claim_id"], []).append(GrantedLease(*row[1:]))
    return found
