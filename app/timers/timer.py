"""The timer: reclaims leases that ran out and promotes delayed messages, on every replica, without a leader (design rule 8).

It sleeps until the next due moment. Several replicas at the same work skip each other's rows, so each lease is reclaimed once. A
restart re-arms nothing: what is due is in the database, and the first thing that the timer does is to look.
"""

import asyncio
import time

import structlog

from app.store.faults import UnavailableError
from app.store.store import Store

_BATCH = 1000
_SMALLEST_BATCH = 10
_HASTE_S = 0.003
"""The shortest sleep: rows that are due but in another's hands are looked at again after this long."""
_BACKOFF_S = 0.1

log = structlog.get_logger(__name__)


class Timer:
    """One replica's timer for all shards."""

    def __init__(self, store: Store, *, longest_sleep: float) -> None:
        self._store = store
        self._longest_sleep = longest_sleep
        self._batch = _BATCH
        self._planned = time.monotonic()

    @property
    def lag(self) -> float:
        """Seconds by which the next pass is later than planned: near 0 unless passes are slow, or fail."""
        return max(0.0, time.monotonic() - self._planned)

    async def run(self) -> None:
        """Run passes for as long as the replica lives. An error is logged, waited out and tried again, never final."""
        failures = 0
        while True:
            try:
                pause = await self.run_once()
                failures = 0
                self._batch = min(_BATCH, self._batch * 2)
                self._planned = time.monotonic() + pause
                await self._store.alarm.sleep(pause)
            except Exception as error:
                failures += 1
                self._batch = max(_SMALLEST_BATCH, self._batch // 2)
                log.error("pass failed", error=type(error).__name__, failures=failures, exc_info=not isinstance(error, UnavailableError))
                await asyncio.sleep(min(self._longest_sleep, _BACKOFF_S * failures))

    async def run_once(self) -> float:
        """Do everything that is due, and return the seconds until something will be."""
        return min([await self._run_shard(shard) for shard in self._store.shards])

    async def _run_shard(self, shard: int) -> float:
        while (await self._store.reclaim(shard, self._batch)).looked_at == self._batch:
            pass
        while (await self._store.promote(shard, self._batch)).promoted == self._batch:
            pass
        due = await self._store.next_due(shard)
        return self._longest_sleep if due is None else min(self._longest_sleep, max(_HASTE_S, due))
