"""Calls about queues."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from leasebeat._call import Call, Reply, no_result
from leasebeat._calls.lists import list_call
from leasebeat._calls.paths import queue_path
from leasebeat._queues import Backoff, Bounds, PurgeResult, Queue, RedriveResult
from leasebeat._wire import Page, build, encode, listed, without_none


def put_queue(
    queue: str,
    *,
    visibility_timeout: float | None = None,
    extension: float | None = None,
    beat_interval: float | None = None,
    extension_enabled: bool | None = None,
    max_lease: float | None = None,
    max_attempts: int | None = None,
    progress_required: bool | None = None,
    weights: Mapping[str, int] | None = None,
    backoff: Backoff | None = None,
    dead_letter_queue: str | None = None,
    max_in_flight: int | None = None,
    retention: float | None = None,
    adaptive: bool | None = None,
    adaptive_bounds: Bounds | None = None,
    paused: bool | None = None,
) -> Call[Queue]:
    """Create or reconfigure a queue. What is left out gets the service's default; `paused` stays as it is.

    Args:
        queue: The queue's name.
        visibility_timeout: Length of a new lease, in seconds.
        extension: How far from now an extending beat moves the expiry, in seconds.
        beat_interval: At most one extension per this many seconds; below half of `extension`. 0 makes each beat extend.
        extension_enabled: Whether beats extend at all.
        max_lease: The hard end of every lease, in seconds from its grant.
        max_attempts: How many attempts a message has before it is given up.
        progress_required: Whether only a beat with higher progress extends.
        weights: Share of leases per fairness key.
        backoff: The wait after an attempt that was nacked without a `delay` of its own, or that ran out.
        dead_letter_queue: The queue that messages move to when they are given up. None leaves them here as `failed`.
        max_in_flight: The most leases that its messages may have at one time. None: no limit.
        retention: Seconds that finished messages are kept.
        adaptive: Whether to derive the times from how long messages have taken.
        adaptive_bounds: The bounds of a derived lease duration.
        paused: Whether to grant no leases.

    Raises:
        InvalidRequestError: If a setting is out of range or breaks the calibration rule.
    """
    config = without_none(
        visibility_timeout=visibility_timeout,
        extension=extension,
        beat_interval=beat_interval,
        extension_enabled=extension_enabled,
        max_lease=max_lease,
        max_attempts=max_attempts,
        progress_required=progress_required,
        weights=None if weights is None else dict(weights),
        backoff=None if backoff is None else dataclasses.asdict(backoff),
        dead_letter_queue=dead_letter_queue,
        max_in_flight=max_in_flight,
        retention=retention,
        adaptive=adaptive,
        adaptive_bounds=None if adaptive_bounds is None else dataclasses.asdict(adaptive_bounds),
        paused=paused,
    )
    return Call(method="PUT", path=queue_path(queue), content=encode(config), parse=_read_queue)


def get_queue(queue: str) -> Call[Queue]:
    """Read a queue's configuration.

    Raises:
        NotFoundError: If there is no such queue.
    """
    return Call(method="GET", path=queue_path(queue), parse=_read_queue)


def list_queues(*, cursor: str | None = None, limit: int | None = None) -> Call[Page[Queue]]:
    """List the queues, by name.

    Args:
        cursor: `next_cursor` of the page before.
        limit: The most entries to return, 1 to 1000.
    """
    return list_call("/queues", Queue, cursor=cursor, limit=limit)


def delete_queue(queue: str, *, force: bool = False) -> Call[None]:
    """Delete a queue.

    Args:
        queue: The queue's name.
        force: Delete its messages with it.

    Raises:
        NotFoundError: If there is no such queue.
        ConflictError: If it is not empty and `force` is not given, is in use by another queue, or is the one that always exists.
    """
    query = {"force": "true"} if force else {}
    return Call(method="DELETE", path=queue_path(queue), query=query, parse=no_result)


def pause_queue(queue: str) -> Call[Queue]:
    """Grant no more leases of a queue's messages. Those there are go on.

    Raises:
        NotFoundError: If there is no such queue.
    """
    return Call(method="POST", path=queue_path(queue, "pause"), content=encode({}), parse=_read_queue)


def resume_queue(queue: str) -> Call[Queue]:
    """Grant leases of a queue's messages again.

    Raises:
        NotFoundError: If there is no such queue.
    """
    return Call(method="POST", path=queue_path(queue, "resume"), content=encode({}), parse=_read_queue)


def purge_queue(queue: str, statuses: str | Iterable[str] | None = None) -> Call[PurgeResult]:
    """Remove a queue's messages. Leased ones are never removed: cancel them.

    Args:
        queue: The queue's name.
        statuses: The state or states to remove: of `scheduled`, `pending`, `completed`, `failed` and `cancelled`. None: the first two.

    Raises:
        NotFoundError: If there is no such queue.
        InvalidRequestError: If `statuses` is empty or names another state.
    """
    request = without_none(statuses=listed(statuses))
    return Call(method="POST", path=queue_path(queue, "purge"), content=encode(request), parse=lambda data, _: build(PurgeResult, data))


def redrive(queue: str, *, limit: int | None = None, to: str | None = None) -> Call[RedriveResult]:
    """Send a dead-letter queue's messages back, each with a fresh budget of attempts. Leased ones stay.

    Args:
        queue: The dead-letter queue.
        limit: The most messages to send back, oldest first. None: all.
        to: The queue to send them to. None: each to where it came from.

    Raises:
        NotFoundError: If there is no such queue.
        InvalidRequestError: If `limit` is out of range.
        ServiceUnreachableError: With `maybe_processed` if messages may have been sent back.
    """
    return Call(
        method="POST",
        path=queue_path(queue, "redrive"),
        content=encode(without_none(limit=limit, to=to)),
        repeatable=limit is None,  # twice could send back twice as many
        parse=lambda data, _: build(RedriveResult, data),
    )


def _read_queue(data: Mapping[str, Any], _reply: Reply) -> Queue:
    return build(Queue, data)
