"""pgmq: the SQL functions of its package over asyncpg, which is less work for the client than its Python methods around them."""

import sys
from collections.abc import Sequence
from importlib import resources

import asyncpg

from .turns import Queue, serve

_POOL = 16
_BODY = '{"n": 1}'


class Pgmq(Queue[int]):
    async def open(self) -> None:
        self._pool = await asyncpg.create_pool(sys.argv[1], min_size=_POOL, max_size=_POOL)
        if not await self._pool.fetchval("select exists (select from pg_namespace where nspname = 'pgmq')"):
            await self._pool.execute(resources.files("pgmq").joinpath("sql/pgmq.sql").read_text())
            await self._pool.execute("select pgmq.create('bench')")

    async def send(self, size: int) -> None:
        if size == 1:
            await self._pool.fetchval("select pgmq.send('bench', $1::jsonb)", _BODY)
        else:
            await self._pool.fetch("select pgmq.send_batch('bench', $1::jsonb[])", [_BODY] * size)

    async def take(self, size: int) -> Sequence[int]:
        return [row[0] for row in await self._pool.fetch("select msg_id, message from pgmq.read('bench', 300, $1)", size)]

    async def keep(self, taken: Sequence[int]) -> None:
        if len(taken) == 1:
            kept = await self._pool.fetchval("select msg_id from pgmq.set_vt('bench', $1::bigint, 300)", taken[0])
            assert kept == taken[0]
        else:
            kept = await self._pool.fetch("select msg_id from pgmq.set_vt('bench', $1::bigint[], 300)", taken)
            assert len(kept) == len(taken)

    async def finish(self, taken: Sequence[int]) -> None:
        if len(taken) == 1:
            deleted = await self._pool.fetchval("select pgmq.delete('bench', $1::bigint)", taken[0])
            assert deleted
        else:
            deleted = await self._pool.fetch("select pgmq.delete('bench', $1::bigint[])", taken)
            assert len(deleted) == len(taken)


if __name__ == "__main__":
    serve(Pgmq())
