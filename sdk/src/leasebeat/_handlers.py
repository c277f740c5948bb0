"""Where handlers run: here, in the thread of their task or in an event loop; `_process_pool` runs them in processes."""

import concurrent.futures
import inspect
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from dataclasses import dataclass
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


class GiveBack(Exception):  # noqa: N818 - a decision, not an error
    """Raised by a call whose work was not done as the worker stops: its handler never ran, or was told to end. The message goes back."""


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
        self._watch = LossWatch()

    def call(self, context: Context, tracked: TrackedLease) -> "ThreadCall":
        """Prepare to run the handler for a lease."""
        return ThreadCall(self._handler, context, tracked, self._loop, self._watch)

    def __enter__(self) -> Self:
        self._loop.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.__exit__(kind, error, trace)


class ThreadCall:
    """Runs a handler in the thread that asks for it. Only a coroutine can be cancelled; another handler hears from its context alone."""

    def __init__(self, handler: Handler, context: Context, tracked: TrackedLease, loop: LoopThread, watch: "LossWatch") -> None:
        self._handler = handler
        self._context = context
        self._tracked = tracked
        self._loop = loop
        self._watch = watch
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
            with ending_children(), self._watch.over(self._tracked.lost):
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


class LossWatch:
    """Cancels tasks that go on after their leases are lost: they may wait for what never comes, and would for ever.

    All of it runs in the event loop of the tasks, and looks at all of them at once, so that it wakes the loop no oftener for many.
    """

    def __init__(self) -> None:
        self._watched: dict[asyncio.Task[Any], Watched] = {}
        self._next_look: asyncio.TimerHandle | None = None

    @contextmanager
    def over(self, lost: threading.Event) -> Generator[None, None, None]:
        """Watch the task that runs the block."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine of a `LoopThread` runs in one
        self._watched[task] = Watched(lost)
        if self._next_look is None:
            self._look_later()
        try:
            yield
        finally:
            del self._watched[task]

    def _look_later(self) -> None:
        self._next_look = asyncio.get_running_loop().call_later(LOSS_LOOK_S, self._look)

    def _look(self) -> None:
        for task, watched in self._watched.items():
            if watched.is_overdue() and not task.cancelling():  # it may be cleaning up, as the worker stops
                task.cancel()
        self._next_look = None
        if self._watched:
            self._look_later()


@dataclass(slots=True)
class Watched:
    """What is known of a task that is watched. `cancel_at` is on `time.monotonic()`, once its lease is seen to be lost."""

    lost: threading.Event
    cancel_at: float | None = None

    def is_overdue(self) -> bool:
        """Whether it has had its time to end by itself."""
        if not self.lost.is_set():
            return False
        if self.cancel_at is None:
            self.cancel_at = time.monotonic() + LOST_GRACE_S
        return time.monotonic() >= self.cancel_at
