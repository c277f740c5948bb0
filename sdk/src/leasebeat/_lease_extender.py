"""`LeaseExtender`: beats extend a message's lease, so that only work in progress keeps it."""

import logging
import math
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from leasebeat._errors import LeaseLostError, ReceiptHandleExpiredError
from leasebeat._fork import reset_in_child
from leasebeat._heartbeat import Heartbeat

_log = logging.getLogger(__name__)

FIRST_RETRY_SHARE = 0.1  # of the interval
SHORTEST_RETRY_S = 0.1


class Extendable(Protocol):
    """A message whose lease can be extended."""

    @property
    def id(self) -> Any:
        """Names the message in the log."""

    def extend_visibility(self, seconds: int, /) -> object:
        """Move the end of the lease to `seconds` from now.

        Raises:
            ReceiptHandleExpiredError: If the lease is no longer held.
        """


@dataclass(frozen=True, slots=True)
class LeaseExtenderConfig:
    """How beats extend a lease.

    Attributes:
        interval: Least seconds between two extensions. 0 makes each beat extend.
        extension: Seconds from now until the lease's new end, at each extension.
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
        heartbeat.add_callback(attachment.on_beat)
        try:
            yield
        finally:
            heartbeat.remove_callback(attachment.on_beat)
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
        self._config = config
        self._lost = lost
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._extending = False
        self._not_before: float | None = None  # None until the first attempt: zero would look recent just after boot
        self._retry_pause: float | None = None
        reset_in_child(self)

    def after_fork(self) -> None:
        """In a child: the attempt that another thread was at goes on in the parent alone."""
        self._lock = threading.Lock()
        self._extending = False

    def on_beat(self) -> None:
        """Extend if it is time and no other thread is at it."""
        if not self._begin():
            return
        not_before = time.monotonic() + self._config.interval
        try:
            not_before = self._extend()
        finally:
            with self._lock:
                self._extending = False
                self._not_before = not_before
        if self._lost.is_set() and self._on_lost is not None:
            self._on_lost()

    def _begin(self) -> bool:
        """Take the right to the next attempt. The call itself runs outside the lock, so that no beat waits for it."""
        with self._lock:
            early = self._not_before is not None and time.monotonic() < self._not_before
            if self._extending or early or self._lost.is_set():
                return False
            self._extending = True
            return True

    def _extend(self) -> float:
        """Make one attempt, and return the earliest moment of the next."""
        started = time.monotonic()
        try:
            self._msg.extend_visibility(self._config.extension)
        except ReceiptHandleExpiredError:
            _log.warning("Lease extension failed for message %s: receipt handle expired", self._msg.id)
            self._lost.set()
        except LeaseLostError as error:
            _log.warning("Lease extension failed for message %s: %s", self._msg.id, error)
            self._lost.set()
        except Exception:  # noqa: BLE001 - work goes on, whatever the backend raises
            _log.exception("Lease extension failed for message %s", self._msg.id)
            return time.monotonic() + self._pause_after_failure()
        else:
            _log.debug("Extended visibility for message %s by %d seconds", self._msg.id, self._config.extension)
            self._retry_pause = None
        return started + self._config.interval

    def _pause_after_failure(self) -> float:
        """Sooner than an interval, as the lease runs meanwhile, but doubling, as the backend may be down."""
        longest = max(self._config.interval, SHORTEST_RETRY_S)
        first = max(self._config.interval * FIRST_RETRY_SHARE, SHORTEST_RETRY_S)
        self._retry_pause = first if self._retry_pause is None else self._retry_pause * 2
        self._retry_pause = min(self._retry_pause, longest)
        return self._retry_pause
