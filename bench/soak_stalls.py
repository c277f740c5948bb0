"""When and for how long a process or the disk stood still, as a thread of its own notes it.

A thread that only sleeps wakes late if the machine stands still, if others take all of it, or if another thread keeps the interpreter.
Where two processes note the same moment, it was the machine. While the disk stands still, Postgres commits nothing, and so no beat.
"""

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

TICK_S = 0.02
TICK_OF_DISK_S = 0.1
LEAST_S = 0.1


@dataclass(frozen=True, slots=True)
class Stall:
    """A time in which a process or the disk stood still: from when to when, on `time.time()`."""

    began: float
    ended: float

    def within(self, begin: float, end: float) -> float:
        """How many seconds of it lie between two moments."""
        return max(0.0, min(self.ended, end) - max(self.began, begin))


def note_stalls(path: Path) -> None:
    """Append to a file, from now on, when this process stands still."""
    threading.Thread(target=_note, args=(path,), name="stalls", daemon=True).start()


def note_stalls_of_disk(path: Path) -> None:
    """Append to a file, from now on, when the disk that it is on takes long to store a byte."""
    threading.Thread(target=_note_disk, args=(path,), name="disk", daemon=True).start()


def stalls(path: Path) -> list[Stall]:
    """What has been noted."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [Stall(*map(float, line.split())) for line in lines]


def stood_still(noted: Sequence[Stall], begin: float, end: float) -> float:
    """For how many seconds between two moments that was."""
    return sum(stall.within(begin, end) for stall in noted)


def _note(path: Path) -> None:
    with path.open("a", buffering=1) as file:
        while True:
            due = time.monotonic() + TICK_S
            time.sleep(TICK_S)
            _note_if_long(file, time.monotonic() - due)


def _note_disk(path: Path) -> None:
    with path.open("a", buffering=1) as file, path.with_suffix(".byte").open("wb", buffering=0) as stored:
        while True:
            time.sleep(TICK_OF_DISK_S)
            began = time.monotonic()
            os.pwrite(stored.fileno(), b"!", 0)
            os.fsync(stored.fileno())
            _note_if_long(file, time.monotonic() - began)


def _note_if_long(file: TextIO, seconds: float) -> None:
    if seconds >= LEAST_S:
        now = time.time()
        file.write(f"{now - seconds} {now}\n")
