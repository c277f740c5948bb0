"""`Watchdog`: ends a process whose work has stalled, so that something outside starts it anew."""

import logging
import os
import signal
import threading
from collections.abc import Sequence

from leasebeat._fork import reset_in_child
from leasebeat._heartbeat import Heartbeat

_log = logging.getLogger(__name__)


class Watchdog:
    """Looks at heartbeats, and ends the process by SIGKILL when one has been silent for too long.

    A thread that hangs hears no polite request, so there is none. The messages that the process worked on are delivered again
    when their leases run out.
    """

    def __init__(
        self,
        heartbeats: Sequence[Heartbeat],
        *,
        stall_threshold: float = 720.0,
        check_interval: float = 60.0,
        loop_names: Sequence[str] | None = None,
    ) -> None:
        """Describe what to watch. Nothing happens before `start`.

        Args:
            heartbeats: Each must beat as long as the process is to live.
            stall_threshold: Seconds of silence after which the process ends.
            check_interval: Seconds between two looks.
            loop_names: Names of the heartbeats for the log. `loop-0`, `loop-1` … if left out.

        Raises:
            ValueError: If a time is not positive, or there is not one name for each heartbeat.
        """
        if not (stall_threshold > 0 and check_interval > 0):
            raise ValueError(f"stall_threshold and check_interval must be positive, not {stall_threshold} and {check_interval}")
        names = [f"loop-{number}" for number in range(len(heartbeats))] if loop_names is None else loop_names
        self._watched = list(zip(names, heartbeats, strict=True))
        self._stall_threshold = stall_threshold
        self._check_interval = check_interval
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        reset_in_child(self)

    def after_fork(self) -> None:
        """A child has no thread that watches until it starts one."""
        self._thread = None
        self._stopped = threading.Event()

    @property
    def stall_threshold(self) -> float:
        """Seconds of silence after which the process ends."""
        return self._stall_threshold

    def start(self) -> None:
        """Watch from now on, in a thread of its own."""
        if self._thread is None:
            self._stopped.clear()
            self._thread = threading.Thread(target=self._watch, name="leasebeat-watchdog", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Watch no longer."""
        if self._thread is not None:
            self._stopped.set()
            self._thread.join()
            self._thread = None

    def _watch(self) -> None:
        while not self._stopped.wait(self._check_interval):
            silences = [(name, heartbeat.elapsed()) for name, heartbeat in self._watched]
            stalled = [(name, silence) for name, silence in silences if silence > self._stall_threshold]
            for name, silence in stalled:
                _log.critical("Watchdog: %s stalled for %.1fs (threshold: %.1fs)", name, silence, self._stall_threshold)
            if stalled:
                _log.critical("Watchdog: terminating process due to stalled workers")
                os.kill(os.getpid(), signal.SIGKILL)
