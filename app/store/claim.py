"""Claim: grant leases on ready messages, by turns among fairness keys, then by priority, then by age."""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import asyncpg

from app.leases.floors import Firsts, Floors, Taken, join
from app.leases.rotation import Rotation, Visit
from app.store.columns import sparse
from app.store.database import Pool, Row, fetch, fetch_holding
from app.store.durations import seconds
from app.store.faults import StoreError
from app.store.keys import key, shard_key
from app.store.pick import ANSWER_BYTES, ANYTHING, PICK_ANY, PICK_BY_BOTH, PICK_BY_TASK, PICK_BY_TYPE, Filter, Pick
from app.store.queues import QueueGoneError
from app.store.times import BEAT_INTERVAL, EXTENSION

_GRANT = f""",
open_queue as materialized (
    -- The queue as it is now that it is locked, shared: while this was under way, it may have been deleted, paused, or given a limit.
    select id
    from queue
    where id = $2 and not paused and (max_in_flight is null or $5::bool) and exists (select from picked)
    for share
),
granting as materialized (
    -- The moment that the leases begin: now that the queue is locked, for which this may have waited longer than they last.
    select clock_timestamp() as began from open_queue
),
started as (
    update message
    set status = 'in_progress', generation = message.generation + 1, ended_by = null, started_at = (select began from granting)
    from picked
    where {shard_key("message.id", "picked.id")} and exists (select from granting)
    returning message.*, picked.nth
),
slotted as (
    select
        started.*, offer.slots[started.nth] as slot, offer.max_lease,
        coalesce(started.max_attempts, offer.max_attempts) as attempts_allowed,
        offer.lease_length, offer.extension_length as extension, offer.beat_every as beat_interval
    from offer
    cross join started
),
termed as (
    select
        slotted.*,
        started_at + make_interval(secs => least(
            ({{confirm_within}}::float8[])[slot], coalesce(({{visibility_timeout}}::float8[])[slot], lease_length), max_lease
        )) as expires_at,
        started_at + make_interval(secs => max_lease) as deadline,
        case
            when ({{confirm_within}}::float8[])[slot] is not null then coalesce(({{visibility_timeout}}::float8[])[slot], lease_length)
        end as confirm_timeout
    from slotted
),
granted as (
    insert into lease (shard, message_id, queue_id, generation, granted_at, expires_at, check_at, deadline, confirm_timeout,
                       worker_id, claim_id, claim_slot)
    select shard, id, queue_id, generation, started_at, expires_at, expires_at, deadline, confirm_timeout,
           ($7::text[])[slot], ({{claim_id}}::text[])[slot], ({{claim_slot}}::int[])[slot]
    from termed
)
select
    case
        when coalesce(nth, 1) = 1 then json_build_object(
            'visits', (select json_agg(json_build_array(fairness_key, quantum, allowance) order by again, position) from turn),
            'room', offer.room,
            'cut', exists (select from shares where position > 0 and allowance = 0),
            'bytes', (select coalesce(max(bytes), 0) from picked),
            'limited', offer.max_in_flight is not null,
            'shut', exists (select from picked) and not exists (select from open_queue),
            'served', case when cardinality(offer.slots) < cardinality($7::text[]) then offer.slots end
        )::text
    end as terms,
    slot,
    termed.shard, termed.id, generation, expires_at,
    {seconds("expires_at - started_at")} as expires_in, {seconds("deadline - started_at")} as deadline_in,
    termed.beat_interval, termed.extension, body, headers, priority, fairness_key, work_type, task_id, termed.created_at, attempt_count,
    attempt_count - attempts_before + 1 as attempt, attempts_allowed, source_queue, progress, detail
from offer
left join termed on true
order by nth
"""


def _claim(pick: Pick) -> str:
    """Append the grant to a pick."""
    columns = ("visibility_timeout", "confirm_within", "claim_id", "claim_slot")
    return pick.sql + _GRANT.format(**{name: f"${number}" for number, name in enumerate(columns, pick.arguments + 1)})


CLAIMS = {pick: _claim(pick) for pick in (PICK_ANY, PICK_BY_TYPE, PICK_BY_TASK, PICK_BY_BOTH)}
_PEEKS = {pick: f"{pick.sql}select id from picked" for pick in CLAIMS}

_HOLD_QUEUE = """
-- Locks: the queue's row, until the claim is committed: whoever counts its leases does so alone. Sends only share it, and go on.
-- Index: queue_pkey.
select from queue where id = $1 for no key update
"""

REPEATED = f"""
-- Locks: none.
-- Index: lease_of_worker, message_pkey, queue_pkey.
select
    lease.worker_id, lease.claim_id,
    lease.shard, lease.message_id, lease.generation, lease.expires_at,
    {seconds("lease.expires_at - now()")} as expires_in,
    {seconds("lease.deadline - now()")} as deadline_in,
    {BEAT_INTERVAL} as beat_interval, {EXTENSION} as extension,
    message.body, message.headers, message.priority, message.fairness_key, message.work_type, message.task_id, message.created_at,
    message.attempt_count, message.attempt_count - message.attempts_before + 1 as attempt,
    coalesce(message.max_attempts, queue.max_attempts) as max_attempts, message.source_queue, message.progress,
    message.detail
from (select distinct * from unnest($2::text[], $3::text[]) as asked(worker_id, claim_id)) as asked
cross join lateral (
    select *
    from lease
    where lease.shard = $1 and lease.queue_id = $4 and lease.worker_id = asked.worker_id and lease.claim_id = asked.claim_id
      and lease.generation > 0
      and lease.expires_at > now()
    offset 0  -- looked up once per claim id, never the other way round
) as lease
join message on {shard_key("message.id", "lease.message_id")}
join queue on {key("queue.id", "lease.queue_id")}
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
    filter: Filter = ANYTHING

    @property
    def name(self) -> ClaimName | None:
        return None if self.claim_id is None else (self.worker_id, self.claim_id)


class GrantedLease(NamedTuple):
    """A lease and its message. JSON values are their text; times are in seconds."""

    shard: int
    message_id: int
    generation: int
    expires_at: datetime
    expires_in: float
    deadline_in: float
    beat_interval: float
    extension: float
    body: str
    headers: str | None
    priority: int
    fairness_key: str
    work_type: str | None
    task_id: str | None
    created_at: datetime
    attempt_count: int
    attempt: int
    max_attempts: int
    source_queue: str | None
    progress: int | None
    detail: str | None


@dataclass(slots=True)
class Granted:
    """What a call got. `drain` tells that its worker is to stop taking work, `short` that it was cut short: more may be ready for it."""

    leases: list[GrantedLease] = field(default_factory=list)
    drain: bool = False
    short: bool = False


@dataclass(slots=True)
class Place:
    """Where one replica serves the claims of one queue and filter from.

    Whose turn it is, behind what nothing is ready, and whether the queue limits its leases.
    """

    shard: int
    queue_id: int
    filter: Filter = ANYTHING
    rotation: Rotation = field(default_factory=Rotation)
    floors: Floors = field(default_factory=Floors)
    limited: bool = False


async def claim(pool: Pool, place: Place, claims: Sequence[Claim], aside: Collection[int]) -> list[Granted]:
    """Grant leases to the calls in order, as far as ready messages and the queue's limit go, and an answer's size.

    Messages set `aside` are left alone. Whatever fails after some leases are granted only cuts the calls short: they are committed.

    Raises:
        QueueGoneError: the queue has been deleted.

    """
    slots = [(call, number) for call, each in enumerate(claims) for number in range(each.max_messages)]
    granted = [Granted() for _ in claims]
    taken = 0
    for _ in range(_MAX_ROUNDS):
        left = place.rotation.left
        place.floors.begin()
        try:
            rows = await _run(pool, place, [claims[call].worker_id for call, _ in slots], aside, *_columns(claims, slots))
        except (asyncpg.PostgresError, StoreError):
            if not any(each.leases for each in granted):
                raise
            _cut_short(slots, granted)
            break
        if not rows:
            raise QueueGoneError(place.queue_id)
        terms = _Terms(**json.loads(rows[0]["terms"]))
        leased = [row for row in rows if row["id"] is not None]
        place.floors.took(_taken(place.filter, leased))
        for row in leased:
            granted[slots[row["slot"] - 1][0]].leases.append(GrantedLease._make(row[2:]))
        slots = _served(slots, terms, granted)[len(leased) :]
        held, place.limited = place.limited, terms.limited
        if terms.shut or (slots and terms.limited and not held):
            continue  # and again, on the queue as it is now, or while its row is held
        visits = _visits(terms, leased)
        if terms.room:  # else nobody has had a turn
            place.rotation.advance(visits)
        if not slots or len(leased) == terms.room or not (terms.cut or _more_may_be_ready(visits, terms.room, left)):
            break
        taken += terms.bytes
        if taken >= ANSWER_BYTES:
            _cut_short(slots, granted)
            break
    return granted


async def first_ready(pool: Pool, place: Place, aside: Collection[int]) -> int | None:
    """Return the message that a claim for one would pick."""
    rows = await fetch(pool, _PEEKS[place.filter.pick], *_pick_arguments(place, aside, [""], holding=True))
    return rows[0]["id"] if rows else None


async def first_below(pool: Pool, place: Place, aside: Collection[int]) -> Firsts:
    """Return the first messages that are ready although a floor has left them behind: this replica has not heard of them."""
    rows = await fetch(pool, place.filter.pick.below, place.shard, place.queue_id, *place.floors.columns(), aside, *place.filter.arguments)
    firsts: Firsts = {}
    for message_id, fairness_key, rank in rows:  # of several work types, several to a level
        join(firsts, {(fairness_key, rank): message_id})
    return firsts


@dataclass(frozen=True, slots=True)
class _Terms:
    """What a statement tells beside the leases: the keys it visited (key, quantum, allowance), and on what terms it granted.

    `room` is how many leases it might grant, `served` are the slots (from 1) it might grant them to, None for all. `cut` tells that keys
    had no turn because those before them might have filled the room, `bytes` how much it took by their size, `shut` that the queue was
    changed under it, so that it granted none.
    """

    visits: list[tuple[str, int, int]] | None
    room: int
    cut: bool
    bytes: int
    limited: bool
    shut: bool
    served: list[int] | None


def _served(slots: list[tuple[int, int]], terms: _Terms, granted: list[Granted]) -> list[tuple[int, int]]:
    """Return the slots that might be filled, and note whose call is not served as its worker is draining."""
    served = slots if terms.served is None else [slots[slot - 1] for slot in terms.served]
    for call in {call for call, _ in slots} - {call for call, _ in served}:
        granted[call].drain = True
    return served


def _cut_short(slots: list[tuple[int, int]], granted: list[Granted]) -> None:
    """Note whose call has slots left that there may be messages for: those that came are too large to have more with them, or it failed."""
    for call, _ in slots:
        granted[call].short = True


async def _run(pool: Pool, place: Place, workers: list[str], aside: Collection[int], *columns: object) -> list[Row]:
    arguments = (*_pick_arguments(place, aside, workers, holding=place.limited), *columns)
    if place.limited:
        return await fetch_holding(pool, _HOLD_QUEUE, place.queue_id, CLAIMS[place.filter.pick], *arguments)
    return await fetch(pool, CLAIMS[place.filter.pick], *arguments)


def _pick_arguments(place: Place, aside: Collection[int], workers: list[str], *, holding: bool) -> tuple[object, ...]:
    rotation = place.rotation
    return (
        *(place.shard, place.queue_id, rotation.fairness_key, rotation.left, holding, aside, workers),
        *place.floors.stretches(),
        *place.filter.arguments,
    )


def _columns(claims: Sequence[Claim], slots: list[tuple[int, int]]) -> tuple[object, ...]:
    return (
        sparse([claims[call].visibility_timeout for call, _ in slots]),
        sparse([claims[call].confirm_within for call, _ in slots]),
        sparse([claims[call].claim_id for call, _ in slots]),
        [number for _, number in slots],
    )


def _taken(wanted: Filter, leased: list[Row]) -> Iterator[Taken]:
    """Sum up what was taken at each level: it comes together, and in order. Of several work types, others may have been ready before it."""
    if wanted.is_merged:
        return
    for (fairness_key, priority), rows in groupby(leased, key=itemgetter("fairness_key", "priority")):
        ids = [row["id"] for row in rows]
        yield Taken((fairness_key, -priority), len(ids), ids[-1])


def _visits(terms: _Terms, leased: list[Row]) -> list[Visit]:
    """Count what each key that was visited gave. Where large messages end it, the key that gave last goes on with what is left to it."""
    taken = Counter(row["fairness_key"] for row in leased)
    visits = [Visit(fairness_key, quantum, allowance, taken[fairness_key]) for fairness_key, quantum, allowance in terms.visits or ()]
    if terms.bytes < ANSWER_BYTES or len(leased) == terms.room:
        return visits
    return [replace(visit, allowance=visit.taken) for visit in visits if visit.fairness_key == leased[-1]["fairness_key"]]


def _more_may_be_ready(visits: list[Visit], room: int, left: int) -> bool:
    """Tell whether a statement that did not fill its room may have left messages behind.

    It goes once around the keys, but no further than the batch needs: the key whose quantum was `left`, and one key per message wanted
    beyond that. A key that gave all it was allowed may have more.
    """
    return len(visits) >= max(1, room - left) or any(visit.taken == visit.allowance for visit in visits)


async def repeated(pool: Pool, shard: int, queue_id: int, names: Collection[ClaimName]) -> dict[ClaimName, list[GrantedLease]]:
    """Return the living leases that were granted to calls of these names before."""
    found: dict[ClaimName, list[GrantedLease]] = {}
    for row in await fetch(pool, REPEATED, shard, [worker for worker, _ in names], [claim for _, claim in names], queue_id):
        found.setdefault((row["worker_id"], row["claim_id"]), []).append(GrantedLease._make(row[2:]))
    return found
