"""Leases, and the service's verdicts on calls that name one.

A receipt proves ownership, so it never shows in a `repr`. Times that end in `_until` are on `time.monotonic()`: they
count from the moment the request was sent, not from its answer, so that they do not lie after the service's own deadline.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Self, TypeVar

from leasebeat._errors import is_refusal, verdict_error
from leasebeat._messages import LeasedMessage

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to work on one message, until it expires.

    Attributes:
        receipt: Names this lease in every later call. Keep it secret.
        generation: 1 for the message's first lease, 2 for its second: the fencing token.
        attempt: 1 on the first attempt.
        message: The message.
        expires_at: When the lease expires, by the service's clock. For people.
        expires_in: Seconds until then, when the service answered.
        deadline_in: Seconds until the hard end, which no beat moves, when the service answered.
        beat_interval: At most one beat per this many seconds extends.
        extension: How many seconds from now an extending beat moves the expiry.
        valid_until: Until when it is safe to work, on `time.monotonic()`, if no beat extends the lease.
    """

    receipt: str = field(repr=False)
    generation: int
    attempt: int
    message: LeasedMessage
    expires_at: datetime
    expires_in: float
    deadline_in: float
    beat_interval: float
    extension: float
    valid_until: float

    def remaining(self) -> float:
        """Seconds left to work if no beat extends the lease; 0 or less once it has run out."""
        return self.valid_until - time.monotonic()

    @property
    def work_item_id(self) -> str:
        """The message's id, as a `LeaseManager` takes it."""
        return self.message.id

    @property
    def input_data(self) -> Any:
        """The message's body: the work."""
        return self.message.body


LeaseRef = Lease | str
"""A lease, or the receipt of one."""


def receipt_of(lease: LeaseRef) -> str:
    """The receipt that names a lease."""
    return lease.receipt if isinstance(lease, Lease) else lease


def message_id_of(lease: LeaseRef) -> str | None:
    """The message of a lease, where it is known."""
    return lease.message.id if isinstance(lease, Lease) else None


# --- items of calls that take many ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Beat:
    """One lease to beat for.

    Attributes:
        lease: The lease or its receipt.
        progress: How much real work is done: any number that grows with it.
        detail: Where the work stands: any JSON value of at most 8 KiB.
    """

    lease: LeaseRef = field(repr=False)
    progress: int | None = None
    detail: Any = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Ack:
    """One lease whose work is done.

    Attributes:
        lease: The lease or its receipt.
        output: The result: any JSON value of at most 256 KiB.
    """

    lease: LeaseRef = field(repr=False)
    output: Any = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Nack:
    """One lease whose work failed.

    Attributes:
        lease: The lease or its receipt.
        error: What went wrong.
        delay: Seconds before the message becomes ready again. None takes the queue's backoff.
        retryable: False gives the message up at once.
    """

    lease: LeaseRef = field(repr=False)
    error: str | None = None
    delay: float | None = None
    retryable: bool = True


# --- verdicts ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the service says about one lease of a call.

    Attributes:
        receipt: The receipt asked about.
        status: The verdict in a word.
        successes: The words that say that the call did what it was for. What is neither among them nor refused failed, and may
            be repeated: `error` is the service's word for a lease whose row the database refused.
    """

    successes: ClassVar[frozenset[str]] = frozenset()

    receipt: str = field(repr=False)
    status: str

    @property
    def succeeded(self) -> bool:
        """Whether the call did what it was for."""
        return self.status in self.successes

    @property
    def refused(self) -> bool:
        """Whether the lease was over: `expired`, `lost`, `settled`, `cancelled` or `unknown`."""
        return is_refusal(self.status)

    def raise_if_refused(self, message_id: str | None = None) -> None:
        """Raise the reason unless the call succeeded.

        Raises:
            LeaseLostError: The subclass for the status, if the lease was over.
            ServerError: If the service could not say, or could not do it; code `row-refused` if its database refused.
        """
        if not self.succeeded:
            raise verdict_error(self.status, message_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatResult(Verdict):
    """What a beat did: `extended`, `held` (within the interval), `stalled` (no progress), or why not.

    Attributes:
        expires_at: When the lease expires, by the service's clock. None if it is over.
        expires_in: Seconds until then, when the service answered. None if it is over.
        next_beat_in: Seconds until a beat can extend again. None if it is over.
        valid_until: Until when it is safe to work, on `time.monotonic()`. None if it is over.
    """

    successes: ClassVar[frozenset[str]] = frozenset({"extended", "held", "stalled"})

    expires_at: datetime | None = None
    expires_in: float | None = None
    next_beat_in: float | None = None
    valid_until: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AckResult(Verdict):
    """What an ack did: `acked`, or why not.

    Attributes:
        late: True if the lease had run out, but nobody had leased the message since.
    """

    successes: ClassVar[frozenset[str]] = frozenset({"acked"})

    late: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NackResult(Verdict):
    """What a nack did: `requeued`, `failed`, `dead_lettered` (given up, and moved to the dead-letter queue), or why not."""

    successes: ClassVar[frozenset[str]] = frozenset({"requeued", "failed", "dead_lettered"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseResult(Verdict):
    """What a release did: `released`, or why not."""

    successes: ClassVar[frozenset[str]] = frozenset({"released"})


# --- answers that also tell a worker to drain -------------------------------------------------------------------------


class _Drainable(tuple[T, ...]):  # noqa: SLOT001 - a tuple takes no slots with values
    """Results in order, with the service's word on whether the worker is to take more."""

    drain: bool
    """True if the worker is to stop taking work: it gets no new leases."""

    def __new__(cls, results: Iterable[T] = (), *, drain: bool = False) -> Self:
        made = super().__new__(cls, results)
        made.drain = drain
        return made


class Leases(_Drainable[Lease]):
    """The leases that a claim was granted: a tuple, with `drain` beside it."""


class BeatResults(_Drainable[BeatResult]):
    """The verdicts on beats, in order: a tuple, with `drain` beside it."""


# --- what operators see -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveLease:
    """A lease as an operator sees it.

    Attributes:
        message_id: The message it is for.
        queue: The message's queue.
        worker_id: Who holds it.
        generation: Its number among the message's leases.
        acquired_at: When it was granted.
        expires_at: When it expires.
        expires_in: Seconds until it expires; 0 or less once it has.
        expired: Whether it has run out, reclaimed or not.
        last_beat_at: The last beat that changed it.
        since_beat: Seconds since then; without a beat, since it was granted.
        overdue: Seconds since it expired; 0 if it has not.
        progress: The last progress reported.
        detail: The last detail reported.
    """

    message_id: str
    queue: str
    worker_id: str
    generation: int
    acquired_at: datetime
    expires_at: datetime
    expires_in: float
    expired: bool
    last_beat_at: datetime | None
    since_beat: float
    overdue: float
    progress: int | None
    detail: Any = field(repr=False)
