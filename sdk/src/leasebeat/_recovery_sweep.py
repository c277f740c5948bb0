"""`RecoverySweep`: has the service look for leases that ran out, at regular intervals, and tells what came of it."""

import logging
import math
from dataclasses import asdict
from typing import Any

from leasebeat._client import Client
from leasebeat._errors import LeasebeatError
from leasebeat._figures import Recovery, RecoveryStats
from leasebeat._retry import Pauses
from leasebeat._stoppable_thread import Stop, StoppableThread

_log = logging.getLogger(__name__)

CHECKPOINTS_KEPT = 100
FIRST_PAUSE_S = 1.0


class RecoverySweep:
    """Recovers work items whose leases ran out: on demand, or in a daemon thread.

    The service does so by itself, all the time and within milliseconds. This is for who wants to see it done, or has code that does it.

    Example::

        sweep = RecoverySweep(client)
        print(sweep.scan_and_recover().recovered)
    """

    def __init__(
        self,
        conn: Client,
        scan_interval_seconds: float = 60,
        create_checkpoints: bool = True,
        cleanup_old_checkpoints: bool = True,
        checkpoint_retention_limit: int = CHECKPOINTS_KEPT,
    ) -> None:
        """Describe a sweep. Nothing starts before `start`.

        Args:
            conn: Sends the calls.
            scan_interval_seconds: Seconds between two scans.
            create_checkpoints: The service adds each failed attempt to the history of its message, also where this is False.
            cleanup_old_checkpoints: Must be True: of each task's history, the service keeps the newest 100 entries.
            checkpoint_retention_limit: How many entries of each task's history are wanted, from 1 to these 100. Of fewer, the service
                keeps more than are asked for.

        Raises:
            ValueError: If `scan_interval_seconds` is not positive, or more checkpoints are to be kept than the service does.
        """
        if not 0 < scan_interval_seconds < math.inf:
            raise ValueError(f"scan_interval_seconds must be more than 0, not {scan_interval_seconds}")
        if not (cleanup_old_checkpoints and 1 <= checkpoint_retention_limit <= CHECKPOINTS_KEPT):
            raise ValueError(
                f"the service keeps the newest {CHECKPOINTS_KEPT} checkpoints of a task: "
                f"cleanup_old_checkpoints must be True, and checkpoint_retention_limit from 1 to {CHECKPOINTS_KEPT}"
            )
        if not create_checkpoints or checkpoint_retention_limit < CHECKPOINTS_KEPT:
            _log.warning("The service creates checkpoints all the same, and keeps the newest %d of each task", CHECKPOINTS_KEPT)
        self._client = conn
        self._interval = scan_interval_seconds
        self._known: Recovery | None = None
        self._thread = StoppableThread("leasebeat-recovery-sweep")

    def start(self) -> None:
        """Start the thread, which scans at once. Does nothing if it runs. After `stop`, and in a child that was forked, it starts anew."""
        self._thread.start(self._run)

    def stop(self, wait: bool = True, timeout: float = 10.0) -> None:
        """Stop the thread. A signal handler may call it.

        Args:
            wait: Whether to wait until the thread has ended.
            timeout: The most seconds to wait: a scan under way is not broken off.
        """
        self._thread.stop(wait=wait, timeout=timeout)

    def is_running(self) -> bool:
        """Whether the thread runs in this process."""
        return self._thread.is_running

    def scan_and_recover(self) -> RecoveryStats:
        """Scan once, now, and return what came of it.

        Raises:
            LeasebeatError: If the service did not do it.
        """
        return self._client.sweep()

    def get_statistics(self) -> dict[str, Any]:
        """Return what all scans have done, those that the service makes by itself included. Each is counted once, by the service.

        Without an answer from the service, the figures are those of the last one, or zeros if there was none.

        Returns:
            `is_running`: whether this sweep's thread runs. `total_scans`, `total_recovered` and `total_failed`: scans, and the work items
            that went back to their queue or were given up, since the service's database was made. `last_scan`: what the newest scan
            did, with the fields of `LastScan`, or None if there was none.
        """
        try:
            self._known = self._client.recovery()
        except LeasebeatError as error:
            _log.warning("The statistics are those of before: %s", error)
        known = self._known
        return {
            "is_running": self.is_running(),
            "total_scans": known.total_scans if known else 0,
            "total_recovered": known.total_recovered if known else 0,
            "total_failed": known.total_failed if known else 0,
            "last_scan": asdict(known.last_scan) if known and known.last_scan else None,
        }

    def _run(self, stop: Stop) -> None:
        backoff = Pauses(min(FIRST_PAUSE_S, self._interval), self._interval)
        pause = 0.0
        while not stop.wait(pause):
            try:
                found = self.scan_and_recover()
            except Exception as error:  # noqa: BLE001 - whatever it is, scans go on
                pause = backoff.pause(getattr(error, "retry_after", None))
                _log.warning("A scan failed, next try in %.1f s: %s", pause, error)
            else:
                backoff.reset()
                pause = self._interval
                _log.debug("Scanned: %s", found)
