"""Waiting for something to become true, without guessing how long it takes."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(probe: Callable[[], T], timeout: float = 60.0, pause: float = 0.005) -> T:
    """Call `probe` until what it returns is true, and return that. A machine that stands still for seconds fails no test by it."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if found := probe():
            return found
        time.sleep(pause)
    raise AssertionError(f"not true within {timeout} s")
