"""awa: a worker in the process that sends; batches by its COPY. Its heartbeats are the worker's, for all that it runs."""

import sys
from dataclasses import dataclass

import awa

from .turns import Handled, Peer, serve

_WORKERS = 128


@dataclass
class Work:
    batch: int


class Awa(Peer):
    async def open(self) -> None:
        self._handled = Handled()
        await awa.migrate(sys.argv[1])
        self._client = awa.AsyncClient(sys.argv[1])

        @self._client.task(Work, queue="bench")
        async def work(job: "awa.Job[Work]") -> None:
            self._handled.handled(job.args.batch)

        await self._client.start([("bench", _WORKERS)], poll_interval_ms=10)

    async def cycle(self, size: int) -> None:
        batch = self._handled.expect(size)
        if size == 1:
            await self._client.insert(Work(batch), queue="bench")
        else:
            await self._client.enqueue_many_copy([Work(batch)] * size, queue="bench")
        await self._handled.all_of(batch)


if __name__ == "__main__":
    serve(Awa())
