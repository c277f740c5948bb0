"""Beat: extend the leases whose holders prove progress, at most once per interval (design rules 3, 4, 5)."""

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

from app.leases import outcomes
from app.store.columns import sparse
from app.store.database import Pool, fetch
from app.store.durations import seconds
from app.store.fate import LeaseKey, fates_of
from app.store.keys import key, shard_key
from app.store.times import BEAT_INTERVAL, EXTENSION

BEAT = f"""
-- Locks: the leases asked about, in id order.
-- Index: lease_pkey, queue_pkey. The update touches no indexed column, so it is heap-only.
with asked as materialized (
    select *
    from unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::json[]) as asked(message_id, generation, progress, detail)
    order by message_id
),
held as materialized (
    select asked.*, lease.shard, lease.queue_id, lease.expires_at, lease.deadline, lease.extended_at, lease.extended_progress,
           lease.confirm_timeout
    from asked
    cross join lateral (
        select * from lease
        where lease.shard = $1 and lease.message_id = asked.message_id and lease.generation = asked.generation
        for no key update
    ) as lease
),
measured as (
    select
        held.*,
        make_interval(secs => {BEAT_INTERVAL}) as beat_interval,
        now() + make_interval(secs => {EXTENSION}) as extension_end,
        now() + make_interval(secs => held.confirm_timeout) as confirmation_end,
        queue.extension_enabled and held.expires_at < held.deadline as extendable,
        held.extended_at is null
            or now() >= held.extended_at + make_interval(secs => {BEAT_INTERVAL})
            or held.expires_at - now() < make_interval(secs => {BEAT_INTERVAL}) as due,
        not queue.progress_required or coalesce(held.progress > held.extended_progress, held.progress is not null) as progressed
    from held
    join queue on {key("queue.id", "held.queue_id")}
),
judged as materialized (
    select *, progress is not null or detail is not null or confirm_timeout is not null as brings_news,
        case
            when expires_at <= now() then 'expired' when not (extendable and due) then 'held' when progressed then 'extended' else 'stalled'
        end as status
    from measured
),
beaten as (
    update lease
    set expires_at = greatest(
            lease.expires_at,
            case when judged.confirmation_end is not null then least(judged.confirmation_end, lease.deadline) end,
            case when judged.status = 'extended' then least(judged.extension_end, lease.deadline) end
        ),
        confirm_timeout = null,
        extended_at = case when judged.status = 'extended' then now() else lease.extended_at end,
        extended_progress = case when judged.status = 'extended' then coalesce(judged.progress, lease.extended_progress)
                                 else lease.extended_progress end,
        beat_at = now(),
        progress = coalesce(judged.progress, lease.progress),
        detail = coalesce(judged.detail, lease.detail)
    from judged
    where {shard_key("lease.message_id", "judged.message_id")}
      and (judged.status = 'extended' or judged.status in ('held', 'stalled') and judged.brings_news)
    returning judged.message_id, judged.generation, judged.status, judged.beat_interval,
              judged.extendable and lease.expires_at < lease.deadline,
              lease.expires_at, lease.extended_at
),
answer(message_id, generation, status, beat_interval, extendable, expires_at, extended_at) as (
    select * from beaten
    union all
    select message_id, generation, status, beat_interval, extendable, expires_at, coalesce(extended_at, now())
    from judged
    where status = 'expired' or status in ('held', 'stalled') and not brings_news
)
select
    message_id, generation, status, expires_at,
    {seconds("expires_at - now()")} as expires_in,
    case
        when status = 'stalled' then 0
        when not extendable then {seconds("expires_at - now()")}
        else greatest(0, {seconds("least(extended_at + beat_interval, expires_at - beat_interval) - now()")})
    end as next_beat_in
from answer
"""


@dataclass(slots=True)  # not frozen: that would triple what it costs to make one
class Beat:
    """One proof of work for one lease. `detail` is given as its JSON text."""

    message_id: int
    generation: int
    progress: int | None
    detail: str | None = field(repr=False)


class Beaten(NamedTuple):
    """What a beat did, in the words of the interface. The times are None if the lease is gone."""

    status: str
    expires_at: datetime | None = None
    expires_in: float | None = None
    next_beat_in: float | None = None


async def beat(pool: Pool, shard: int, beats: list[Beat]) -> list[Beaten]:
    """Beat every lease, and tell of those that no longer live how they ended."""
    merged = _merge(beats)
    rows = await fetch(
        pool,
        BEAT,
        shard,
        [each.message_id for each in merged.values()],
        [each.generation for each in merged.values()],
        sparse([each.progress for each in merged.values()]),
        sparse([each.detail for each in merged.values()]),
    )
    verdicts = {(message_id, generation): _verdict(*said) for message_id, generation, *said in rows}
    missing = [lease for lease in merged if lease not in verdicts]
    if missing:
        verdicts |= {lease: Beaten(outcomes.BEAT[fate]) for lease, fate in (await fates_of(pool, shard, missing)).items()}
    return _spread(beats, verdicts)


def _verdict(status: str, expires_at: datetime, expires_in: float, next_beat_in: float) -> Beaten:
    return Beaten(status) if status == "expired" else Beaten(status, expires_at, expires_in, next_beat_in)


def _merge(beats: list[Beat]) -> dict[LeaseKey, Beat]:
    """Make one beat of all that came for one lease."""
    merged: dict[LeaseKey, Beat] = {}
    for each in beats:
        lease = (each.message_id, each.generation)
        earlier = merged.get(lease)
        merged[lease] = each if earlier is None else _join(earlier, each)
    return merged


def _join(earlier: Beat, later: Beat) -> Beat:
    """Keep the beat that got further, the later one if both got as far, and what only the other one says."""
    behind, ahead = (later, earlier) if _reach(earlier) > _reach(later) else (earlier, later)
    return replace(ahead, progress=behind.progress if ahead.progress is None else ahead.progress, detail=ahead.detail or behind.detail)


def _reach(beat: Beat) -> int:
    return -1 if beat.progress is None else beat.progress


def _spread(beats: list[Beat], verdicts: dict[LeaseKey, Beaten]) -> list[Beaten]:
    """Answer each beat: of those that shared an extension, the first has made it and the others came within the interval, if any."""
    if len(beats) == len(verdicts):  # one each
        return [verdicts[each.message_id, each.generation] for each in beats]
    answers = []
    for each in beats:
        lease = (each.message_id, each.generation)
        verdict = verdicts[lease]
        answers.append(verdict)
        if verdict.status == "extended" and verdict.next_beat_in:
            verdicts[lease] = verdict._replace(status="held")
    return answers
