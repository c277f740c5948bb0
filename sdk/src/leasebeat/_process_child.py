"""What runs in a process that works for a `ProcessHandlers`."""

import contextlib
import inspect
import os
import queue
import signal
import sys
import threading
import traceback
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

from leasebeat._context import Context
from leasebeat._errors import GiveUp, RetryLater
from leasebeat._failure import said
from leasebeat._fork import ending_children
from leasebeat._handlers import Handler
from leasebeat._once_used import asyncio
from leasebeat._process_page import Job, Lost, Page, PagedHold, Raised, Ready, Returned, Stopping
from leasebeat._signals import STOP_SIGNALS
from leasebeat._tracing import continuing
from leasebeat._wire import encode

if sys.platform != "win32":
    import fcntl

END = 143  # as of a process that SIGTERM ended


def serve(connection: "Connection[Any, Any]", page: Page, handler: Handler) -> None:
    """Run the handler for one job after another, until the worker closes the connection."""
    _Child(connection, page, handler).run()


class _Child:
    """The handler runs in the main thread; another one hears what the worker says meanwhile."""

    def __init__(self, connection: "Connection[Any, Any]", page: Page, handler: Handler) -> None:
        self._connection = connection
        self._page = page
        self._handler = handler
        self._pid = os.getpid()
        self._jobs: queue.SimpleQueue[tuple[Job, PagedHold] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._hold: PagedHold | None = None

    def run(self) -> None:
        _end_with_parent()
        for number in STOP_SIGNALS:
            signal.signal(number, self._be_ended)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        threading.Thread(target=self._listen, name="leasebeat-worker", daemon=True).start()
        self._say(Ready())
        for job, hold in iter(self._jobs.get, None):
            outcome = self._work(job, hold)
            self._hold = None
            hold.lose("settled")  # a thread that the handler has left behind must not beat for the next message
            self._say(outcome)

    def _say(self, news: Ready | Returned | Raised) -> None:
        """Tell the worker, unless it has closed the connection meanwhile, which ends this process."""
        with contextlib.suppress(OSError):
            self._connection.send(news)

    def _work(self, job: Job, hold: PagedHold) -> Returned | Raised:
        context = Context(
            job.message,
            hold,
            attempt=job.attempt,
            generation=job.generation,
            worker_id=job.worker_id,
            stopping=self._stopping,
            on_move=lambda: None,
        )
        try:
            with ending_children(), continuing(job.trace):
                output = self._handler(job.message, context)
                if inspect.iscoroutine(output):
                    output = asyncio.run(output)
            return Returned(encode(output))
        except BaseException as error:  # noqa: BLE001 - whatever ends a handler, SystemExit included, ends its attempt
            return _raised(error)

    def _listen(self) -> None:
        try:
            while True:
                self._hear(self._connection.recv())
        except (EOFError, OSError):
            if self._hold is not None:
                os._exit(END)  # nobody is left to tell the outcome to
            self._jobs.put(None)

    def _hear(self, news: object) -> None:
        match news:
            case Job():
                self._hold = PagedHold(self._page, news.message.id)
                self._jobs.put((news, self._hold))
            case Stopping():
                self._stopping.set()
            case Lost() if self._hold is not None:
                self._hold.lose(news.status)

    def _be_ended(self, _signal: int, _frame: FrameType | None) -> None:
        """End the handler if the worker asks for it. Who signals a whole group, as a terminal does, means the worker, which drains."""
        if self._page.ending or os.getpid() != self._pid:
            raise SystemExit(END)


def _end_with_parent() -> None:
    """Have the kernel end this process when its worker dies, even while the handler keeps the interpreter busy.

    The worker holds the other end of a pipe that nothing is written to. When that end closes, SIGIO comes, whose default is to end.
    """
    parent = parent_process()
    if sys.platform != "win32" and parent is not None:
        lifeline = int(parent.sentinel)
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _raised(error: BaseException) -> Raised:
    return Raised(
        kind=type(error).__name__,
        said=said(error),
        trace="".join(traceback.format_exception(error)),
        final=isinstance(error, GiveUp),
        delay=error.delay if isinstance(error, RetryLater) else None,
    )
