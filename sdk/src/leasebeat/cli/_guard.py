"""`Guard`: nobody outlives a worker that is killed.

A worker that dies without a word cannot end what it has started. So a small process of its own, which runs this file as a program, hears
which process groups there are, and kills them when its standard input ends: the worker is gone. It has the groups' numbers a moment after
they exist; a program that reads its body gets none before that.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from types import TracebackType
from typing import IO, Self, cast


class Guard:
    """The worker's side. Safe to use from several threads."""

    def __init__(self) -> None:
        """Start the guard, in a session of its own: what is meant for the worker's group must not end it."""
        self._lock = threading.Lock()
        self._process = subprocess.Popen(  # noqa: S603 - it is this file
            [sys.executable, "-I", "-S", __file__], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, bufsize=0, start_new_session=True
        )
        self._input = cast("IO[bytes]", self._process.stdin)

    def watch(self, group: int) -> None:
        """Have a process group killed if this process dies."""
        self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        """Leave a process group alone from now on: it is gone."""
        self._tell(f"-{group}\n")

    def _tell(self, line: str) -> None:
        # Without its guard the work goes on; what is lost is its end should this process be killed as well.
        with self._lock, contextlib.suppress(BrokenPipeError):
            if not self._input.closed:
                self._input.write(line.encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._lock:
            self._input.close()
        self._process.wait()


def _guard() -> None:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line.startswith("+"):
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    _guard()
