"""`TaskRunner`: works on one work item after the other, each under a `HeartbeatThread`, beside a `RecoverySweep`."""

import logging
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from leasebeat._client import Client
from leasebeat._errors import InvalidRequestError, LeasebeatError, LeaseLostError
from leasebeat._failure import failure_text
from leasebeat._fork import reset_in_child
from leasebeat._heartbeat_thread import HeartbeatThread
from leasebeat._lease_manager import LeaseManager
from leasebeat._leases import Lease
from leasebeat._nack_terms import UNSTORABLE, nack_terms
from leasebeat._pace import Pace
from leasebeat._recovery_sweep import RecoverySweep
from leasebeat._retry import Pauses
from leasebeat._stoppable_thread import Stop

_log = logging.getLogger(__name__)

WAIT_S = 1.0  # a claim lasts so long, as `stop` does not break it off


class TaskRunner:
    """Works on the work items of a queue, one at a time, in the thread that calls `start`.

    Example::

        runner = TaskRunner(client, "worker-1", transcode)
        signal.signal(signal.SIGTERM, lambda *_: runner.stop())
        runner.start()

    What `process(lease.input_data)` returns is the output of the work item; an exception fails its attempt, and `GiveUp` and
    `RetryLater` say what is to become of it. A subclass may override `_process_work_item(lease)` in place of giving `process`. If that
    has released the lease itself, it stays so.

    Without `progress`, work that hangs keeps its lease: `Worker`, whose handlers beat, lets go of it.

    Attributes:
        conn: Sends the calls.
        worker_id: Who works.
        lease_manager: Acquires and releases.
        recovery_sweep: Runs while the runner does.
    """

    def __init__(
        self,
        conn: Client,
        worker_id: str,
        process: Callable[[Any], Any] | None = None,
        *,
        queue: str = "default",
        lease_duration_seconds: float | None = 300,
        interval_seconds: float = 30,
        progress: Callable[[], int | None] | None = None,
        on_lease_lost: Callable[[], object] | None = None,
    ) -> None:
        """Describe a runner. Nothing starts before `start`.

        Args:
            conn: Sends the calls.
            worker_id: Who works.
            process: Does the work: called with the body of each message.
            queue: The queue to work on.
            lease_duration_seconds: Length of the leases. None takes the queue's `visibility_timeout`.
            interval_seconds: Seconds between two beats.
            progress: Asked before each beat how much real work is done on the work item in hand. See `HeartbeatThread`.
            on_lease_lost: Called in the heartbeat's thread when the lease of the work item in hand is lost.

        Raises:
            TypeError: If there is neither `process` nor a `_process_work_item` of a subclass.
        """
        if process is None and type(self)._process_work_item is TaskRunner._process_work_item:  # noqa: SLF001 - its own class
            raise TypeError("a TaskRunner needs a process function, or a subclass with a _process_work_item")
        self.conn = conn
        self.worker_id = worker_id
        self.lease_manager = LeaseManager(conn, worker_id, queue=queue)
        self.recovery_sweep = RecoverySweep(conn)
        self._process = process
        self._lease_duration = lease_duration_seconds
        self._interval = interval_seconds
        self._progress = progress
        self._on_lease_lost = on_lease_lost
        self._stop = Stop()
        self._started = False
        self._left_to_parent = False
        reset_in_child(self)

    def start(self) -> None:
        """Start the sweep, and work until `stop` is called or the service drains this worker. A runner runs once.

        Raises:
            NotFoundError: If the queue does not exist.
            InvalidRequestError: If the service refuses the settings.
            RuntimeError: If it has run before.
        """
        if self._started:
            raise RuntimeError("a TaskRunner runs once")
        self._started = True
        self.recovery_sweep.start()
        try:
            self._run_worker()
        finally:
            self.recovery_sweep.stop()

    def stop(self) -> None:
        """Take no more work, and let `start` return once the work item in hand is released. Any thread and signal handler may call it."""
        self._stop.give()
        self.recovery_sweep.stop(wait=False)

    def after_fork(self) -> None:
        """In a child that the work forked and lets go on: the work item is its parent's to release, and so is the rest."""
        if self._started:
            self._left_to_parent = True
            self._stop.give()

    def _run_worker(self) -> None:
        pace = Pace(self._stop.wait)
        while not self._stop.given:
            asked_at = time.monotonic()
            try:
                lease = self.lease_manager.acquire_lease(self._lease_duration, wait=WAIT_S)
            except LeasebeatError as error:
                pace.after_failure(error, "Acquiring a lease")
                continue
            pace.after_success()
            if lease is not None:
                self._take(lease)
            elif self.lease_manager.draining:
                _log.info("The service drains this worker, which takes no more work")
                return
            else:
                pace.after_nothing(asked_at)
        self.lease_manager.give_back_unanswered()

    def _take(self, lease: Lease) -> None:
        if self._stop.given:
            self._give_back(lease)
            return
        heartbeat = HeartbeatThread(
            self.lease_manager,
            lease.work_item_id,
            self._interval,
            max_failures=sys.maxsize,  # how long the lease lasts decides alone
            on_lease_lost=self._on_lease_lost,
            progress=self._progress,
        )
        heartbeat.start()
        try:
            self._work_on(lease, heartbeat)
        finally:
            heartbeat.stop()

    def _work_on(self, lease: Lease, heartbeat: HeartbeatThread) -> None:
        try:
            output = self._process_work_item(lease)
        except KeyboardInterrupt:
            heartbeat.stop()
            self._give_back(lease)
            raise
        except BaseException as error:
            self._fail(lease, heartbeat, error)
            if not isinstance(error, Exception):
                raise
        else:
            self._complete(lease, heartbeat, output)

    def _process_work_item(self, lease: Lease) -> Any:
        """Do the work of a lease, and return its output."""
        assert self._process is not None  # noqa: S101 - checked when the runner was made
        return self._process(lease.input_data)

    # --- settle

    def _complete(self, lease: Lease, heartbeat: HeartbeatThread, output: Any) -> None:
        try:
            self._settle(lease, heartbeat, output_data=output)
        except UNSTORABLE as error:
            self._fail(lease, heartbeat, error)

    def _fail(self, lease: Lease, heartbeat: HeartbeatThread, error: BaseException) -> None:
        _log.warning("Work item %s failed", lease.work_item_id, exc_info=error)
        fail = partial(self._settle, lease, heartbeat, success=False, **nack_terms(error))
        try:
            fail(error=failure_text(error))
        except UNSTORABLE:
            fail()

    def _settle(self, lease: Lease, heartbeat: HeartbeatThread, **outcome: Any) -> None:
        """Release until the service answers or the lease is lost, unless the work has released by itself."""
        backoff = Pauses()
        while self.lease_manager.holds(lease) and not self._left_to_parent:
            try:
                self.lease_manager.release_lease(lease, **outcome)
            except LeaseLostError as error:
                _log.warning("The release of work item %s was refused: %s", lease.work_item_id, error)
            except InvalidRequestError:
                raise
            except LeasebeatError as error:
                if not heartbeat.is_running():
                    _log.warning("The release of work item %s is given up: %s", lease.work_item_id, error)
                    return
                pause = backoff.pause(error.retry_after)
                _log.warning("The release of work item %s failed, next try in %.1f s: %s", lease.work_item_id, pause, error)
                time.sleep(pause)

    def _give_back(self, lease: Lease) -> None:
        """Release a work item untouched, uncounted. A failure costs no more than the time until its lease runs out."""
        if self._left_to_parent:
            return
        try:
            self.conn.release(self.lease_manager.find(lease).lease)
        except LeasebeatError as error:
            _log.warning("Work item %s could not be given back: %s", lease.work_item_id, error)
