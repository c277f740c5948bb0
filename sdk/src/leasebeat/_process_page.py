"""What a handler in a process of its own and its worker say to each other.

Reports go up through a page of shared memory, so that a beat is a few stores, whatever the worker is busy with. Everything else goes
through a pipe, as one of the classes here.
"""

import ctypes
import json
import threading
import time
import zlib
from dataclasses import dataclass
from typing import Any

from leasebeat._errors import GiveUp, RetryLater, lease_error
from leasebeat._fork import reset_in_child
from leasebeat._messages import LeasedMessage
from leasebeat._tracked_lease import MAX_DETAIL_BYTES, check_progress, detail_text

NO_PROGRESS = -1


class Page(ctypes.Structure):
    """What both processes see. The child writes its report, the worker all else."""

    serial: int
    beats: int
    progress: int
    detail: bytes
    detail_sum: int
    valid_until: float
    ending: int

    _fields_ = (
        ("serial", ctypes.c_uint64),  # of the lease: what an earlier handler has left behind knows another
        ("beats", ctypes.c_int64),
        ("progress", ctypes.c_int64),
        ("detail", ctypes.c_char * (MAX_DETAIL_BYTES + 1)),
        ("detail_sum", ctypes.c_uint32),  # what is half written has another sum
        ("valid_until", ctypes.c_double),  # on the monotonic clock, which is one for all processes of a machine
        ("ending", ctypes.c_uint8),  # whether a SIGTERM comes from the worker, and not from whoever stops them all
    )

    def clear(self, valid_until: float) -> None:
        """Make it ready for another lease."""
        self.serial += 1
        self.beats, self.progress, self.detail, self.detail_sum = 0, NO_PROGRESS, b"", 0
        self.valid_until, self.ending = valid_until, 0

    def report(self) -> tuple[int | None, Any]:
        """The newest report: progress and detail. A detail that is half written is None."""
        detail, whole = self.detail, self.detail_sum
        known = bool(detail) and zlib.crc32(detail) == whole
        return None if self.progress == NO_PROGRESS else self.progress, json.loads(detail) if known else None


class PagedHold:
    """The child's hold on a lease. Once that is over, nothing more is written: the page is for another lease then."""

    def __init__(self, page: Page, message_id: str) -> None:
        self.lost = threading.Event()
        self._page = page
        self._serial = page.serial
        self._message_id = message_id
        self._loss: str | None = None
        self._lock = threading.Lock()
        reset_in_child(self)

    def after_fork(self) -> None:
        """Another thread of the parent may hold the lock for ever."""
        self._lock = threading.Lock()

    def note(self, progress: int | None = None, detail: Any = None) -> None:
        """Keep a report as the newest, to go with the next beat.

        Raises:
            ValueError: If the service would refuse it.
            TypeError: If `progress` is not an integer, or `detail` has no JSON form.
        """
        check_progress(progress)
        text = None if detail is None else detail_text(detail).encode()
        with self._lock:
            if self._is_over:
                return
            if progress is not None:
                self._page.progress = progress
            if text is not None:
                self._page.detail, self._page.detail_sum = text, zlib.crc32(text)

    def move(self) -> bool:
        """Count a beat. The worker looks by itself."""
        with self._lock:
            if not self._is_over:
                self._page.beats += 1
        return False

    def remaining(self) -> float:
        """Seconds until the local deadline: none, if the page is another lease's."""
        return self._page.valid_until - time.monotonic() if self._owns_page else 0.0

    def raise_if_lost(self) -> None:
        """Raise why the lease is over, if it is.

        Raises:
            LeaseLostError: The subclass for the reason.
        """
        if self._loss is None and self.remaining() <= 0:
            self.lose("expired" if self._owns_page else "settled")
        if self._loss is not None:
            raise lease_error(self._loss, self._message_id)

    def lose(self, status: str) -> None:
        """Let the handler know that the lease is over."""
        with self._lock:
            self._loss = self._loss or status
        self.lost.set()

    @property
    def _is_over(self) -> bool:
        return self._loss is not None or not self._owns_page

    @property
    def _owns_page(self) -> bool:
        """Whether no other lease has begun. A process that the handler forked hears of its end in no other way."""
        return self._page.serial == self._serial


# --- to the child


@dataclass(frozen=True, slots=True)
class Job:
    """A lease to work under. Its receipt stays with the worker, who settles."""

    message: LeasedMessage
    attempt: int
    generation: int
    worker_id: str
    trace: dict[str, str]


@dataclass(frozen=True, slots=True)
class Stopping:
    """The worker is shutting down."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The lease is over."""

    status: str


# --- to the worker


@dataclass(frozen=True, slots=True)
class Ready:
    """The child is there."""


@dataclass(frozen=True, slots=True)
class Returned:
    """The handler's output, as JSON."""

    output: bytes


@dataclass(frozen=True, slots=True)
class Raised:
    """How the handler failed: in words, as not every exception survives the way from one process to another."""

    kind: str
    said: str
    trace: str
    final: bool
    delay: float | None

    def error(self) -> BaseException:
        """Make an exception that the worker treats as the one raised in the child."""
        if self.delay is not None:
            error: Exception = type(self.kind, (RetryLater,), {})(self.said, delay=self.delay)
        else:
            error = type(self.kind, (GiveUp if self.final else Exception,), {})(self.said)
        error.__cause__ = RemoteTraceError(self.trace)
        return error


class RemoteTraceError(Exception):
    """Shows in logs where in the child its handler failed."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"
