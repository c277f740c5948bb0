"""`Children`: the programs that run, each in a process group of its own, and who ends them when."""

import contextlib
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from leasebeat._context import Context
from leasebeat._errors import LeaseLostError
from leasebeat._ticker import Ticker
from leasebeat.cli._groups import has_others
from leasebeat.cli._guard import Guard

TICK_S = 0.1
KILL_TIMEOUT_S = 1.0
LAST_S = 0.5  # of a lease: time enough to give it back


class Child:
    """One program at work on one message.

    Signals reach its process group by number, which may be given to others as soon as the program is reaped and its group is empty. So it
    is reaped last: what has exited before is a zombie, which keeps the number.

    Attributes:
        process: The program. It leads its process group.
        told_to_end: Whether it was told to end: its exit says nothing of its work then. Settled once `wait` has returned.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", context: Context, guard: Guard, *, grace: float, drain_timeout: float) -> None:
        self.process = process
        self.told_to_end = False
        self._context = context
        self._guard = guard
        self._guard.watch(process.pid)
        self._grace = grace
        self._drain_timeout = drain_timeout
        self._stop_at: float | None = None
        self._kill_at = 0.0
        self._lock = threading.Lock()
        self._exited = False
        self._reaped = False

    def mind(self, now: float) -> None:
        """Tell the group to end if the lease is lost, or if a stop has left it all its time; kill it if it does not."""
        if self._context.lost.is_set():
            self._end(now)
        elif self._context.stopping.is_set():
            self._stop_at = now + self._drain_timeout if self._stop_at is None else self._stop_at
            if now >= self._stop_at:
                if self._context.remaining() < LAST_S:  # no beat extends it
                    self._kill_at = now
                self._end(now)
                self._beat()

    def wait(self) -> int:
        """Wait until the program has exited, and end what is left of its group. Returns its status, negative for a signal."""
        self._wait_for_exit()
        while self._others_have_time():
            time.sleep(TICK_S)
        return self.leave_nobody()

    def leave_nobody(self) -> int:
        """End what is left of the group now. Returns the program's status."""
        if not self._reaped:
            with self._lock:
                self._signal(signal.SIGKILL)
            self._wait_for_exit()
            self._guard.forget(self.process.pid)
        with self._lock:
            self._reaped = True
            return self.process.wait()

    def _wait_for_exit(self) -> None:
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        else:  # macOS before Python 3.13, where it is reaped too early
            self.process.wait()
        with self._lock:
            self._exited = True

    def _end(self, now: float) -> None:
        with self._lock:
            if self.told_to_end:
                if now >= self._kill_at:
                    self._signal(signal.SIGKILL)
            elif not self._exited:
                self.told_to_end, self._kill_at = True, now + self._grace
                self._signal(signal.SIGTERM)

    def _others_have_time(self) -> bool:
        """Whether somebody else of a group that was told to end still has its grace."""
        with self._lock:
            has_time = self.told_to_end and time.monotonic() < self._kill_at
        return has_time and has_others(self.process.pid)

    def _beat(self) -> None:
        """Keep the lease while the program ends, so that it can be given back, which does not count as an attempt."""
        with contextlib.suppress(LeaseLostError):
            self._context.beat()

    def _signal(self, number: int) -> None:
        """Signal the group, if its number is still its own, and there is anybody whom we may signal."""
        if not self._reaped:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)


class Children:
    """Starts programs, and sees to it that none outlives its lease, its worker's stop, or its worker."""

    _guard: Guard

    def __init__(self, *, grace: float, drain_timeout: float) -> None:
        """Decide how much time programs have.

        Args:
            grace: Seconds between SIGTERM and SIGKILL.
            drain_timeout: Seconds to finish once their worker stops.
        """
        self._grace = grace
        self._drain_timeout = drain_timeout
        self._changed = threading.Condition()
        self._running: set[Child] = set()
        self._ticker = Ticker("leasebeat-children", self._mind_all)

    @contextmanager
    def minded(self) -> Iterator[None]:
        """Mind what is started in the block. None of it outlives the block."""
        with Guard() as self._guard:
            try:
                yield
            finally:
                self._wait_for_all()
                self._ticker.close()

    @contextmanager
    def start(self, command: Sequence[str], environment: Mapping[str, str], context: Context) -> Iterator[Child]:
        """Run a program for the block, which waits for it.

        Raises:
            OSError: If it cannot be started.
        """
        process = subprocess.Popen(  # noqa: S603 - to run what it is told is what this is for
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=environment,
            process_group=0,
        )
        child = Child(process, context, self._guard, grace=self._grace, drain_timeout=self._drain_timeout)
        with self._changed:
            self._running.add(child)
        try:
            self._ticker.wake()
            yield child
        finally:
            child.leave_nobody()
            with self._changed:
                self._running.discard(child)
                self._changed.notify_all()

    def _mind_all(self) -> float:
        with self._changed:
            running = list(self._running)
        now = time.monotonic()
        for child in running:
            child.mind(now)
        return now + TICK_S if running else math.inf

    def _wait_for_all(self) -> None:
        """Wait for who is still in its grace, as after a stop in a hurry. Whoever is left then, the guard kills."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running, self._grace + KILL_TIMEOUT_S)
