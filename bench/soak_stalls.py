"""When and for how long a process stood still, as a thread of its own notes it.

A thread that only sleeps wakes late if the machine stands still, if others take all of it, or if another thread keeps the interpreter.
Where two processes note the same moment, it was the machine.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TICK_S = 0.02
LEAST_S = 0.1


@dataclass(frozen=True, slots=True)
class Stall:
    """A time in which a process stood still: from when to when, on `time.time()`."""

    began: float
    ended: float

    def within(self, begin: float, end: float) -> float:
        """How many seconds of it lie between two moments."""
        return max(0.0, min(self.ended, end) - max(self.began, begin))


def note_stalls(path: Path) -> None:
    """Append to a file, from now on, when this process stands still."""
    threading.Thread(target=_note, args=(path,), name="stalls", daemon=True).start()


def stalls(path: Path) -> list[Stall]:
    """What a process has noted."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [Stall(*map(float, line.split())) for line in lines]


def stood_still(noted: Sequence[Stall], begin: float, end: float) -> float:
    """For how many seconds between two moments it stood still."""
    return sum(stall.within(begin, end) for stall in noted)


def _note(path: Path) -> None:
    with path.open("a", buffering=1) as file:
        due = time.monotonic() + TICK_S
        while True:
            time.sleep(max(0.0, due - time.monotonic()))
            late = time.monotonic() - due
            if late >= LEAST_S:
                now = time.time()
                file.write(f"{now - late} {now}\n")
            due = time.monotonic() + TICK_S
