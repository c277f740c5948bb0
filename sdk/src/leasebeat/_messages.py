"""Messages: what is sent, and what the service tells about them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class NewMessage:
    """One message to send.

    Attributes:
        body: The work: any JSON value of at most 256 KiB.
        headers: Up to 50 short strings for the worker, for example a `traceparent`.
        priority: Higher is leased first, within its fairness key.
        delay: Seconds before the message becomes ready.
        fairness_key: The tenant or flow it belongs to. Leases are shared out among keys.
        work_type: What kind of work it is.
        task_id: The larger task that it is part of.
        max_attempts: Its own limit of attempts. None takes the queue's.
    """

    body: Any = field(repr=False)
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    priority: int | None = None
    delay: float | None = None
    fairness_key: str | None = None
    work_type: str | None = None
    task_id: str | None = None
    max_attempts: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SentMessage:
    """A message that the service has stored.

    Attributes:
        id: The message's id.
        status: `pending`, or `scheduled` if it was sent with a delay.
    """

    id: str
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedMessage:
    """A message as its worker sees it.

    Attributes:
        id: The message's id.
        queue: The queue it is in.
        body: The work: equal to what was sent, as far as 64-bit floats go.
        headers: The headers it was sent with.
        priority: Higher is leased first.
        fairness_key: The tenant or flow it belongs to.
        work_type: What kind of work it is.
        task_id: The larger task that it is part of.
        created_at: When it was sent.
        attempt_count: How many attempts ended by nack or by running out, so far.
        max_attempts: At this many it is given up.
        progress: The last progress that a lease of it reported.
        detail: The last detail that a lease of it reported, so that work can resume there.
    """

    id: str
    queue: str
    body: Any = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    priority: int
    fairness_key: str
    work_type: str | None
    task_id: str | None
    created_at: datetime
    attempt_count: int
    max_attempts: int
    progress: int | None
    detail: Any = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(LeasedMessage):
    """A message as an operator sees it.

    Attributes:
        status: `scheduled`, `pending`, `in_progress`, `completed`, `failed` or `cancelled`.
        available_at: When it is or was due to become ready.
        generation: How many leases it has had.
        nacked_count: Attempts that ended by nack.
        expired_count: Attempts that ended because the lease ran out.
        released_count: Leases given back untouched; not attempts.
        unconfirmed_count: Deliveries that were never confirmed; not attempts.
        output: The result given with its ack.
        error: Why its newest attempt failed, or why it was given up.
        finished_at: When it reached its final state.
    """

    status: str
    available_at: datetime
    generation: int
    nacked_count: int
    expired_count: int
    released_count: int
    unconfirmed_count: int
    output: Any = field(repr=False)
    error: str | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One entry of a message's history.

    Attributes:
        kind: `nacked`, `lease_expired`, `unconfirmed` or `late_report`.
        generation: The lease it is about.
        created_at: When it was recorded.
        facts: The holder, the lease's times, the error or the late result.
    """

    kind: str
    generation: int
    created_at: datetime
    facts: Mapping[str, Any] = field(repr=False)
