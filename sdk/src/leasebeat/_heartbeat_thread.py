"""`HeartbeatThread`: renews the lease of one work item at regular intervals, and says when it is lost."""

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from leasebeat._client import Client
from leasebeat._errors import LeaseLostError, lease_error
from leasebeat._lease_manager import AcquiredLease, LeaseManager
from leasebeat._retry import RetryPolicy
from leasebeat._stoppable_thread import Stop, StoppableThread

_log = logging.getLogger(__name__)

SHORTEST_PAUSE_S = 0.1


class HeartbeatThread:
    """A daemon thread that beats for one work item until it is stopped, the work item is released, or the lease is lost.

    Without `progress` it proves only that the process lives: work that hangs keeps its lease, up to the queue's `max_lease`. With it,
    on a queue with `progress_required`, work that no longer moves loses its lease.

    Example::

        heartbeat = HeartbeatThread(manager, lease.work_item_id, progress=lambda: counter.done)
        heartbeat.start()
        try:
            work(counter)
        finally:
            heartbeat.stop()
    """

    def __init__(
        self,
        lease_manager: LeaseManager,
        work_item_id: str,
        interval_seconds: float = 30,
        lease_duration_seconds: float = 300,  # noqa: ARG002 - see `LeaseManager.renew_lease`
        max_failures: int = 3,
        on_lease_lost: Callable[[], object] | None = None,
        *,
        progress: Callable[[], int | None] | None = None,
    ) -> None:
        """Describe a thread. Nothing starts before `start`.

        Args:
            lease_manager: Knows the lease, or another one of its client and worker id does.
            work_item_id: The work item to beat for.
            interval_seconds: Seconds between two beats. Half of what is left of the lease, if that is less.
            lease_duration_seconds: Not used: how far a beat extends is the queue's setting.
            max_failures: So many beats in a row that fail otherwise than by a refusal count as a lost lease. So does the end of the
                lease, as far as the last answer told it.
            on_lease_lost: Called in the thread, once, when the lease is lost.
            progress: Asked in the thread, before each beat, how much real work is done. None, or an error: it is not known.

        Raises:
            ValueError: If `interval_seconds` or `max_failures` is not positive.
        """
        if not 0 < interval_seconds < math.inf:
            raise ValueError(f"interval_seconds must be more than 0, not {interval_seconds}")
        if max_failures < 1:
            raise ValueError(f"max_failures must be 1 or more, not {max_failures}")
        self._manager = lease_manager
        self._work_item_id = work_item_id
        self._interval = interval_seconds
        self._max_failures = max_failures
        self._on_lease_lost = on_lease_lost
        self._progress = progress
        self._thread = StoppableThread(f"leasebeat-heartbeat-{work_item_id}")

    def start(self) -> None:
        """Start the thread, which beats at once. Does nothing if it runs. After `stop`, and in a child that was forked, it starts anew.

        Raises:
            LeaseLostError: If no lease of the work item is known here: the subclass for what the service says of it.
            NotFoundError: If there is no such work item.
        """
        if not self._thread.is_to_run:
            lease = self._manager.find(self._work_item_id)  # now, as short work may be released before the thread comes to look
            self._thread.start(partial(self._run, lease))

    def stop(self, wait: bool = True, timeout: float = 5.0) -> None:
        """Stop the thread. It may be called from `on_lease_lost` and `progress` too, where it does not wait.

        Args:
            wait: Whether to wait until the thread has ended.
            timeout: The most seconds to wait: a call that hangs may take longer to end.
        """
        self._thread.stop(wait=wait, timeout=timeout)

    def is_running(self) -> bool:
        """Whether the thread runs in this process."""
        return self._thread.is_running

    # --- in the thread

    def _run(self, lease: AcquiredLease, stop: Stop) -> None:
        options = self._manager.client.options
        with Client.with_options(replace(options, retry=RetryPolicy(unavailable=0))) as client:  # waits for no other call, and no pause
            loss = self._beat_until_over(lease, client, stop)
        if loss is None or stop.given:
            return
        _log.warning("Work item %s counts as lost: %s", self._work_item_id, loss)
        if self._on_lease_lost is None:
            return
        try:
            self._on_lease_lost()
        except Exception:  # noqa: BLE001 - it is not the thread that failed
            _log.exception("The callback for the lost lease of work item %s failed", self._work_item_id)

    def _beat_until_over(self, lease: AcquiredLease, client: Client, stop: Stop) -> Exception | None:
        """Beat until stopped, until the work item is released, or until the lease counts as lost. Returns why it does, if so."""
        failures, pause = 0, 0.0
        while not stop.wait(pause):
            if lease.remaining() <= 0 and not lease.settling:
                return lease_error("expired", self._work_item_id)
            try:
                lease.beat(client, worker_id=self._manager.worker_id, progress=self._ask_progress(), detail=None)
            except LeaseLostError as error:
                return None if lease.settling else error
            except Exception as error:  # noqa: BLE001 - whatever it is, the thread must not end without a word
                failures += 1
                _log.warning("Heartbeat for work item %s failed, %d in a row: %s", lease.message_id, failures, error)
                if failures >= self._max_failures:
                    return error
            else:
                failures = 0
            pause = self._pause(lease)
        return None

    def _ask_progress(self) -> int | None:
        if self._progress is None:
            return None
        try:
            return self._progress()
        except Exception:  # noqa: BLE001 - then nothing is known of the work, and the beat goes out without
            _log.exception("The progress of work item %s is not known", self._work_item_id)
            return None

    def _pause(self, lease: AcquiredLease) -> float:
        """Seconds until the next beat: not beyond the end of the lease, which is to be heard of on time."""
        left = lease.remaining()
        pause = min(self._interval, max(left / 2, SHORTEST_PAUSE_S))
        return min(pause, left) if left > 0 else pause


def start_heartbeat(
    conn: Client,
    work_item_id: str,
    worker_id: str,
    interval_seconds: float = 30,
    lease_duration_seconds: float = 300,
    max_failures: int = 3,
    on_lease_lost: Callable[[], object] | None = None,
    *,
    queue: str = "default",
    progress: Callable[[], int | None] | None = None,
) -> HeartbeatThread:
    """Start a `HeartbeatThread` for a work item that a `LeaseManager` of this client and worker id has acquired.

    Args:
        conn: The client that the lease was acquired with. Beats have connections of their own.
        work_item_id: The work item to beat for.
        worker_id: Who holds it.
        interval_seconds: See `HeartbeatThread`, as for what follows.
        lease_duration_seconds: Not used.
        max_failures: When failing beats count as a lost lease.
        on_lease_lost: Called once when the lease is lost.
        queue: The queue of the work item.
        progress: Asked before each beat how much real work is done.

    Raises:
        LeaseLostError: If no such lease is known here: the subclass for what the service says of the work item.
        NotFoundError: If there is no such work item.
        ValueError: If `interval_seconds` or `max_failures` is not positive.
    """
    manager = LeaseManager(conn, worker_id, queue=queue)
    heartbeat = HeartbeatThread(
        manager, work_item_id, interval_seconds, lease_duration_seconds, max_failures, on_lease_lost, progress=progress
    )
    heartbeat.start()
    return heartbeat
