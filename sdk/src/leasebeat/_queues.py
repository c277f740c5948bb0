"""Queues, as the service describes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from leasebeat._figures import MessageCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long a message waits after a failed attempt: `initial * factor ** (attempt_count - 1)` seconds, at most `max`.

    Attributes:
        initial: Seconds after the first failed attempt. 0: ready again at once.
        factor: How many times longer each further wait is.
        max: The longest wait, in seconds.
        jitter: Wait a random part of that time, so that retries do not come in waves.
    """

    initial: float = 0.0
    factor: float = 2.0
    max: float = 900.0
    jitter: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Between which an adaptive queue's lease duration stays.

    Attributes:
        min: The shortest, in seconds.
        max: The longest, in seconds.
    """

    min: float = 10.0
    max: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedTimes:
    """What an adaptive queue has derived, in seconds.

    Attributes:
        visibility_timeout: Length of a new lease, and of an extension.
        beat_interval: A tenth of that.
        sweep_interval: A fifth of it: how often a sweep of one's own need run.
        samples: How many durations it is derived from.
    """

    visibility_timeout: float
    beat_interval: float
    sweep_interval: float
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFigures(MessageCounts):
    """A queue's messages by state, as of the last background count.

    Attributes:
        as_of: When they were counted.
    """

    as_of: datetime


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
        backoff: The wait after an attempt that was nacked without a `delay` of its own, or that ran out.
        dead_letter_queue: The queue that messages move to when they are given up. None leaves them here as `failed`.
        max_in_flight: The most leases that its messages may have at one time. None: no limit.
        retention: Seconds that finished messages are kept.
        adaptive: Whether the times are derived from how long messages have taken.
        adaptive_bounds: The bounds of a derived lease duration.
        paused: Whether no leases are granted.
        derived: What an adaptive queue has derived. None while there is nothing.
        figures: Its messages by state. None until they are first counted.
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
    backoff: Backoff
    dead_letter_queue: str | None
    max_in_flight: int | None
    retention: float
    adaptive: bool
    adaptive_bounds: Bounds
    paused: bool
    derived: DerivedTimes | None
    figures: QueueFigures | None
    created_at: datetime
    updated_at: datetime
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeResult:
    """What a purge did.

    Attributes:
        purged: How many messages were removed.
        more: True if time ran out before all were: call again.
    """

    purged: int
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveResult:
    """What a redrive did.

    Attributes:
        redriven: How many messages were sent back.
        more: True if time ran out before all were: call again.
    """

    redriven: int
    more: bool
