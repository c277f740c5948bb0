"""Signals that ask a worker to stop."""

import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from leasebeat._fork import reset_in_child

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_END = b"\0"  # no signal has this number


class _Watch:
    """Calls `stop` for each signal, in a thread of its own.

    Python runs signal handlers in the main thread, which may be in the middle of anything, and which does not wake from a
    wait if the signal reached another thread. So the handler does nothing; the interpreter itself writes each signal's number
    to a pipe, from whichever thread it reached. The thread ends by a byte too, not by the end of the pipe, of which anybody may
    hold a copy.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._read_end, self._write_end = self._open_ends = list(os.pipe())
        os.set_blocking(self._write_end, False)
        self._thread = threading.Thread(target=self._wait, name="leasebeat-signals", daemon=True)
        self._thread.start()
        self._wakeup_before = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        self._before: dict[signal.Signals, Any] = {number: signal.signal(number, _ignore) for number in STOP_SIGNALS}
        reset_in_child(self)

    def close(self) -> None:
        self._restore()
        os.set_blocking(self._write_end, True)
        os.write(self._write_end, _END)
        self._thread.join()
        self._close_pipe()

    def after_fork(self) -> None:
        """A child stops by its own rules: its parent's handlers would keep it from being terminated, and stop the parent."""
        self._restore()  # allowed, as the thread that forks is the main one of its child
        self._close_pipe()

    def _close_pipe(self) -> None:
        while self._open_ends:
            os.close(self._open_ends.pop())

    def _wait(self) -> None:
        while (number := os.read(self._read_end, 1)) != _END:
            if ord(number) in STOP_SIGNALS:
                self._stop()

    def _restore(self) -> None:
        if self._before:
            signal.set_wakeup_fd(self._wakeup_before)
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _ignore(_signal: int, _frame: FrameType | None) -> None:
    """Keep the signal from its default, which would end the process."""


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Generator[None, None, None]:
    """Call `stop` on each SIGTERM and SIGINT inside the block, if this is the main thread: no other may handle signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    watch = _Watch(stop)
    try:
        yield
    finally:
        watch.close()
