"""Client processes for load whose answers feed the next call. Each holds many callers."""

import asyncio
import multiprocessing
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


async def moments(rate: float, seconds: float) -> AsyncIterator[None]:
    """Come so many times a second. Each time has its moment; whatever comes late makes none of the others late."""
    started = time.monotonic()
    for number in range(int(rate * seconds)):
        await asyncio.sleep(started + number / rate - time.monotonic())
        yield


@contextmanager
def processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """Run client processes for the length of a block: what is submitted runs in one of them."""
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as pool:
        try:
            yield pool
        except BaseException:
            for client in multiprocessing.active_children():  # else the pool would wait for what they are at
                client.terminate()
            raise


def in_a_process(work: Callable[..., ResultT], *arguments: Any, timeout: float) -> ResultT:
    """Run a function in a process of its own, and return what it returns."""
    with processes(1) as pool:
        future: Future[ResultT] = pool.submit(work, *arguments)
        return future.result(timeout)
