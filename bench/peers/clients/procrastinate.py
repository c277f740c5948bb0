"""procrastinate: a worker of 32 jobs at a time in the process that sends them. Its heartbeats are the worker's, not a job's."""

import asyncio
import sys

from procrastinate import App, PsycopgConnector

from .turns import Handled, Peer, serve

_CALLERS = 32


class Procrastinate(Peer):
    async def open(self) -> None:
        self._handled = Handled()
        self._app = App(connector=PsycopgConnector(conninfo=sys.argv[1], min_size=_CALLERS, max_size=_CALLERS + 1))
        await self._app.open_async()
        if not await self._app.check_connection_async():
            await self._app.schema_manager.apply_schema_async()

        @self._app.task(queue="bench")
        async def work(batch: int) -> None:
            self._handled.handled(batch)

        self._work = work
        self._worker = asyncio.create_task(
            self._app.run_worker_async(concurrency=_CALLERS, delete_jobs="always", install_signal_handlers=False)
        )

    async def cycle(self, size: int) -> None:
        batch = self._handled.expect(size)
        if size == 1:
            await self._work.defer_async(batch=batch)
        else:
            await self._work.batch_defer_async(*({"batch": batch} for _ in range(size)))
        await self._handled.all_of(batch)


if __name__ == "__main__":
    serve(Procrastinate())
