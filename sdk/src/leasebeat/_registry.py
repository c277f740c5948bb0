"""The registry of workers, as the service tells about them."""

from dataclasses import dataclass
from datetime import datetime

from leasebeat._leases import ActiveLease


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A worker that has shown itself by claiming or beating.

    Attributes:
        worker_id: Its name.
        host: Where it runs, if it said so.
        version: Its version, if it said so.
        first_seen_at: When it first showed itself.
        last_seen_at: Its last sign, as noted every 15 seconds.
        silent_for: Seconds since then.
        stale: True after two minutes without a sign: it may be dead.
        draining: True if it is to stop taking work: it gets no new leases.
        held_leases: How many leases it holds: in a list, as of its `as_of`.
    """

    worker_id: str
    host: str | None
    version: str | None
    first_seen_at: datetime
    last_seen_at: datetime
    silent_for: float
    stale: bool
    draining: bool
    held_leases: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDetail(WorkerInfo):
    """A worker, with the leases that it holds now.

    Attributes:
        leases: Up to 1000 of them, by message id.
    """

    leases: tuple[ActiveLease, ...]
