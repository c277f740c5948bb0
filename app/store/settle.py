"""What ack, nack and release share: their verdict, and the report that a refused one leaves behind."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from app.leases.outcomes import REPORT_KEPT, Fate
from app.store.database import Pool, Row, fetch
from app.store.fate import LeaseKey, fates_of

RowT = TypeVar("RowT")


class Settled(NamedTuple):
    """How the lease ended, whether by this call or before it.

    `freed` is the queue that has a place free by this call, if it limits its leases, and `ready_in` the one where its message is ready
    now, under that key and priority. `wait` is the seconds until it is, if that is later.
    """

    fate: Fate
    freed: int | None = None
    wait: float = 0.0
    ready_in: int | None = None
    fairness_key: str = ""
    priority: int = 0


# Whose newest checkpoints are kept together: a task's, or those of a message that belongs to none.
HISTORY = "coalesce('task:' || message.task_id, 'message:' || message.id)"

_REPORT = f"""
-- Locks: the messages, shared and in id order, so that none is removed under its report; its own rows.
-- Index: message_pkey, checkpoint_pkey. A report that is repeated is kept once; a result takes the place of an error.
insert into checkpoint (shard, message_id, generation, kind, history, facts)
select message.shard, message.id, report.generation, 'late_report', {HISTORY}, report.facts
from (
    select *
    from unnest($2::bigint[], $3::bigint[], $4::json[]) as report(message_id, generation, facts)
    order by report.message_id
) as report
cross join lateral (
    select * from message where message.shard = $1 and message.id = report.message_id for key share
) as message
on conflict (shard, message_id, generation, kind) do update set facts = excluded.facts
where checkpoint.facts ->> 'verb' = 'nack' and excluded.facts ->> 'verb' = 'ack'
"""

# The leases asked about that are alive, locked in the order of `asked`, which is id order.
HELD = """held as materialized (
    select asked.*, lease.shard
    from asked
    cross join lateral (
        select shard, expires_at from lease
        where lease.shard = $1 and lease.message_id = asked.message_id and lease.generation = asked.generation
        for update
    ) as lease
    where lease.expires_at > now()
)"""

# The lease's last report goes with its message.
KEEP_REPORT = "progress = coalesce(ended.progress, message.progress), detail = coalesce(ended.detail, message.detail)"


def verdicts_of(rows: Iterable[Row]) -> dict[LeaseKey, Settled]:
    return {(message_id, generation): Settled(*said) for message_id, generation, *said in rows}


async def explain(pool: Pool, shard: int, verdicts: dict[LeaseKey, Settled], leases: Iterable[LeaseKey]) -> None:
    """Add the verdict of every lease that the verb did not find alive."""
    missing = [lease for lease in leases if lease not in verdicts]
    if missing:
        verdicts |= {lease: Settled(fate) for lease, fate in (await fates_of(pool, shard, missing)).items()}


async def keep_reports(
    pool: Pool, shard: int, verdicts: Mapping[LeaseKey, Settled], rows: Mapping[LeaseKey, RowT], report_of: Callable[[RowT], str]
) -> None:
    """Keep the reports (JSON text) of those that were refused only because they came too late."""
    late = [lease for lease in rows if verdicts[lease].fate in REPORT_KEPT]
    if late:
        await fetch(pool, _REPORT, shard, [m for m, _ in late], [g for _, g in late], [report_of(rows[lease]) for lease in late])
