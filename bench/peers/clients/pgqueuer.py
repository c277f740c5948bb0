"""pgqueuer: its queries over a pool, which its own worker puts more work around."""

import sys
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import asyncpg
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.domain.models import Job
from pgqueuer.domain.types import QueueEntrypoint, QueueManagerId
from pgqueuer.ports.repository import EntrypointExecutionParameter
from pgqueuer.queries import Queries

from .turns import Queue, serve

_POOL = 16
_BODY = b'{"n": 1}'
_LEASE = timedelta(seconds=300)


class Driver(AsyncpgPoolDriver):  # type: ignore[misc] # it is of any type
    """Makes sure that what is done to jobs is done to all of them: pgqueuer's queries do not look."""

    async def execute(self, query: str, *arguments: Any) -> str:
        done: str = await super().execute(query, *arguments)
        assert not arguments or int(done.rpartition(" ")[2]) == len(arguments[0]), done
        return done


class Pgqueuer(Queue[Job]):
    async def open(self) -> None:
        self._queries = Queries(Driver(await asyncpg.create_pool(sys.argv[1], min_size=_POOL, max_size=_POOL)))
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
