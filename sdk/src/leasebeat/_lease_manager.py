"""`LeaseManager`: leases by the ids of their messages, for code that knows its worker and its work item, and no receipts."""

import threading
import time
import weakref
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from leasebeat._client import Client
from leasebeat._errors import LeaseLostError, lease_error
from leasebeat._fork import reset_in_child
from leasebeat._leases import Ack, Beat, BeatResult, Lease, Nack, Verdict
from leasebeat._unanswered import Unanswered

KEPT_S = 3600.0
"""How long after its end a lease is remembered, in seconds, as a late result of it may still be taken."""
FEW = 100
"""So many leases are not tidied up. Beyond, that is done when they have doubled, so that each costs the same."""

_STATUS_OF_LEASE = {"in_progress": "lost", "completed": "settled", "cancelled": "cancelled"}


@dataclass(slots=True, eq=False)
class AcquiredLease:
    """What later calls need of a lease: not the work itself.

    Attributes:
        granted: The lease as it was granted, without the work.
        valid_until: Until when it is safe to work, on `time.monotonic()`, as far as answered beats say.
        settling: Whether its settlement is under way or done: that the lease is over is then no news.
    """

    granted: Lease
    valid_until: float
    settling: bool = False

    @property
    def receipt(self) -> str:
        """Names the lease."""
        return self.granted.receipt

    @property
    def message_id(self) -> str:
        """The message it is for."""
        return self.granted.message.id

    @property
    def lease(self) -> Lease:
        """The lease as it stands, so that calls for it know how long it lasts."""
        return replace(self.granted, valid_until=self.valid_until)

    def remaining(self) -> float:
        """Seconds until the local deadline."""
        return self.valid_until - time.monotonic()

    def beat(self, client: Client, *, worker_id: str, progress: int | None, detail: Any) -> BeatResult:
        """Beat, and take over until when the lease is valid.

        Raises:
            LeaseExpiredError: Also if the answer was read too late, as the process may have stood still meanwhile.
            LeasebeatError: As `Client.beat` says.
        """
        (result,) = client.beat_many([Beat(self.lease, progress, detail)], worker_id=worker_id)
        result.raise_if_refused(self.message_id)
        if result.valid_until is not None:
            self.valid_until = max(self.valid_until, result.valid_until)  # of two answers, the older one may come last
        if self.remaining() <= 0:
            raise lease_error("expired", self.message_id)
        return result


class _Memory:
    """Leases that are neither settled nor refused, the newest one of each message."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leases: dict[str, AcquiredLease] = {}
        self._tidy_at = FEW
        reset_in_child(self)

    def add(self, lease: AcquiredLease) -> None:
        with self._lock:
            if len(self._leases) >= self._tidy_at:
                self._leases = {message_id: each for message_id, each in self._leases.items() if each.remaining() > -KEPT_S}
                self._tidy_at = max(FEW, 2 * len(self._leases))
            self._leases[lease.message_id] = lease

    def find(self, message_id: str) -> AcquiredLease | None:
        return self._leases.get(message_id)

    def forget(self, lease: AcquiredLease) -> None:
        """Drop a lease, but not a newer one of its message."""
        with self._lock:
            if self._leases.get(lease.message_id) is lease:
                del self._leases[lease.message_id]

    def after_fork(self) -> None:
        self._lock = threading.Lock()


class _Memories:
    """One memory per client and worker id, for as long as the client lives."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_client: weakref.WeakKeyDictionary[Client, dict[str, _Memory]] = weakref.WeakKeyDictionary()
        reset_in_child(self)

    def of(self, client: Client, worker_id: str) -> _Memory:
        with self._lock:
            return self._by_client.setdefault(client, {}).setdefault(worker_id, _Memory())

    def after_fork(self) -> None:
        self._lock = threading.Lock()


_memories = _Memories()


class LeaseManager:
    """Acquires, renews and releases leases of work items, which are messages. Safe to share between threads.

    Example::

        manager = LeaseManager(client, "worker-1")
        if lease := manager.acquire_lease():
            try:
                result = do_work(lease.input_data)
            except Exception as error:
                manager.release_lease(lease.work_item_id, success=False, error=str(error))
            else:
                manager.release_lease(lease.work_item_id, output_data=result)

    A receipt decides, never the worker's name. So a work item's id stands for the lease of it that this manager acquired last, or else
    another manager of the same client and worker id. Where threads share a manager, an id could come to stand for a newer lease of
    the same message: there, give the `Lease` itself.

    Attributes:
        client: Sends the calls.
        worker_id: Who works. For people and figures.
        draining: Whether the service wants this worker to take no more work, as the last claim was answered.
    """

    def __init__(self, conn: Client, worker_id: str, *, queue: str = "default") -> None:
        """Make a manager. It calls nobody.

        Args:
            conn: Sends the calls.
            worker_id: Who works.
            queue: Where work is acquired.
        """
        self.client = conn
        self.worker_id = worker_id
        self.draining = False
        self._queue = queue
        self._unanswered = Unanswered()
        self._own = _Memory()
        self._shared = _memories.of(conn, worker_id)

    def acquire_lease(
        self,
        lease_duration_seconds: float | None = 300,
        work_type_filter: str | None = None,
        task_id_filter: str | None = None,
        *,
        wait: float = 0.0,
    ) -> Lease | None:
        """Lease the work item whose turn it is: of those with the same fairness key, the most urgent one.

        If no answer came, the lease may have been granted all the same: the next call for the same has it.

        Args:
            lease_duration_seconds: How long the lease is valid without a renewal. None takes the queue's `visibility_timeout`.
            work_type_filter: Only work of this type. None: any.
            task_id_filter: Only work of this task. None: any.
            wait: Seconds to wait for work if there is none, at most 50.

        Returns:
            The lease, or None if there is no work.

        Raises:
            NotFoundError: If there is no such queue.
            InvalidRequestError: If an argument is out of range.
            ServiceUnreachableError: If no answer came.
        """
        with self._unanswered.name_for((lease_duration_seconds, work_type_filter, task_id_filter)) as claim_id:
            leases = self.client.claim(
                self._queue,
                worker_id=self.worker_id,
                visibility_timeout=lease_duration_seconds,
                work_types=work_type_filter,
                task_id=task_id_filter,
                wait=wait,
                claim_id=claim_id,
            )
        self.draining = leases.drain
        if not leases:
            return None
        acquired = _acquired(leases[0])
        self._own.add(acquired)
        self._shared.add(acquired)
        return leases[0]

    def give_back_unanswered(self) -> None:
        """Release what calls of `acquire_lease` without an answer may have been granted, for who acquires no more. Each is tried once.

        One that fails again stays, to be tried by the next call.
        """
        repeat = partial(self.client.claim, self._queue, worker_id=self.worker_id)
        for wanted in self._unanswered.wanted:
            self._unanswered.give_back(wanted, repeat, self.client.release_many)

    def renew_lease(
        self,
        work_item_id: str | Lease,
        lease_duration_seconds: float = 300,  # noqa: ARG002 - the interface of the seeds' managers
        *,
        progress: int | None = None,
        detail: Any = None,
    ) -> bool:
        """Beat for a work item.

        How far that extends the lease is for the queue's `extension` to say, so that one setting rules all workers;
        `lease_duration_seconds` is accepted because renewals pass it, and not sent.

        Args:
            work_item_id: The work item, or its lease.
            lease_duration_seconds: Not used.
            progress: How much real work is done: any number that grows with it.
            detail: Where the work stands, for whoever resumes it: any JSON value of at most 8 KiB.

        Returns:
            True, also if the last extension is so recent that this beat made none. False if the queue wants progress and there was
            none: the lease goes on to its end.

        Raises:
            LeaseExpiredError: If the lease ran out.
            LeaseConflictError: If another one has been granted since.
            LeaseLostError: If it is over otherwise.
            NotFoundError: If there is no such work item.
        """
        result = self.find(work_item_id).beat(self.client, worker_id=self.worker_id, progress=progress, detail=detail)
        return result.status != "stalled"

    def release_lease(
        self,
        work_item_id: str | Lease,
        success: bool = True,
        output_data: Any = None,
        error: str | None = None,
        *,
        delay: float | None = None,
        retryable: bool = True,
    ) -> bool:
        """End a lease: the work item is completed, or its attempt has failed and it is tried again while it has attempts left.

        Args:
            work_item_id: The work item, or its lease.
            success: Whether the work is done.
            output_data: The result of a success: any JSON value of at most 256 KiB.
            error: What went wrong otherwise.
            delay: Seconds before a failed work item becomes ready again. None takes the queue's backoff.
            retryable: False gives a failed work item up at once.

        Returns:
            True. A refusal raises.

        Raises:
            LeaseExpiredError: If the lease ran out. A success is accepted late, unless somebody else has leased the work item since.
            LeaseConflictError: If another one has been granted since.
            LeaseLostError: If it is over otherwise.
            NotFoundError: If there is no such work item.
        """
        lease = self.find(work_item_id)
        lease.settling = True
        try:
            verdict: Verdict = (
                self.client.ack_many([Ack(lease.lease, output_data)])[0]
                if success
                else self.client.nack_many([Nack(lease.lease, error, delay, retryable)])[0]
            )
            verdict.raise_if_refused(lease.message_id)
        except LeaseLostError:
            self._forget(lease)
            raise
        except BaseException:
            lease.settling = False  # as far as anybody knows it is still held
            raise
        self._forget(lease)
        return True

    def holds(self, work_item_id: str | Lease) -> bool:
        """Whether a lease is remembered that was neither settled nor found to be over when it was to be settled. Asks nobody."""
        return self._recall(work_item_id) is not None

    def find(self, work_item_id: str | Lease) -> AcquiredLease:
        """Find what is remembered of a lease.

        Raises:
            LeaseLostError: If none of this work item is remembered: the subclass for what the service says of it.
            NotFoundError: If there is no such work item.
        """
        if found := self._recall(work_item_id):
            return found
        if isinstance(work_item_id, Lease):
            return _acquired(work_item_id)
        status = self.client.get_message(work_item_id).status
        raise lease_error(_STATUS_OF_LEASE.get(status, "expired"), work_item_id)

    def _recall(self, work_item: str | Lease) -> AcquiredLease | None:
        message_id, receipt = (work_item, None) if isinstance(work_item, str) else (work_item.work_item_id, work_item.receipt)
        remembered = (memory.find(message_id) for memory in (self._own, self._shared))
        return next((each for each in remembered if each and receipt in (None, each.receipt)), None)

    def _forget(self, lease: AcquiredLease) -> None:
        self._own.forget(lease)
        self._shared.forget(lease)


def _acquired(lease: Lease) -> AcquiredLease:
    without_work = replace(lease.message, body=None, headers={}, detail=None)
    return AcquiredLease(replace(lease, message=without_work), lease.valid_until)
