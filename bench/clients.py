"""Client processes for load whose answers feed the next call. Each holds many callers, over the plainest HTTP there is."""

import asyncio
import multiprocessing
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import orjson

ResultT = TypeVar("ResultT")

_TIMEOUT_S = 60


class Connection:
    """One kept connection to the service."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, url: str) -> Self:
        address = urlsplit(url)
        return cls(*await asyncio.open_connection(address.hostname, address.port))

    async def post(self, path: str, body: object) -> Any:
        """Make one call and return its answer, which must be 2xx."""
        content = orjson.dumps(body)
        head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        self._writer.write(head.encode() + content)
        async with asyncio.timeout(_TIMEOUT_S):
            answer = (await self._reader.readuntil(b"\r\n\r\n")).lower()
            length = int(answer.partition(b"content-length:")[2].partition(b"\r\n")[0])
            content = await self._reader.readexactly(length)
        if not answer.startswith(b"http/1.1 2"):
            raise RuntimeError(f"POST {path}: {answer.decode()} {content.decode()}")
        return orjson.loads(content)

    def close(self) -> None:
        self._writer.close()


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
