"""Messages: what is sent, and what the service tells about them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

REPLY_TO = "reply-to"
"""The header of a message that names the queue for its reply."""


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
        dedup_key: While a message that was sent to this queue with the same key is kept, none is stored; the first one is returned.
    """

    body: Any = field(repr=False)
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    priority: int | None = None
    delay: float | None = None
    fairness_key: str | None = None
    work_type: str | None = None
    task_id: str | None = None
    max_attempts: int | None = None
    dedup_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SentMessage:
    """A message that the service has stored.

    Attributes:
        id: The message's id.
        status: `pending`, or `scheduled` if it was sent with a delay.
        duplicate: True if a message with this `dedup_key` was there already: this is that one, as it is now.
    """

    id: str
    status: str
    duplicate: bool


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
        source_queue: The queue that a dead letter came from.
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
    source_queue: str | None
    progress: int | None
    detail: Any = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(LeasedMessage):
    """A message as an operator sees it.

    Attributes:
        status: `scheduled`, `pending`, `in_progress`, `completed`, `failed` or `cancelled`.
        available_at: When it is or was due to become ready.
        generation: How many leases it has had.
        failed_count: Attempts that ended by nack, of all that it ever had.
        expired_count: Attempts that ended because the lease ran out, of all that it ever had.
        released_count: Leases given back untouched; not attempts.
        unconfirmed_count: Deliveries that were never confirmed; not attempts.
        output: The result given with its ack.
        error: Why its newest attempt failed, or why it was given up.
        reason: What made it be given up: `nacked`, `not_retryable`, `lease_expired` or `unconfirmed`. Kept while it is failed or a
            dead letter.
        failed_workers: Who made its failed attempts, newest last; the last 20.
        dedup_key: The `dedup_key` that it was sent with.
        leased_at: Since when it is leased. None if it is not.
        started_at: When its newest lease was granted, also if that is over.
        finished_at: When it reached its final state.
    """

    status: str
    available_at: datetime
    generation: int
    failed_count: int
    expired_count: int
    released_count: int
    unconfirmed_count: int
    output: Any = field(repr=False)
    error: str | None
    reason: str | None
    failed_workers: tuple[str, ...]
    dedup_key: str | None
    leased_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One entry of a message's history.

    Attributes:
        kind: `error_boundary` (an attempt failed), `unconfirmed` (nobody confirmed a delivery) or `late_report` (a late result).
        reason: What ended the attempt: `nacked` or `lease_expired`.
        generation: The lease it is about.
        created_at: When it was recorded.
        facts: Of an attempt: `error`, `retry_count`, `max_retries`, `will_retry`, `worker_id`, `acquired_at`, `expires_at`,
            `last_heartbeat`. Of a late report: what it said.
    """

    kind: str
    reason: str | None
    generation: int
    created_at: datetime
    facts: Mapping[str, Any] = field(repr=False)
