"""`LoopThread`: an event loop in a thread of its own, for code that is not asynchronous itself."""

import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from leasebeat._once_used import asyncio

T = TypeVar("T")

CLEANUP_TIMEOUT_S = 1.0
JOIN_TIMEOUT_S = 2.0  # longer than the clean-up; a coroutine that blocks its loop must not hold the caller up for ever


class LoopThread:
    """Runs coroutines for other threads. Leaving the `with` block cancels what still runs."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
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
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(JOIN_TIMEOUT_S)

    def _run(self) -> None:
        try:
            while not self._runs_to_its_end():
                pass
            self._loop.run_until_complete(_cancel_all(self._loop))
        finally:
            self._loop.close()

    def _runs_to_its_end(self) -> bool:
        """Run until the loop is stopped. Returns False if a coroutine of others wanted to end the program: that is its own end alone."""
        try:
            self._loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            return False
        return True


async def _cancel_all(loop: "asyncio.AbstractEventLoop") -> None:
    """Cancel what still runs, and give it a moment to clean up."""
    running = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running, timeout=CLEANUP_TIMEOUT_S)
