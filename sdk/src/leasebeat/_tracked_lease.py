"""One lease as the worker process sees it: what was reported, until when it is safe to work, and whether it is lost."""

import json
import math
import threading
import time
from dataclasses import replace
from typing import Any

from leasebeat._errors import LeaseLostError, lease_error
from leasebeat._leases import Beat, BeatResult, Lease
from leasebeat._retry import Pauses
from leasebeat._wire import storable_text

MAX_PROGRESS = 2**63 - 1
MAX_DETAIL_BYTES = 8 * 1024

SPACING_SHARE = 0.05  # of the time left: beats of a lease that always extends are no closer than this
LONGEST_SPACING_S = 1.0
SHORTEST_SPACING_S = 0.02


class TrackedLease:
    """The state that handler, sender and settlement share. Everything is safe to call from any thread.

    Its end is decided once: whoever calls `begin_settling` first, the handler's result or the shutdown, settles it.
    """

    def __init__(self, lease: Lease) -> None:
        self._granted = lease
        self.receipt = lease.receipt
        self.message_id = lease.message.id
        self.lost = threading.Event()
        self.is_refused = False
        """Whether a beat of this lease alone was refused."""
        self.valid_until = lease.valid_until
        self._length = self.remaining()
        self._extendable = lease.expires_in < lease.deadline_in  # as far as is known
        self._due_at = time.monotonic()  # the first beat goes out at once
        self._progress: int | None = None
        self._detail: str | None = None
        self._refused_detail: str | None = None
        self._bare = False  # whether the next beat goes without a detail
        self._moved = False
        self._announced = False
        self._has_moved = False
        self._in_flight: Beat | None = None
        self._urgent = False
        self._settling = False
        self._loss: str | None = None
        self._backoff = Pauses()
        self._changed = threading.Condition(threading.Lock())

    # --- the handler's side

    def note(self, progress: int | None = None, detail: Any = None) -> None:
        """Keep a report as the newest, to go with the next beat.

        Raises:
            ValueError: If the service would refuse it.
            TypeError: If `progress` is not an integer, or `detail` has no JSON form.
        """
        check_progress(progress)
        text = None if detail is None else detail_text(detail)  # now, as the handler may go on changing it
        with self._changed:
            self._progress = self._progress if progress is None else progress
            self._detail = self._detail if text is None else text

    def move(self) -> bool:
        """Count a beat. Returns whether the sender has to be woken: it is the first since the last one was sent, or put back."""
        with self._changed:
            first, self._announced, self._moved, self._has_moved = not self._announced, True, True, True
            return first

    def raise_if_lost(self) -> None:
        """Raise why the lease is over, if it is.

        Raises:
            LeaseLostError: The subclass for the reason.
        """
        if self._loss is None:
            self.check_deadline()
        if self._loss is not None:
            raise lease_error(self._loss, self.message_id)

    def remaining(self) -> float:
        """Seconds until the local deadline."""
        return self.valid_until - time.monotonic()

    @property
    def lease(self) -> Lease:
        """The lease as it stands, so that calls for it know how long it lasts."""
        return replace(self._granted, valid_until=self.valid_until)

    @property
    def loss(self) -> LeaseLostError | None:
        """Why the lease is over, if it is."""
        return None if self._loss is None else lease_error(self._loss, self.message_id)

    # --- the sender's side

    @property
    def next_beat_at(self) -> float:
        """When a beat is worth sending: never, if the work has not moved since the last one, or the lease has run out."""
        with self._changed:
            if not self._moved or self._loss is not None or self.remaining() <= 0:
                return math.inf
            return 0.0 if self._urgent else self._due_at

    @property
    def beaten_until(self) -> float:
        """By when its next beat must be answered: infinity, if nobody beats for it or it has run out.

        A lease with nothing to send may have to be beaten for in the next moment, but counts as if it had just been extended: one that is
        silent until it ends must not leave the beats of others ever less time. Nor must one that no beat extends: it is at its hard end,
        or the service refuses its beats.
        """
        with self._changed:
            if not (self._has_moved and self._extendable) or self._loss is not None or self.remaining() <= 0:
                return math.inf
            waits = self._moved or self._in_flight is not None
            return self.valid_until if waits else time.monotonic() + self._length

    @property
    def ends_at(self) -> float:
        """When the lease counts as lost: never, if it is being settled or lost already."""
        with self._changed:
            return math.inf if self._settling or self._loss is not None else self.valid_until

    def drop_report(self) -> None:
        """Have nothing more to send, so that nobody waits for it."""
        with self._changed:
            self._moved, self._urgent, self._in_flight = False, False, None
            self._changed.notify_all()

    def take(self) -> Beat:
        """The beat to send. From here on, only a newer report counts as unsent."""
        with self._changed:
            self._moved, self._announced = False, False
            text = None if self._bare or self._detail == self._refused_detail else self._detail
            self._bare = False
            beat = self._in_flight = Beat(self.receipt, self._progress, None if text is None else json.loads(text))
            return beat

    def refuse_detail(self) -> bool:
        """The service does not take what was sent. Returns whether it had a detail, which is not sent again; the next beat has none."""
        with self._changed:
            if self._in_flight is None or self._in_flight.detail is None:
                return False
            self._refused_detail = json.dumps(self._in_flight.detail, separators=(",", ":"))
            self._bare = True
            return True

    def put_back(self, beat: Beat, pause: float = 0.0) -> None:
        """The beat was not answered, so it counts as unsent, if no other was sent since. Whether the lease lives is unknown until it ends.

        With `pause`, the next one waits so many seconds.
        """
        with self._changed:
            if self._in_flight is not beat:
                return
            self._moved, self._announced, self._in_flight, self._urgent = True, False, None, False
            self._due_at = max(self._due_at, time.monotonic() + pause)
            self._changed.notify_all()

    def put_back_in_flight(self) -> None:
        """Wait no longer for an answer."""
        beat = self._in_flight
        if beat is not None:
            self.put_back(beat)

    def postpone(self, beat: Beat) -> None:
        """The service could not do this beat: it is put back, and waits a while, longer each time."""
        self.put_back(beat, self._backoff.pause())
        self._extendable = False

    def refuse(self) -> None:
        """The service, or what is in front of it, refuses the beat that was sent alone: it is postponed, and goes alone from now on."""
        beat = self._in_flight
        if beat is not None:
            self.is_refused = True
            self.postpone(beat)

    def apply(self, beat: Beat, result: BeatResult) -> None:
        """Take over what the service says about a beat, which may have been given up since, and another sent."""
        if not (result.succeeded or result.refused):
            self.postpone(beat)
            return
        with self._changed:
            if result.valid_until is not None:
                self.valid_until = max(self.valid_until, result.valid_until)  # answers may overtake each other, and none shortens
            if self._in_flight is beat:
                self._in_flight = None
                self._urgent = self._urgent and self._moved
                self.is_refused = False
                self._backoff.reset()
                if result.expires_in is not None and result.valid_until is not None:
                    self._length = result.expires_in
                    self._extendable = result.next_beat_in != result.expires_in  # which says: at the end, for what it is worth
                    self._due_at = _next_due(result.valid_until - result.expires_in, result.expires_in, result.next_beat_in)
                self._changed.notify_all()
        if result.refused:
            self.lose(result.status)

    def check_deadline(self) -> None:
        """Lose the lease if its time is up."""
        if self.remaining() > 0:  # without the lock, as each beat of the handler asks
            return
        with self._changed:
            if self.remaining() <= 0:
                self._lose("expired")

    def lose(self, status: str) -> None:
        """Let the holder know that the lease is over, unless it is being settled: then the settlement's answer decides."""
        with self._changed:
            self._lose(status)

    def _lose(self, status: str) -> None:
        if self._settling or self._loss is not None:
            return
        self._loss, self._urgent = status, False
        self._changed.notify_all()
        self.lost.set()

    # --- the settlement's side

    def begin_settling(self, *, loss: str | None = None) -> bool:
        """Take the right to settle, which only the first caller gets. With `loss`, the handler is told to stop."""
        with self._changed:
            if self._settling:
                return False
            self._settling = True
            self._loss = self._loss or loss
        if loss is not None:
            self.lost.set()
        return True

    def hurry(self) -> bool:
        """Make an unsent report due now. Returns whether there is one."""
        with self._changed:
            has_report = self._progress is not None or self._detail is not None
            self._urgent = self._moved and has_report and self._loss is None
            return self._urgent or self._in_flight is not None

    def wait_until_sent(self, timeout: float) -> None:
        """Wait until nothing urgent is left to send, at most `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._urgent and self._in_flight is None, timeout)

    def after_fork(self) -> None:
        """In a child: what is unsent is the parent's to send."""
        self._changed = threading.Condition(threading.Lock())
        self._moved = self._announced = self._urgent = False
        self._in_flight = None


def _next_due(sent_at: float, expires_in: float, next_beat_in: float | None) -> float:
    """When the next beat is worth sending: when it can extend, or at half of the time left, whichever is first."""
    soonest = min(max(expires_in * SPACING_SHARE, SHORTEST_SPACING_S), LONGEST_SPACING_S)
    half = expires_in / 2
    return sent_at + max(soonest, half if next_beat_in is None else min(next_beat_in, half))


def check_progress(progress: int | None) -> None:
    """Refuse what the service would.

    Raises:
        ValueError: If it is out of range.
        TypeError: If it is not an integer.
    """
    if progress is None:
        return
    if not isinstance(progress, int) or isinstance(progress, bool):
        raise TypeError(f"progress must be an integer, not {type(progress).__name__}")
    if not 0 <= progress <= MAX_PROGRESS:
        raise ValueError(f"progress must be from 0 to {MAX_PROGRESS}, not {progress}")


def detail_text(detail: Any) -> str:
    """Write a detail as JSON, in ASCII.

    Raises:
        ValueError: If it is too long, a number in it is not finite, or it has U+0000 or half of a surrogate pair in it.
        TypeError: If it has no JSON form.
    """
    text = storable_text(detail, "detail")
    if len(text) > MAX_DETAIL_BYTES:
        raise ValueError(f"detail is {len(text)} bytes of JSON, at most {MAX_DETAIL_BYTES} are allowed")
    return text
