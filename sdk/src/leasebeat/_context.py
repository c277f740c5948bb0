"""`Context`: what a handler gets besides its message."""

import threading
from collections.abc import Callable
from typing import Any, Protocol

from leasebeat._heartbeat import Heartbeat
from leasebeat._messages import LeasedMessage

BEATS_PER_LEASE = 3  # at least, of whoever passes on only some


class Hold(Protocol):
    """The hold on a lease, in the process where its handler runs."""

    lost: threading.Event

    def note(self, progress: int | None = None, detail: Any = None) -> None:
        """Keep a report as the newest."""

    def move(self) -> bool:
        """Count a beat. Returns whether somebody has to be told."""

    def raise_if_lost(self) -> None:
        """Raise why the lease is over, if it is."""

    def remaining(self) -> float:
        """Seconds until the local deadline."""


class _Moving:
    """Hears the beats of a handler."""

    def __init__(self, hold: Hold, on_move: Callable[[], None]) -> None:
        self._hold = hold
        self._on_move = on_move

    def __call__(self) -> None:
        if self._hold.move():
            self._on_move()

    def patience(self) -> float:
        """Seconds that may pass until the next beat."""
        return max(self._hold.remaining(), 0.0) / BEATS_PER_LEASE


class Context:
    """The handler's side of one lease. Safe to use from any thread that works on the message.

    Attributes:
        message: The message, with the last progress and detail of its previous lease.
        attempt: 1 on the first attempt.
        generation: The number of the lease among the message's leases: a fencing token for effects outside.
        worker_id: Who works on it.
        heartbeat: A heartbeat whose beats count as `beat()` does, for code that knows only heartbeats.
        stopping: Set when the worker is shutting down and would like the handler to finish soon.
    """

    def __init__(
        self,
        message: LeasedMessage,
        hold: Hold,
        *,
        attempt: int,
        generation: int,
        worker_id: str,
        stopping: threading.Event,
        on_move: Callable[[], None],
    ) -> None:
        """Put together what a worker knows. `on_move` is called for a beat of which somebody has to be told."""
        self.message = message
        self.attempt = attempt
        self.generation = generation
        self.worker_id = worker_id
        self.stopping = stopping
        self.heartbeat = Heartbeat()
        self._hold = hold
        self.heartbeat.add_callback(_Moving(hold, on_move))

    @property
    def lost(self) -> threading.Event:
        """Set as soon as the lease is known to be over: expired, taken over, cancelled or released."""
        return self._hold.lost

    def beat(self, progress: int | None = None, detail: Any = None) -> None:
        """Prove that the work moves. Call it as often as you like: it costs microseconds, and another thread sends it.

        Args:
            progress: How much real work is done: any number that grows with it, from 0. None keeps the last one.
            detail: Where the work stands, for whoever resumes it: any JSON value of at most 8 KiB. None keeps the last one.

        Raises:
            LeaseLostError: The subclass that says why the lease is over. Stop then: somebody else may be at work.
            ValueError: If `progress` or `detail` breaks a limit.
            TypeError: If `progress` is not an integer, or `detail` has no JSON form.
        """
        self._hold.raise_if_lost()
        self._hold.note(progress, detail)
        self.heartbeat.beat()

    def remaining(self) -> float:
        """Seconds left to work if no further beat extends the lease; 0 or less once it has run out."""
        return self._hold.remaining()
