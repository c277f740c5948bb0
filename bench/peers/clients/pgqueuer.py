"""pgqueuer: its queries over a pool, which its own worker puts more work around."""

import sys
import uuid
from collections.abc import Sequence
from datetime import timedelta

import asyncpg
from pgqueuer.domain.models import Job
from pgqueuer.domain.types import QueueEntrypoint, QueueManagerId
from pgqueuer.ports.repository import EntrypointExecutionParameter
from pgqueuer.queries import Queries

from .turns import Queue, serve

_POOL = 16
_BODY = b'{"n": 1}'
_LEASE = timedelta(seconds=300)


class Pgqueuer(Queue[Job]):
    async def open(self) -> None:
        self._queries = Queries.from_asyncpg_pool(await asyncpg.create_pool(sys.argv[1], min_size=_POOL, max_size=_POOL))
        self._entrypoints = {QueueEntrypoint("bench"): EntrypointExecutionParameter(concurrency_limit=0)}
        self._manager = QueueManagerId(uuid.uuid4())
        if not await self._queries.schema_is_installed():
            await self._queries.install()

    async def send(self, size: int) -> None:
        if size == 1:
            await self._queries.enqueue("bench", _BODY)
        else:
            await self._queries.enqueue(["bench"] * size, [_BODY] * size, [0] * size)

    async def take(self, size: int) -> Sequence[Job]:
        return await self._queries.dequeue(size, self._entrypoints, self._manager, None, _LEASE)

    async def keep(self, taken: Sequence[Job]) -> None:
        await self._queries.update_heartbeat([job.id for job in taken])

    async def finish(self, taken: Sequence[Job]) -> None:
        await self._queries.log_jobs([(job, "successful", None) for job in taken])


if __name__ == "__main__":
    serve(Pgqueuer())
