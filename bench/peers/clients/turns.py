"""Taking turns: a client waits for an order on standard input, carries it out, and says on standard output how much it has done.

An order is a line of JSON, `{"callers": 32, "size": 1, "seconds": 2.0}`; so is the answer, `{"jobs": 1234, "seconds": 2.01}`.
"""

import asyncio
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

import uvloop

TakenT = TypeVar("TakenT")

_EMPTY_S = 0.001
"""How long a caller waits who found nothing, because what it sent is in another's hands."""


class Peer(ABC):
    """What a client has to say of its peer."""

    @abstractmethod
    async def open(self) -> None:
        """Connect, and make an empty queue."""

    @abstractmethod
    async def cycle(self, size: int) -> None:
        """Bring that many jobs through their whole life: sent, taken, kept alive once, finished."""


class Queue(Peer, Generic[TakenT]):
    """A peer whose callers take and finish jobs themselves. Each verb makes the peer's call for one job, or its call for several."""

    async def cycle(self, size: int) -> None:
        await self.send(size)
        left = size
        while left:
            taken = await self.take(left)
            if taken:
                await self.keep(taken)
                await self.finish(taken)
                left -= len(taken)
            else:
                await asyncio.sleep(_EMPTY_S)

    @abstractmethod
    async def send(self, size: int) -> None: ...

    @abstractmethod
    async def take(self, size: int) -> Sequence[TakenT]: ...

    @abstractmethod
    async def keep(self, taken: Sequence[TakenT]) -> None: ...

    @abstractmethod
    async def finish(self, taken: Sequence[TakenT]) -> None: ...


class Handled:
    """For peers whose workers call a handler: lets a caller wait until all that it sent has been handled."""

    def __init__(self) -> None:
        self._left: dict[int, int] = {}
        self._done: dict[int, asyncio.Event] = {}
        self._batches = 0

    def expect(self, size: int) -> int:
        """Return a number for so many jobs, which they carry to their handler."""
        self._batches += 1
        self._left[self._batches] = size
        self._done[self._batches] = asyncio.Event()
        return self._batches

    def handled(self, batch: int) -> None:
        self._left[batch] -= 1
        if self._left[batch] == 0:
            self._done[batch].set()

    async def all_of(self, batch: int) -> None:
        await self._done[batch].wait()
        del self._left[batch], self._done[batch]


def serve(peer: Peer) -> None:
    """Open the peer, say that it is ready, and take orders until there are no more."""
    uvloop.run(_serve(peer))


async def _serve(peer: Peer) -> None:
    await peer.open()
    _say({"ready": True})
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order = json.loads(line)
        _say(await _turn(peer, order["callers"], order["size"], order["seconds"]))
    os._exit(0)  # not every library's worker stops when its loop is closed


async def _turn(peer: Peer, callers: int, size: int, seconds: float) -> dict[str, float]:
    begin = time.monotonic()

    async def call() -> int:
        jobs = 0
        while time.monotonic() - begin < seconds:
            await peer.cycle(size)
            jobs += size
        return jobs

    jobs = sum(await asyncio.gather(*(call() for _ in range(callers))))
    return {"jobs": jobs, "seconds": time.monotonic() - begin}


def _say(answer: dict[str, float]) -> None:
    print(json.dumps(answer), flush=True)
