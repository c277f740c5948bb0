"""Where handlers run: here, in the thread of their task or in an event loop; `_process_pool` runs them in processes."""

import concurrent.futures
import inspect
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol, Self

from leasebeat._context import Context
from leasebeat._fork import ending_children
from leasebeat._loop_thread import LoopThread
from leasebeat._messages import LeasedMessage
from leasebeat._once_used import asyncio
from leasebeat._tracked_lease import TrackedLease

Handler = Callable[[LeasedMessage, Context], Any]
"""Does the work of one message and returns its output. A coroutine function is awaited in an event loop of its own thread."""

LOST_GRACE_S = 2.0  # for a handler to end by itself once its lease is lost
LOSS_LOOK_S = 0.5  # at whether the lease of a coroutine is lost, as it cannot wait for that


class HandlerCall(Protocol):
    """One call of a handler."""

    def run(self) -> Any:
        """Return what the handler returns, or raise what it raises."""

    def cancel(self) -> None:
        """Ask the handler to end, where that is possible from outside."""

    def wait_cancelled(self, until: float) -> None:
        """Wait until what was cancelled has ended, at most until a moment on `time.monotonic()`."""

    def close(self) -> None:
        """Make its place ready for the next call, once it is settled."""


class Handlers(Protocol):
    """A place where handlers run, while the `with` block does."""

    def call(self, context: Context, tracked: TrackedLease) -> HandlerCall:
        """Prepare to run the handler for a lease."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


class ThreadHandlers:
    """Runs handlers in the threads of their tasks, and coroutines in one event loop.

    A coroutine whose lease is lost hears of it, and is cancelled if it goes on all the same.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._loop = LoopThread("leasebeat-handlers")

    def call(self, context: Context, tracked: TrackedLease) -> "ThreadCall":
        """Prepare to run the handler for a lease."""
        return ThreadCall(self._handler, context, tracked, self._loop)

    def __enter__(self) -> Self:
        self._loop.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.__exit__(kind, error, trace)


class ThreadCall:
    """Runs a handler in the thread that asks for it. Only a coroutine can be cancelled; another handler hears from its context alone."""

    def __init__(self, handler: Handler, context: Context, tracked: TrackedLease, loop: LoopThread) -> None:
        self._handler = handler
        self._context = context
        self._tracked = tracked
        self._loop = loop
        self._lock = threading.Lock()
        self._work: Coroutine[Any, Any, Any] | None = None
        self._coroutine: concurrent.futures.Future[Any] | None = None
        self._begun = False
        self._ended = threading.Event()  # the future of a cancelled coroutine is done before the coroutine is

    def run(self) -> Any:
        """Return what the handler returns, or raise what it raises."""
        result = self._handler(self._context.message, self._context)
        if not inspect.iscoroutine(result):
            return result
        with self._lock:
            self._work = result
            self._coroutine = self._loop.submit(self._await(result))
        return self._coroutine.result()

    async def _await(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Await the handler, unless its lease was given back or lost before it could begin: the loop may have been busy for long."""
        with self._lock:
            self._begun = True
        try:
            self._tracked.raise_if_lost()
            with ending_children(), _cancelled_after(self._tracked.lost):
                return await work
        finally:
            work.close()
            self._ended.set()

    def cancel(self) -> None:
        """Cancel the handler if it is a coroutine. One that has not begun does not begin any more: its lease is marked as lost before.

        That one is closed here, as nothing else may be run of it: since Python 3.14.3 not even the `finally` of what awaits it.
        """
        with self._lock:
            coroutine = self._coroutine
            if self._work is not None and not self._begun:
                self._work.close()
                self._ended.set()
        if coroutine is not None:
            coroutine.cancel()

    def wait_cancelled(self, until: float) -> None:
        """Wait until a cancelled coroutine has ended, at most until a moment on `time.monotonic()`."""
        if self._coroutine is not None:
            self._ended.wait(max(0.0, until - time.monotonic()))

    def close(self) -> None:
        """Nothing is kept of a call."""


@contextmanager
def _cancelled_after(lost: threading.Event) -> Generator[None, None, None]:
    """Cancel the task that runs the block if it goes on after its lease is lost: it may wait for what never comes, and would for ever."""
    watch = asyncio.create_task(_cancel_after(lost, asyncio.current_task()))
    try:
        yield
    finally:
        watch.cancel()


async def _cancel_after(lost: threading.Event, task: "asyncio.Task[Any] | None") -> None:
    while not lost.is_set():
        await asyncio.sleep(LOSS_LOOK_S)
    await asyncio.sleep(LOST_GRACE_S)
    if task is not None:
        task.cancel()
