"""`LoopThread`: an event loop in a thread of its own, for code that is not asynchronous itself."""

import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from leasebeat._fork import end_child, ending_children
from leasebeat._once_used import asyncio

T = TypeVar("T")

CLEANUP_TIMEOUT_S = 1.0
JOIN_TIMEOUT_S = 2.0  # longer than the clean-up; a coroutine that blocks its loop must not hold the caller up for ever


class LoopThread:
    """Runs coroutines for other threads. Leaving the `with` block cancels what still runs.

    What would end the program ends only the coroutine that raised it.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._over = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine. Cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def soon(self, work: Callable[[], object]) -> None:
        """Have something done in the thread, unless it has ended. Signal handlers may call it: it takes no lock."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(work)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._over.set_result, None)
        self._thread.join(JOIN_TIMEOUT_S)

    def _run(self) -> None:
        self._process = os.getpid()
        self._loop.set_exception_handler(self._hear)
        try:
            self._run_until(self._over)
            self._run_until(self._loop.create_task(_cancel_all(self._loop)))
        finally:
            self._loop.close()

    def _run_until(self, end: "asyncio.Future[None]") -> None:
        while not end.done():
            with suppress(SystemExit, KeyboardInterrupt), ending_children():
                self._loop.run_until_complete(end)

    def _hear(self, loop: "asyncio.AbstractEventLoop", context: dict[str, Any]) -> None:
        """Hear of what nobody else does, as the end of a child in a task: since Python 3.14 its loop only says that it runs no more."""
        error = context.get("exception")
        if os.getpid() != self._process and error is not None:
            end_child(error.__context__ or error)
        loop.default_exception_handler(context)


async def _cancel_all(loop: "asyncio.AbstractEventLoop") -> None:
    """Cancel what still runs, and give it a moment to clean up."""
    running = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running, timeout=CLEANUP_TIMEOUT_S)
