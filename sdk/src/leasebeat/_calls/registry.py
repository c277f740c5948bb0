"""Calls about the registry of workers."""

from leasebeat._call import Call, no_result
from leasebeat._calls.lists import list_call
from leasebeat._calls.paths import worker_path
from leasebeat._registry import WorkerDetail, WorkerInfo
from leasebeat._wire import Page, build, encode


def list_workers(*, cursor: str | None = None, limit: int | None = None) -> Call[Page[WorkerInfo]]:
    """List the workers, by name. The page says `as_of` when their leases were counted.

    Args:
        cursor: `next_cursor` of the page before.
        limit: The most entries to return.
    """
    return list_call("/workers", WorkerInfo, cursor=cursor, limit=limit)


def get_worker(worker_id: str) -> Call[WorkerDetail]:
    """Read a worker, with the leases that it holds now.

    Raises:
        NotFoundError: If there is no such worker.
    """
    return Call(method="GET", path=worker_path(worker_id), parse=lambda data, _: build(WorkerDetail, data))


def drain_worker(worker_id: str, *, draining: bool = True) -> Call[WorkerInfo]:
    """Give a worker no new leases, and tell it so in its next claim or beat.

    Args:
        worker_id: The worker's name.
        draining: False lets it take work again.

    Raises:
        NotFoundError: If there is no such worker.
    """
    return Call(
        method="POST",
        path=worker_path(worker_id, "drain"),
        content=encode({"draining": draining}),
        parse=lambda data, _: build(WorkerInfo, data),
    )


def delete_worker(worker_id: str) -> Call[None]:
    """Remove a worker from the registry, and release its leases.

    Raises:
        NotFoundError: If there is no such worker.
    """
    # Not repeated by itself: a worker that has come back by then would lose its new leases too.
    return Call(method="DELETE", path=worker_path(worker_id), repeatable=False, parse=no_result)
