"""`Heartbeat`: proof that work moves, and the moment of the last one."""

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from leasebeat._fork import reset_in_child

_log = logging.getLogger(__name__)

Callback = Callable[[], object]


@runtime_checkable
class Patient(Protocol):
    """A callback that says how long it can do without another beat."""

    def patience(self) -> float:
        """Seconds that may pass until the next beat."""

    def __call__(self) -> object:
        """Hear of a beat."""


class Heartbeat:
    """A thread-safe record of the last beat, with callbacks that hear of each beat."""

    __slots__ = ("__weakref__", "_callbacks", "_last_beat", "_lock", "_on_beat")

    def __init__(self) -> None:
        """Start counting: the moment of creation is the first beat."""
        self._lock = threading.Lock()
        self._last_beat = time.monotonic()
        self._callbacks: tuple[Callback, ...] = ()
        self._on_beat: Callback | None = None
        reset_in_child(self)

    def after_fork(self) -> None:
        """Another thread of the parent may hold the lock for ever."""
        self._lock = threading.Lock()

    def beat(self) -> None:
        """Record a beat, then call the callbacks in the order they were added.

        They may use this heartbeat. One that raises is logged, and the next one runs.
        """
        self._last_beat = time.monotonic()  # without the lock, which another thread may hold when a process is forked
        for callback in self._callbacks:
            try:
                callback()
            except Exception:  # noqa: BLE001 - a beat must not fail for what hears of it
                _log.exception("Heartbeat callback %r failed", callback)

    def elapsed(self) -> float:
        """Seconds since the last beat."""
        return time.monotonic() - self._last_beat

    def patience(self) -> float:
        """Seconds that whoever passes on only some beats may let pass between two: infinity, if no callback minds."""
        return min((callback.patience() for callback in self._callbacks if isinstance(callback, Patient)), default=math.inf)

    def add_callback(self, callback: Callback) -> None:
        """Have `callback()` called on each beat, after those that were added before."""
        with self._lock:
            self._callbacks = (*self._callbacks, callback)

    def remove_callback(self, callback: Callback) -> None:
        """Stop calling a callback.

        Raises:
            ValueError: If it is not among the callbacks.
        """
        with self._lock:
            remaining = list(self._callbacks)
            remaining.remove(callback)
            self._callbacks = tuple(remaining)

    @property
    def on_beat(self) -> Callback | None:
        """The one callback that was set by assignment. Assigning adds it, in place of the one assigned before."""
        return self._on_beat

    @on_beat.setter
    def on_beat(self, callback: Callback | None) -> None:
        with self._lock:
            kept = list(self._callbacks)
            if self._on_beat in kept:
                kept.remove(self._on_beat)
            self._callbacks = tuple(kept) if callback is None else (*kept, callback)
            self._on_beat = callback
