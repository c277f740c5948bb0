"""`Ticker`: a thread that looks after something whenever it is time, and that others can watch."""

import logging
import math
import threading
import time
from collections.abc import Callable

from leasebeat._fork import reset_in_child
from leasebeat._retry import Pauses

_log = logging.getLogger(__name__)

JOIN_TIMEOUT_S = 2.0  # a call that hangs must not hold up the end of the process


class Ticker:
    """Runs `step` when woken, and again at the moment it returned. The first call of `wake` starts the thread, also in a child."""

    def __init__(self, name: str, step: Callable[[], float], on_mend: Callable[[], None] | None = None) -> None:
        """Make a ticker.

        Args:
            name: The name of its thread.
            step: What to do. Returns when to do it again, on `time.monotonic()`; infinity is when woken.
            on_mend: Called before another thread takes the place of one that died or stalls: tidies up after that.
        """
        self._name = name
        self._step = step
        self._on_mend = on_mend
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None
        self._stalls_at = math.inf
        self._closed = False
        reset_in_child(self)

    @property
    def running(self) -> bool:
        """Whether this process has the thread."""
        return self._thread is not None

    @property
    def is_current(self) -> bool:
        """Whether this code runs in the thread, and no other was started in its place."""
        return self._thread is threading.current_thread()

    def wake(self) -> None:
        """Run a step now."""
        thread = self._thread
        if thread is None:
            self._start()
        elif not thread.is_alive():
            self.mend()
        self._woken.set()

    def allow(self, seconds: float) -> None:
        """Say, from inside a step, how much longer it may take before the thread counts as stalled."""
        if self.is_current:
            self._stalls_at = time.monotonic() + seconds

    def mend(self) -> None:
        """Start the thread anew if it has died, or if its step takes longer than it is allowed.

        For whoever watches it, from another thread. A stalled thread ends itself as soon as its step returns.
        """
        with self._lock:
            thread = self._thread
            if thread is None or self._closed or (thread.is_alive() and time.monotonic() < self._stalls_at):
                return
            _log.error("The thread %s %s and is started anew", self._name, "stalls" if thread.is_alive() else "has died")
            if self._on_mend is not None:
                self._on_mend()
            self._launch()
        self._woken.set()

    def close(self) -> None:
        """End the thread. A step that hangs is not waited for."""
        self._closed = True
        self._woken.set()
        thread = self._thread
        if thread is not None and thread.is_alive():  # the system may have had no thread to start
            thread.join(JOIN_TIMEOUT_S)

    def after_fork(self) -> None:
        """A child has no thread until somebody wakes it there."""
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._thread = None
        self._stalls_at = math.inf

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed:
                self._launch()

    def _launch(self) -> None:
        self._stalls_at = math.inf
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        backoff = Pauses()
        again_at = 0.0
        while not self._closed and self.is_current:
            self._woken.wait(None if again_at == math.inf else max(0.0, again_at - time.monotonic()))
            self._woken.clear()
            try:
                again_at = self._step()
            except Exception:  # noqa: BLE001 - the thread must outlive whatever goes wrong
                _log.exception("A step of %s failed", self._name)
                again_at = time.monotonic() + backoff.pause()
            else:
                backoff.reset()
            self.allow(math.inf)
