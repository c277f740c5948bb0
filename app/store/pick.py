"""Pick: which ready messages a claim takes: by turns among fairness keys, then by priority, then by age.

All, or those that pass a filter. The arguments are $1 shard, $2 queue, $3 the key whose turn it is and $4 what is left of it, $5 whether
the queue's row is held, $6 messages set aside, $7 the worker of each slot, $8 to $12 the stretches of the index to look into
(`app/leases/floors.py`), then the filter's.
"""

from dataclasses import dataclass

from app.store.keys import shard_key
from app.store.sending import size_of
from app.store.times import BEAT_INTERVAL, EXTENSION, VISIBILITY_TIMEOUT

ANSWER_BYTES = 8 * 1024 * 1024
"""When the bodies and headers of the messages picked are so large together, the rest stays ready: an answer must fit into memory."""

_READY = "message.shard = $1 and message.queue_id = $2 and message.status = 'pending'"
# The same for claims with a filter, worded as their indexes are. `message_ready` does not fit this wording: in order of keys like them, it
# would at times seem as good, and all that passes no filter would be read in vain.
_FILTERED = "message.shard = $1 and message.queue_id = $2 and message.status between 'pending' and 'pending'"
# And once more for a work type and a task together, so that neither of the indexes for one of them is taken.
_FILTERED_TWICE = "message.shard = $1 and message.queue_id = $2 and message.status > 'in_progress' and message.status < 'scheduled'"
_SIZE = f"coalesce(message.size, {size_of('message')})::int"
_PICK_ARGUMENTS = 12
_BELOW_ARGUMENTS = 6
_TIMES = {"visibility_timeout": VISIBILITY_TIMEOUT, "extension": EXTENSION, "beat_interval": BEAT_INTERVAL}

_PICK = """
-- Locks: the messages picked, skipping those in other hands; and the queue, shared, after the first of them. Who changes it or counts its
-- leases keeps that waiting, for moments.
-- Index: {index}, by one probe per fairness key (loose index scan) and one range per key visited, in each stretch; message_pkey;
-- queue_pkey; worker_draining; lease_of_worker, to count the leases of a queue that limits them.
-- No row is read that is not ready. `visited` starts at the key whose turn it is and goes once around, no further than the batch needs.
with recursive offer as materialized (
    -- The queue, the slots of the workers that are to be served, and how many leases may be granted now.
    select
        queue.max_attempts, queue.max_in_flight, queue.max_lease,
        queue.weights || '{{}}' as weights,  -- fetched from where they are stored once, not for each key
        {visibility_timeout} as lease_length, {extension} as extension_length, {beat_interval} as beat_every, asked.slots,
        case
            when queue.paused then 0
            when queue.max_in_flight is null then cardinality(asked.slots)
            when not $5::bool then 0  -- only who holds the queue's row may count its leases
            else least(cardinality(asked.slots), greatest(0, queue.max_in_flight - (
                select count(*) from lease where lease.shard = $1 and lease.queue_id = $2 and lease.generation > 0
            )))
        end as room
    from queue
    cross join lateral (
        select array(
            select slot::int
            from unnest($7::text[]) with ordinality as asked(worker_id, slot)
            where worker_id <> all(array(
                select worker.worker_id from worker where worker.draining and worker.worker_id = any($7::text[])
            ))
            order by slot
        ) as slots
        offset 0  -- looked up once, however often it is spoken of
    ) as asked
    where queue.id = $2
),
stretch as materialized (
    select first_key collate "C", end_key collate "C", first_rank, first_id, end_rank
    from unnest($8::text[], $9::text[], $10::int[], $11::bigint[], $12::int[])
         with ordinality as stretch(first_key, end_key, first_rank, first_id, end_rank, nth)
    order by nth
),
visited(fairness_key, lap, position, weight) as (
    select $3::text collate "C", 0, 0, 0::bigint from offer where offer.room > 0
    union all
    select next.fairness_key, next.lap, visited.position + 1, coalesce((offer.weights ->> next.fairness_key)::bigint, 1)
    from visited
    join offer on visited.position < offer.room - $4::bigint
    cross join lateral (
        (select found.fairness_key, visited.lap from {later_key} as found)
        union all
        (select found.fairness_key, 1 from {first_key} as found where visited.lap = 0)
        limit 1
    ) as next(fairness_key, lap)
    where next.lap = 0 or next.fairness_key <= $3
),
lap as (
    select fairness_key, position, weight, room, greatest(0, room - $4) as rest, greatest(1, sum(weight) over ())::bigint as length,
           (sum(weight) over (order by position) - weight)::bigint as before
    from offer
    cross join visited
),
shares as (
    -- What is left of the turn, then whole laps, then the part of one that fills the room: its last key may keep something for next time.
    select
        fairness_key, position, position > 0 and rest % length > before as again,
        case position when 0 then least($4, room) else weight * (rest / length) + least(weight, greatest(0, rest % length - before)) end
            as allowance,
        case position when 0 then $4 else weight * (rest / length + (rest % length > before)::int) end as quantum
    from lap
),
turn as materialized (
    -- The key whose turn it is comes by twice if the rotation goes all around: for the rest of its quantum, and for a new one.
    select fairness_key, bool_or(again) as again, max(position) as position,
           sum(quantum)::bigint as quantum, sum(allowance)::bigint as allowance
    from shares
    where allowance > 0
    group by fairness_key
),
picked as materialized (
    select shard, id, nth, bytes
    from (
        select ready.*, row_number() over so_far as nth, sum(ready.size) over so_far as bytes
        from (select * from turn order by again, position) as turn
        cross join lateral ({ready}) as ready
        window so_far as (rows unbounded preceding)
    ) as ready
    where bytes - size < {answer_bytes}
)
"""


# What the floors have left behind: the first message of each level. The arguments are $1 shard, $2 queue, $3 to $5 the floors, $6 messages
# set aside, then the filter's.
_BELOW = """
-- Locks: none that lasts; what a claim has in hand is passed over.
-- Index: {index}, by a range from the front of each floored level to its floor: all that has died there and is not cleared away is walked.
select found.id, floor.fairness_key, floor.rank
from unnest($3::text[], $4::int[], $5::bigint[]) as floor(fairness_key, rank, message_id)
{wanted}
cross join lateral (
    select message.id
    from message
    where {ready} and message.fairness_key = floor.fairness_key and -message.priority::int between floor.rank and floor.rank
      and message.id <= floor.message_id and message.id <> all($6::bigint[])
    order by -message.priority::int, message.id  -- as only the one index has it
    limit 1
    for update skip locked
) as found
"""


@dataclass(frozen=True, slots=True, eq=False)
class Pick:
    """The beginning of a statement, how many arguments it has, and the statement that looks below the floors."""

    sql: str
    arguments: int
    below: str


def _pick(index: str, ready: str, filters: int) -> Pick:
    """Make the pick of messages for as many slots as may be filled, by turns.

    `ready` is the condition that `index` serves. It names the filter's arguments, of which there are so many.
    """
    condition = ready.format(*_numbers(_PICK_ARGUMENTS, filters))
    sql = _PICK.format(
        **_TIMES,
        answer_bytes=ANSWER_BYTES,
        index=index,
        first_key=_first_key(condition),
        later_key=_later_key(condition),
        ready=_of_turn(condition, "turn.allowance", "for update skip locked"),
    )
    return Pick(
        sql, _PICK_ARGUMENTS + filters, _BELOW.format(index=index, wanted="", ready=ready.format(*_numbers(_BELOW_ARGUMENTS, filters)))
    )


def _pick_by_type(index: str, ready: str, filters: int) -> Pick:
    """Make the same for messages of any of several work types. Their index ranges are merged, and locked in that order."""
    ready = f"{ready} and message.work_type = wanted.work_type"
    wanted = "unnest({0}::text[]) as wanted(work_type)"
    numbers = _numbers(_PICK_ARGUMENTS, filters)
    condition, types = ready.format(*numbers), wanted.format(*numbers)
    key = f"""(
            select found.fairness_key
            from {types}
            cross join lateral {{}} as found
            order by found.fairness_key
            limit 1
        )"""
    sql = _PICK.format(
        **_TIMES,
        answer_bytes=ANSWER_BYTES,
        index=index,
        first_key=key.format(_first_key(condition)),
        later_key=key.format(_later_key(condition)),
        ready=f"""
        select message.shard, message.id, candidate.size
        from (
            select candidate.*
            from {types}
            cross join lateral ({_of_turn(condition, "2 * turn.allowance + 10")}) as candidate  -- the first ones may be in other hands
            order by candidate.rank, candidate.id
        ) as candidate
        join message on {shard_key("message.id", "candidate.id")}
        where case message.status when 'pending' then message.queue_id = $2 end  -- still, as locked; in a form that no index is looked for
        order by candidate.rank, candidate.id
        limit turn.allowance
        for update of message skip locked
    """,
    )
    numbers = _numbers(_BELOW_ARGUMENTS, filters)
    below = _BELOW.format(index=index, wanted=f"cross join {wanted.format(*numbers)}", ready=ready.format(*numbers))
    return Pick(sql, _PICK_ARGUMENTS + filters, below)


def _numbers(others: int, filters: int) -> list[str]:
    """Return the filter's arguments by number: they stand behind the others."""
    return [f"${number}" for number in range(others + 1, others + 1 + filters)]


def _first_key(ready: str) -> str:
    return _key(ready, "stretch.first_key")


def _later_key(ready: str) -> str:
    return _key(ready, r"greatest(stretch.first_key, visited.fairness_key || E'\x01')")


def _key(ready: str, first: str) -> str:
    """Return the first key, from `first` on, that has a ready message, looked for in each stretch until there is one.

    A comparison of rows would bound where the index is read from, but not how far: that is left to conditions on single columns.
    """
    return f"""(
            select found.fairness_key
            from stretch
            cross join lateral (
                (
                    select message.fairness_key
                    from message
                    where stretch.first_rank is null
                      and {ready} and message.fairness_key >= {first} and message.fairness_key < stretch.end_key
                    order by message.fairness_key
                    limit 1
                )
                union all
                (
                    select message.fairness_key
                    from message
                    where stretch.first_rank is not null
                      and {ready} and message.fairness_key = stretch.first_key
                      and (-message.priority::int, message.id) > (stretch.first_rank, stretch.first_id)
                      and -message.priority::int < stretch.end_rank
                    order by -message.priority::int, message.id
                    limit 1
                )
            ) as found
            where stretch.end_key > {first}
            limit 1
        )"""


def _of_turn(ready: str, most: str, locking: str = "") -> str:
    """Return up to `most` ready messages of the key whose `turn` it is, in order, from the stretches that it is in."""
    return f"""
        select ready.*
        from stretch
        cross join lateral (
            select message.shard, message.id, -message.priority::int as rank, {_SIZE} as size
            from message
            where {ready} and message.fairness_key = turn.fairness_key and message.id <> all($6::bigint[])
              and (-message.priority::int, message.id) > (coalesce(stretch.first_rank, -32768), coalesce(stretch.first_id, 0))
              and -message.priority::int < coalesce(stretch.end_rank, 32769)
            order by -message.priority::int, message.id
            limit {most}
            {locking}
        ) as ready
        where turn.fairness_key >= stretch.first_key and turn.fairness_key < stretch.end_key
        limit {most}
    """


PICK_ANY = _pick("message_ready", _READY, 0)
PICK_BY_TYPE = _pick_by_type("message_ready_by_type", _FILTERED, 1)
PICK_BY_TASK = _pick("message_ready_by_task", f"{_FILTERED} and message.task_id = {{0}}", 1)
PICK_BY_BOTH = _pick_by_type("message_ready_by_both", f"{_FILTERED_TWICE} and message.task_id = {{1}}", 2)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which messages a call is for: those of any of these work types, of this task, or both."""

    work_types: tuple[str, ...] | None = None
    task_id: str | None = None

    @property
    def is_merged(self) -> bool:
        """Whether what passes stands in several ranges of an index, of which a claim sees the beginnings."""
        return self.work_types is not None and len(self.work_types) > 1

    @property
    def pick(self) -> Pick:
        if self.task_id is None:
            return PICK_ANY if self.work_types is None else PICK_BY_TYPE
        return PICK_BY_TASK if self.work_types is None else PICK_BY_BOTH

    @property
    def arguments(self) -> tuple[object, ...]:
        return tuple(each for each in (self.work_types, self.task_id) if each is not None)


ANYTHING = Filter()
