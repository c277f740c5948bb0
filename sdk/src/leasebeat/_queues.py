"""Queues, as the service describes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue and its configuration. Durations are seconds.

    Attributes:
        name: The queue's name.
        visibility_timeout: Length of a new lease.
        extension: How far from now an extending beat moves the expiry.
        beat_interval: At most one extension per this many seconds.
        extension_enabled: Whether beats extend at all.
        max_lease: The hard end of every lease, counted from its grant.
        max_attempts: How many attempts a message has before it is given up.
        progress_required: Whether only a beat with higher progress extends.
        weights: Share of leases per fairness key. A key that is not named has weight 1.
        created_at: When the queue was created.
        updated_at: When its configuration last changed.
        warnings: Advice on settings that work but are unlikely to be meant.
    """

    name: str
    visibility_timeout: float
    extension: float
    beat_interval: float
    extension_enabled: bool
    max_lease: float
    max_attempts: int
    progress_required: bool
    weights: Mapping[str, int]
    created_at: datetime
    updated_at: datetime
    warnings: tuple[str, ...] = ()
