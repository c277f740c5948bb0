"""What ack, nack and release share: their verdict, and the report that a refused one leaves behind."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.leases.outcomes import REPORT_KEPT
from app.store.database import Pool, Row, fetch
from app.store.fate import fates_of

LeaseKey = tuple[int, int]
"""A lease within its shard: message id and generation."""


@dataclass(frozen=True, slots=True)
class Settled:
    """How the lease ended, whether by this call or before it, in the words of `app.leases.outcomes`.

    `ready_queue` is the queue that got its message back as ready, by this call.
    """

    fate: str
    ready_queue: int | None = None


_REPORT = """
-- Locks: none but its own new rows, which nobody waits for.
-- Index: checkpoint_pkey. A report that is repeated is kept once.
insert into checkpoint (shard, message_id, generation, kind, facts)
select $1, report.message_id, report.generation, 'late_report', report.facts
from unnest($2::bigint[], $3::bigint[], $4::json[]) as report(message_id, generation, facts)
order by report.message_id
on conflict do nothing
"""

# How far a lease's last report goes with its message, and its attempt is counted. Counters saturate (design rule 10).
KEEP_REPORT = "progress = coalesce(ended.progress, message.progress), detail = coalesce(ended.detail, message.detail)"
ONE_MORE_ATTEMPT = "attempt_count = least(message.attempt_count, 2147483646) + 1"
LAST_ATTEMPT = "least(message.attempt_count, 2147483646) + 1 >= coalesce(message.max_attempts, queue.max_attempts)"


def verdicts_of(rows: Iterable[Row]) -> dict[LeaseKey, Settled]:
    return {(row["message_id"], row["generation"]): Settled(row["fate"], row["ready_queue"]) for row in rows}


async def explain(pool: Pool, shard: int, verdicts: dict[LeaseKey, Settled], leases: Iterable[LeaseKey]) -> None:
    """Add the verdict of every lease that the verb did not find alive."""
    missing = [lease for lease in leases if lease not in verdicts]
    if missing:
        verdicts |= {lease: Settled(fate) for lease, fate in (await fates_of(pool, shard, missing)).items()}


async def keep_reports(pool: Pool, shard: int, verdicts: Mapping[LeaseKey, Settled], reports: Mapping[LeaseKey, str | None]) -> None:
    """Keep the reports (JSON text) of those that were refused only because they came too late."""
    late = [(lease, report) for lease, report in reports.items() if report is not None and verdicts[lease].fate in REPORT_KEPT]
    if late:
        await fetch(pool, _REPORT, shard, [m for (m, _), _ in late], [g for (_, g), _ in late], [report for _, report in late])
