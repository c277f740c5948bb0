"""What ack, nack and release share: how they settle, their verdict, and the report that a refused one leaves behind.

What a verb's own statement has done is committed, whatever becomes of those that follow. So whoever waits for it is told at once, and
only those leases that a later statement is about can come to grief by it.
"""

from collections.abc import Awaitable, Callable, Container, Mapping
from typing import NamedTuple, TypeAlias, TypeVar

from app.leases.outcomes import REPORT_KEPT, Fate
from app.store.coalescer import OrFault, isolate
from app.store.database import Pool, fetch
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


Verdicts: TypeAlias = dict[LeaseKey, OrFault[Settled]]

OnSettled: TypeAlias = Callable[[Mapping[LeaseKey, Settled]], None]
"""Hears how leases have ended by a call, as soon as that is committed."""

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


async def settle(pool: Pool, shard: int, leases: list[LeaseKey], on_settled: OnSettled, statement: str, *columns: object) -> Verdicts:
    """Run a verb's statement, which ends the leases that live, and find out how the others ended."""

    async def explain(some: list[LeaseKey]) -> Verdicts:
        return {lease: Settled(fate) for lease, fate in (await fates_of(pool, shard, some)).items()}

    rows = await fetch(pool, statement, shard, [message_id for message_id, _ in leases], [generation for _, generation in leases], *columns)
    ended = {(message_id, generation): Settled(*said) for message_id, generation, *said in rows}
    on_settled(ended)
    return ended | await apart("explain", [lease for lease in leases if lease not in ended], explain)


async def keep_reports(
    pool: Pool, shard: int, verdicts: Verdicts, rows: Mapping[LeaseKey, RowT], report_of: Callable[[RowT], str]
) -> Verdicts:
    """Keep the reports (JSON text) of those that were refused only because they came too late. Who is told so has had it kept."""

    async def keep(some: list[LeaseKey]) -> Verdicts:
        await fetch(pool, _REPORT, shard, [m for m, _ in some], [g for _, g in some], [report_of(rows[lease]) for lease in some])
        return verdicts

    return verdicts | await apart("report", ended_by(REPORT_KEPT, verdicts), keep)


def ended_by(fates: Container[Fate], verdicts: Verdicts) -> list[LeaseKey]:
    """Return the leases that have ended in one of these ways."""
    return [lease for lease, verdict in verdicts.items() if isinstance(verdict, Settled) and verdict.fate in fates]


async def apart(verb: str, leases: list[LeaseKey], run: Callable[[list[LeaseKey]], Awaitable[Verdicts]]) -> Verdicts:
    """Run one more statement for some of the leases, and return their verdicts: if it fails, nobody else's do."""

    async def listed(some: list[LeaseKey]) -> list[OrFault[Settled]]:
        verdicts = await run(some)
        return [verdicts[lease] for lease in some]

    return dict(zip(leases, await isolate(verb, leases, listed), strict=True)) if leases else {}
