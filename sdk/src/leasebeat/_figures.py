"""Figures: what the service counts in the background, and what its recovery sweeps have done."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageCounts:
    """How many messages there are, by state.

    Attributes:
        scheduled: Delayed, or waiting out a backoff.
        pending: Ready to be leased.
        in_progress: Leased.
        completed: Acked, and still kept.
        failed: Given up, and still kept.
        cancelled: Cancelled, and still kept.
    """

    scheduled: int
    pending: int
    in_progress: int
    completed: int
    failed: int
    cancelled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseHealth:
    """How the active leases are.

    Attributes:
        active: Leases that have not been settled or reclaimed.
        stale: Of these: no sign of life for two minutes.
        overdue: Of these: run out, and not reclaimed yet.
    """

    active: int
    stale: int
    overdue: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryCount:
    """How many finished messages had how many failed attempts.

    Attributes:
        attempt_count: Failed attempts.
        completed: Completed messages with so many.
        failed: Failed messages with so many.
    """

    attempt_count: int
    completed: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Figures, counted in the background.

    Attributes:
        as_of: When they were counted. None before the first count.
        refresh: About how many seconds pass between two counts: more if counting takes long.
        leases: Lease health.
        messages: Messages by state.
        retries: Retry distribution of the finished messages, by `attempt_count`.
    """

    as_of: datetime | None
    refresh: float
    leases: LeaseHealth
    messages: MessageCounts
    retries: tuple[RetryCount, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryStats:
    """What one sweep did.

    Attributes:
        expired_found: Leases that had run out.
        recovered: Messages that went back to their queue.
        failed: Messages that were given up, dead letters included.
        checkpoints_created: Entries added to histories.
        errors: Rows that the database refused.
        scan_duration_ms: How long the sweep took, in milliseconds.
    """

    expired_found: int
    recovered: int
    failed: int
    checkpoints_created: int
    errors: int
    scan_duration_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LastScan(RecoveryStats):
    """The last sweep of a replica's timer or on demand.

    Attributes:
        ended_at: When it ended.
    """

    ended_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What the sweeps of all replicas have done since the database was made. Each sweep is counted once.

    Attributes:
        is_running: Whether the timer of the replica that answered keeps up.
        total_scans: Sweeps.
        total_expired: Leases that had run out.
        total_recovered: Messages that went back to their queue.
        total_failed: Messages that were given up, dead letters included.
        total_checkpoints: Entries added to histories.
        total_errors: Rows that the database refused.
        recovery_rate: Recovered messages, as a share of recovered and failed ones. None if there are none.
        last_scan: The newest sweep that has been counted. None before the first.
        as_of: Up to when all replicas' sweeps are counted, give or take five seconds.
    """

    is_running: bool
    total_scans: int
    total_expired: int
    total_recovered: int
    total_failed: int
    total_checkpoints: int
    total_errors: int
    recovery_rate: float | None
    last_scan: LastScan | None
    as_of: datetime
