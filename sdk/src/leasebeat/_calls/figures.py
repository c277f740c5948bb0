"""Calls about figures and recovery."""

from leasebeat._call import Call
from leasebeat._figures import Recovery, RecoveryStats, Stats
from leasebeat._wire import build, encode, without_none


def stats(queue: str | None = None) -> Call[Stats]:
    """Read lease health, messages by state and the retry distribution, as of the last background count.

    Args:
        queue: Only this queue's. None: those of all queues.

    Raises:
        NotFoundError: If there is no such queue.
    """
    return Call(method="GET", path="/stats", query=without_none(queue=queue), parse=lambda data, _: build(Stats, data))


def sweep() -> Call[RecoveryStats]:
    """Reclaim the leases that have run out, now. The service does so by itself; this is for who wants to see it done."""
    return Call(method="POST", path="/recovery/sweep", content=encode({}), parse=lambda data, _: build(RecoveryStats, data))


def recovery() -> Call[Recovery]:
    """Read what all sweeps have done."""
    return Call(method="GET", path="/recovery", parse=lambda data, _: build(Recovery, data))
