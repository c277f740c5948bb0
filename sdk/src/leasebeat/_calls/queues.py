"""Calls about queues."""

from collections.abc import Mapping
from typing import Any

from leasebeat._call import Call
from leasebeat._calls.paths import queue_path
from leasebeat._queues import Queue
from leasebeat._wire import Page, build, build_page, encode, without_none


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
) -> Call[Queue]:
    """Create or reconfigure a queue. What is left out gets the service's default.

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
    )
    return Call(method="PUT", path=queue_path(queue), content=encode(config), parse=lambda data, _: _queue(data))


def get_queue(queue: str) -> Call[Queue]:
    """Read a queue's configuration.

    Raises:
        NotFoundError: If there is no such queue.
    """
    return Call(method="GET", path=queue_path(queue), parse=lambda data, _: _queue(data))


def list_queues(*, cursor: str | None = None, limit: int | None = None) -> Call[Page[Queue]]:
    """List the queues, by name.

    Args:
        cursor: `next_cursor` of the page before.
        limit: The most entries to return, 1 to 1000.
    """
    query = without_none(cursor=cursor, limit=None if limit is None else str(limit))
    return Call(method="GET", path="/queues", query=query, parse=lambda data, _: build_page(_queue, data))


def delete_queue(queue: str, *, force: bool = False) -> Call[None]:
    """Delete a queue.

    Args:
        queue: The queue's name.
        force: Delete its messages with it.

    Raises:
        NotFoundError: If there is no such queue.
        ConflictError: If it is not empty and `force` is not given, or is the queue that always exists.
    """
    query = {"force": "true"} if force else {}
    return Call(method="DELETE", path=queue_path(queue), query=query, parse=lambda _data, _reply: None)


def _queue(data: Mapping[str, Any]) -> Queue:
    return build(Queue, data, warnings=tuple(data.get("warnings", ())))
