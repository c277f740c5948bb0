"""`Watchdog`: ends a process whose work has stalled, so that something outside starts it anew."""

import logging
import math
import os
import signal
import time
from collections.abc import Sequence

from leasebeat._heartbeat import Heartbeat
from leasebeat._stoppable_thread import Stop, StoppableThread

_log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 5.0


class Watchdog:
    """Looks at heartbeats, and ends the process by SIGKILL when one has been silent for too long.

    A thread that hangs hears no polite request, so there is none. The messages that the process worked on are delivered again
    when their leases run out.

    A process that stood still, as after SIGSTOP, could not beat. So if a look comes late by an interval, or by half of the threshold if
    that is less, each heartbeat has the whole threshold again.
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
        self._thread = StoppableThread("leasebeat-watchdog")

    @property
    def stall_threshold(self) -> float:
        """Seconds of silence after which the process ends."""
        return self._stall_threshold

    def start(self) -> None:
        """Watch from now on, in a thread of its own. A child that is forked is not watched until it calls this."""
        self._thread.start(self._watch)

    def stop(self) -> None:
        """Watch no longer."""
        self._thread.stop(wait=True, timeout=STOP_TIMEOUT_S)

    def _watch(self, stop: Stop) -> None:
        latest = self._check_interval + min(self._check_interval, self._stall_threshold / 2)
        looked_at, resumed_at = time.monotonic(), -math.inf
        while not stop.wait(self._check_interval):
            silences = [(name, heartbeat.elapsed()) for name, heartbeat in self._watched]
            now = time.monotonic()  # after the silences were read, so that no stop escapes it
            if now - looked_at > latest:
                _log.info("Watchdog: the process stood still, as %.1fs passed since the last look", now - looked_at)
                resumed_at = now
            looked_at = now
            self._judge([(name, min(silence, now - resumed_at)) for name, silence in silences])

    def _judge(self, silences: Sequence[tuple[str, float]]) -> None:
        stalled = [(name, silence) for name, silence in silences if silence > self._stall_threshold]
        for name, silence in stalled:
            _log.critical("Watchdog: %s stalled for %.1fs (threshold: %.1fs)", name, silence, self._stall_threshold)
        if stalled:
            _log.critical("Watchdog: terminating process due to stalled workers")
            os.kill(os.getpid(), signal.SIGKILL)
