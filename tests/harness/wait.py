"""Waiting for something to become true, without guessing how long it takes."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LONGEST_PAUSE_S = 0.05


def until(probe: Callable[[], T], timeout: float = 60.0, pause: float = 0.005) -> T:
    """Call `probe` until what it returns is true, and return that. A machine that stands still for seconds fails no test by it.

    The pause between two calls grows with the wait: else those that wait would leave little of the machine to what they wait for.
    """
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if found := probe():
            return found
        time.sleep(pause)
        pause = max(pause, min(1.2 * pause, LONGEST_PAUSE_S))
    raise AssertionError(f"not true within {timeout} s")
