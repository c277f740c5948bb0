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

_STOP = b"!"
_END = b"."


class _Watch:
    """Calls `stop` for each signal, in a thread of its own.

    A signal handler interrupts the main thread anywhere, also where it holds a lock, so all that it does is write to a pipe.
    The thread ends by a byte too, not by the end of the pipe, of which anybody may hold a copy.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._read_end, self._write_end = self._open_ends = list(os.pipe())
        os.set_blocking(self._write_end, False)
        self._thread = threading.Thread(target=self._wait, name="leasebeat-signals", daemon=True)
        self._thread.start()
        self._before: dict[signal.Signals, Any] = {number: signal.signal(number, self._handle) for number in STOP_SIGNALS}
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

    def _handle(self, _signal: int, _frame: FrameType | None) -> None:
        os.write(self._write_end, _STOP)

    def _wait(self) -> None:
        while os.read(self._read_end, 1) == _STOP:
            self._stop()

    def _restore(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


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
