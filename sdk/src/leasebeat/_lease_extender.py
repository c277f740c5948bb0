"""`LeaseExtender`: beats extend a message's lease, so that only work in progress keeps it."""

import logging
import math
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from leasebeat._errors import LeaseLostError, ReceiptHandleExpiredError
from leasebeat._fork import reset_in_child
from leasebeat._heartbeat import Heartbeat
from leasebeat._leases import BeatResult

_log = logging.getLogger(__name__)

TRIES_PER_LEASE = 3
FIRST_RETRY_SHARE = 0.1  # of the pause between two extensions
SHORTEST_RETRY_S = 0.1

on_extension: ContextVar[Callable[[bool], object] | None] = ContextVar("leasebeat_on_extension", default=None)
"""Called in the thread that beat with what came of its extension: True if there was one, False if it failed."""


class Extendable(Protocol):
    """A message whose lease can be extended.

    One that also has a `valid_until`, on `time.monotonic()`, counts as lost from that moment on, whether or not anybody can be asked.
    """

    @property
    def id(self) -> Any:
        """Names the message in the log."""

    def extend_visibility(self, seconds: int, /) -> object:
        """Move the end of the lease to `seconds` from now.

        Raises:
            ReceiptHandleExpiredError: If the lease is no longer held.
        """


@runtime_checkable
class TakesProgress(Protocol):
    """A message that shows with each extension how much work is done."""

    def note_progress(self, progress: int, /) -> object:
        """Keep how many beats there were, to go with the next extension. The number only grows."""


@dataclass(frozen=True, slots=True)
class LeaseExtenderConfig:
    """How beats extend a lease.

    Whatever it says, three extensions fit into a lease, and into an `extension`: where the interval is too long for that, beats extend
    more often.

    Attributes:
        interval: Least seconds between two extensions. 0 makes each beat extend.
        extension: Seconds from now until the lease's new end, as each extension asks for. Messages of this package are extended by
            their queue's `extension` whatever is asked for, so that one setting rules all workers.
        enabled: Whether beats extend at all.
    """

    interval: float = 60.0
    extension: int = 300
    enabled: bool = True

    def __post_init__(self) -> None:
        """Check the times.

        Raises:
            ValueError: If `interval` is negative or not finite, or `extension` is not positive.
        """
        if not 0 <= self.interval < math.inf:
            raise ValueError(f"interval must be 0 or more seconds, not {self.interval}")
        if not 0 < self.extension < math.inf:
            raise ValueError(f"extension must be more than 0 seconds, not {self.extension}")


class LeaseExtender:
    """Extends the lease of one message at a time when its heartbeat beats.

    Example::

        extender = LeaseExtender(LeaseExtenderConfig(interval=30))
        heartbeat = Heartbeat()
        with extender.attach(message, heartbeat):
            work(heartbeat)  # each heartbeat.beat() extends the lease, at most once per interval
    """

    def __init__(self, config: LeaseExtenderConfig | None = None, *, on_lost: Callable[[], object] | None = None) -> None:
        """Make an extender.

        Args:
            config: When and by how much to extend. Defaults if None.
            on_lost: Called once per attachment, in the thread that beat, when the lease turns out to be lost.
        """
        self._config = config if config is not None else LeaseExtenderConfig()
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._attachment: _Attachment | None = None
        self._lost = threading.Event()

    @property
    def lost(self) -> threading.Event:
        """Set when the lease of the newest attachment turned out to be lost: its holder should stop."""
        return self._lost

    @contextmanager
    def attach(self, msg: Extendable, heartbeat: Heartbeat) -> Generator[None, None, None]:
        """Let the beats of `heartbeat` extend the lease of `msg`, inside the `with` block.

        The first beat extends at once; after that, one per interval does.

        Raises:
            RuntimeError: If this extender is attached already.
        """
        if not self._config.enabled:
            yield
            return
        attachment = self._attach(msg)
        heartbeat.add_callback(attachment)
        try:
            yield
        finally:
            heartbeat.remove_callback(attachment)
            with self._lock:
                self._attachment = None

    def _attach(self, msg: Extendable) -> "_Attachment":
        with self._lock:
            if self._attachment is not None:
                raise RuntimeError("LeaseExtender already attached")
            self._lost = threading.Event()
            self._attachment = _Attachment(msg, self._config, self._lost, self._on_lost)
            return self._attachment


class _Attachment:
    """One message while it is attached. Its own state, so that a late answer never touches the next message."""

    def __init__(self, msg: Extendable, config: LeaseExtenderConfig, lost: threading.Event, on_lost: Callable[[], object] | None) -> None:
        self._msg = msg
        self._note_progress = msg.note_progress if isinstance(msg, TakesProgress) else None
        self._config = config
        self._lost = lost
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._beats = 0
        self._extending = False
        self._answered_until = math.inf
        self._not_before: float | None = None  # None until the first attempt: zero would look recent just after boot
        self._retry_pause: float | None = None
        reset_in_child(self)

    def after_fork(self) -> None:
        """In a child: the attempt that another thread was at goes on in the parent alone."""
        self._lock = threading.Lock()
        self._extending = False

    def __call__(self) -> None:
        """Extend if it is time and no other thread is at it. A lease whose end has come is lost, also if nobody can be asked."""
        if self._begin():
            self._attempt()
        if self._remaining() <= 0:
            self._lose("receipt handle expired")

    def patience(self) -> float:
        """Seconds that may pass until the next beat: three beats, if all could extend, are to fit into the lease."""
        return min(self._config.extension, max(self._remaining(), 0.0)) / TRIES_PER_LEASE

    def _begin(self) -> bool:
        """Take the right to the next attempt. The call itself runs outside the lock, so that no beat waits for it."""
        with self._lock:
            self._beats += 1
            if self._note_progress is not None:
                self._note_progress(self._beats)  # inside the lock, so that it never goes back
            early = self._not_before is not None and time.monotonic() < self._not_before
            if self._extending or early or self._lost.is_set() or self._remaining() <= 0:
                return False
            self._extending = True
            return True

    def _attempt(self) -> None:
        not_before = time.monotonic() + self._pause()
        try:
            not_before = self._extend()
        finally:
            with self._lock:
                self._extending = False
                self._not_before = not_before

    def _extend(self) -> float:
        """Make one attempt, and return the earliest moment of the next."""
        started = time.monotonic()
        try:
            result = self._msg.extend_visibility(self._config.extension)
        except ReceiptHandleExpiredError:
            _tell(extended=False)
            self._lose("receipt handle expired")
        except LeaseLostError as error:
            _tell(extended=False)
            self._lose(str(error))
        except Exception:  # noqa: BLE001 - work goes on, whatever the backend raises
            _log.exception("Lease extension failed for message %s", self._msg.id)
            _tell(extended=False)
            return time.monotonic() + self._pause_after_failure()
        else:
            self._take_in(result)
        return started + self._pause()

    def _take_in(self, result: object) -> None:
        self._retry_pause = None
        seconds: float | None = self._config.extension
        if isinstance(result, BeatResult):
            self._answered_until = result.valid_until or self._answered_until
            if result.status != "extended":
                level = logging.WARNING if result.status == "stalled" else logging.DEBUG
                _log.log(level, "Visibility for message %s is not extended: %s", self._msg.id, result.status)
                return
            seconds = result.expires_in
        _log.debug("Extended visibility for message %s by %.0f seconds", self._msg.id, seconds)
        _tell(extended=True)

    def _lose(self, why: str) -> None:
        with self._lock:
            if self._lost.is_set():
                return
            self._lost.set()
        _log.warning("Lease extension failed for message %s: %s", self._msg.id, why)
        if self._on_lost is not None:
            self._on_lost()

    def _remaining(self) -> float:
        """Seconds until the lease ends: as its message says, or else the service's last answer."""
        valid_until = getattr(self._msg, "valid_until", None)
        return (valid_until if isinstance(valid_until, float) else self._answered_until) - time.monotonic()

    def _pause(self) -> float:
        """Seconds from one attempt to the next: the interval, unless the lease needs them sooner."""
        return min(self._config.interval, self.patience())

    def _pause_after_failure(self) -> float:
        """Sooner than the next extension, as the lease runs meanwhile, but doubling, as the backend may be down."""
        longest = max(self._pause(), SHORTEST_RETRY_S)
        first = max(self._pause() * FIRST_RETRY_SHARE, SHORTEST_RETRY_S)
        self._retry_pause = first if self._retry_pause is None else self._retry_pause * 2
        self._retry_pause = min(self._retry_pause, longest)
        return self._retry_pause


def _tell(*, extended: bool) -> None:
    tell = on_extension.get()
    if tell is not None:
        tell(extended)
