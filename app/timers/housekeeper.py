"""The housekeeper: everything that may wait. Small batches with a breath between them, one at a time, so that no worker notices."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import asyncpg
import structlog

from app.store.database import Pool
from app.store.derive import Deriver
from app.store.faults import UnavailableError
from app.store.remove import remove
from app.store.retain import forget, retain
from app.store.trim import Trimmer

_INTERVAL_S = 10.0
_BREATH_S = 0.01
_LONGEST_TRIM_S = 5.0

log = structlog.get_logger(__name__)


class Housekeeper:
    """One replica's housekeeper. Each chore does one batch at a time, and says whether there may be more to do."""

    def __init__(self, pool: Pool, shards: Iterable[int]) -> None:
        self._trimmers = {shard: Trimmer(pool, shard) for shard in shards}
        self._chores: list[tuple[str, Callable[[], Awaitable[bool]]]] = [("remove", partial(remove, pool))]
        for shard, trimmer in self._trimmers.items():
            self._chores += [
                ("trim", trimmer.trim),
                ("retain", partial(retain, pool, shard)),
                ("forget", partial(forget, pool, shard)),
                ("derive", Deriver(pool, shard).derive),
            ]

    async def run(self) -> None:
        """Do every chore every few seconds, and one that has more to do by turns with the others until it has not."""
        due = [0.0] * len(self._chores)
        while True:
            turn = min(range(len(due)), key=due.__getitem__)
            await asyncio.sleep(max(_BREATH_S, due[turn] - time.monotonic()))
            more = await self._do(*self._chores[turn])
            due[turn] = time.monotonic() + (0 if more else _INTERVAL_S)

    async def trim(self) -> None:
        """Trim the histories that have grown, now, as far as that gets in a few seconds."""
        until = time.monotonic() + _LONGEST_TRIM_S
        for trimmer in self._trimmers.values():
            while await trimmer.trim() and time.monotonic() < until:  # noqa: ASYNC110 - each turn does a part of the work
                await asyncio.sleep(_BREATH_S)

    @staticmethod
    async def _do(name: str, chore: Callable[[], Awaitable[bool]]) -> bool:
        try:
            return await chore()
        except (UnavailableError, asyncpg.PostgresError) as error:
            log.warning("chore put off", chore=name, reason=str(error) or type(error).__name__)
            return False
