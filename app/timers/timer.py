"""The timer: reclaims leases that ran out and promotes delayed messages, on every replica, without a leader (design rule 8).

It sleeps until the next due moment. Several replicas at the same work skip each other's rows, so each lease is reclaimed once. A
restart re-arms nothing: what is due is in the database, and the first thing that the timer does is to look.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import asyncpg
import structlog

from app.store.aside import Aside
from app.store.database import Pool
from app.store.due import next_due
from app.store.faults import UnavailableError
from app.store.promote import first_delayed
from app.store.recheck import first_rechecked, recheck
from app.store.reclaim import first_lease
from app.store.recovery import RecoveryStats
from app.store.rest import rest_after
from app.store.store import Store

_BATCH = 1000
_SHORTEST_SLEEP_S = 0.003
_LONGEST_HASTE_S = 0.1
"""Rows that are due but in another's hands are looked at again after the shortest sleep, then after twice that, up to this."""
_ROUNDED_S = 0.001
"""The event loop sleeps in whole milliseconds, and may wake up as much too early, when there is nothing to do yet."""
_BACKOFF_S = 0.1
_LATENESS_S = 2.0
"""How long a transaction may take, from its beginning, to make something due that the next sweep but one still finds by itself."""

log = structlog.get_logger(__name__)


class Timer:
    """One replica's timer for all shards."""

    def __init__(self, store: Store, pool: Pool, *, longest_sleep: float) -> None:
        self._store = store
        self._pool = pool
        self._longest_sleep = longest_sleep
        self._expected = time.monotonic()
        self._aside = Aside()
        self._haste = _SHORTEST_SLEEP_S
        self._windows = {shard: _Window() for shard in store.shards}

    @property
    def lag(self) -> float:
        """Seconds since it was to have got on: to the next sweep, or within one through a round of batches. Near 0 unless it is stuck.

        However long a sweep takes that works a backlog off, its rounds end; those of one that stands still, or fails, do not.
        """
        return max(0.0, time.monotonic() - self._expected)

    async def run(self) -> None:
        """Sweep for as long as the replica lives. An error is logged, waited out and tried again, never final."""
        failures = 0
        while True:
            try:
                _, handled = await self._sweep(self._windows, self._expect)
                failures = 0
                pause = await self._pause(handled)
                self._expect(pause)
                if await self._store.alarm.sleep(pause):
                    self._forget_plans()
            except Exception as error:
                failures += 1
                log.error("sweep failed", error=type(error).__name__, failures=failures, exc_info=not isinstance(error, UnavailableError))
                await asyncio.sleep(min(self._longest_sleep, _BACKOFF_S * failures))

    async def sweep(self) -> RecoveryStats:
        """Do everything that is due, in all shards, however long it has been, beside the sweeps of the timer itself."""
        stats, _ = await self._sweep({shard: _Window() for shard in self._store.shards})
        return stats

    def _expect(self, pause: float = 0.0) -> None:
        """Note that the timer has got on, and does not rest for longer than this."""
        self._expected = time.monotonic() + pause

    async def _sweep(self, windows: "dict[int, _Window]", on_round: Callable[[], None] = lambda: None) -> tuple[RecoveryStats, int]:
        """Sweep once. Returns what it did, which is noted also if it is cut short, and how many rows it handled."""
        stats = RecoveryStats()
        began = time.monotonic()
        try:
            works = [work for shard, window in windows.items() for work in self._works_of(shard, window, stats)]
            handled = await self._drain(works, stats, on_round)
        finally:
            stats.scan_duration_ms = (time.monotonic() - began) * 1000
            self._store.recovery.note(stats)
        return stats, handled

    def _works_of(self, shard: int, window: "_Window", stats: RecoveryStats) -> "list[_Work]":
        store, pool, aside = self._store, self._pool, self._aside
        window.open()

        async def reclaim(limit: int) -> int:
            done = await store.reclaim(shard, limit, aside.ids(), window.reach)
            stats.expired_found += done.expired
            stats.recovered += done.expired - done.given_up
            stats.failed += done.given_up
            stats.checkpoints_created += done.noted
            return done.looked_at

        async def promote(limit: int) -> int:
            return (await store.promote(shard, limit, aside.ids(), window.reach)).promoted

        async def look_again(limit: int) -> int:
            return await recheck(pool, shard, limit, aside.ids(), window.reach)

        works = [
            _Work("recheck", look_again, lambda: first_rechecked(pool, shard, aside.ids(), window.reach)),
            _Work("reclaim", reclaim, lambda: first_lease(pool, shard, aside.ids(), window.reach)),
            _Work("promote", promote, lambda: first_delayed(pool, shard, aside.ids(), window.reach)),
        ]
        return [work for work in works if window.has_due(work.verb)]

    def _forget_plans(self) -> None:
        """Let the next sweep do all kinds of work: something has become due earlier than planned."""
        for window in self._windows.values():
            window.forget_plan()

    async def _pause(self, handled: int) -> float:
        """Return the seconds until something will be due."""
        due_at, is_overdue = time.monotonic() + self._longest_sleep, False
        for shard, window in self._windows.items():
            asked_at = time.monotonic()
            seconds = await next_due(self._pool, shard, self._aside.ids(), window.reach, self._longest_sleep)
            window.close(seconds, asked_at)
            soonest = min(seconds.values())
            due_at = min(due_at, asked_at + soonest)
            is_overdue |= soonest <= 0
        self._haste = min(_LONGEST_HASTE_S, self._haste * 2) if is_overdue and not handled else _SHORTEST_SLEEP_S
        return min(self._longest_sleep, max(self._haste, due_at - time.monotonic() + _ROUNDED_S))

    async def _drain(self, works: "list[_Work]", stats: RecoveryStats, on_round: Callable[[], None]) -> int:
        """Run a batch of each kind of work by turns, until none of them comes back full, and return how many rows they handled.

        So a backlog of one kind, or of one shard, keeps no other waiting for longer than a batch takes (design rule 8).
        """
        handled, more = 0, True
        while more:
            done = [await self._batch(work, stats) for work in works]
            on_round()
            handled += sum(rows for rows, _ in done)
            more = any(full for _, full in done)
        return handled

    async def _batch(self, work: "_Work", stats: RecoveryStats) -> tuple[int, bool]:
        """Run one batch. Returns how many rows it handled, and whether there may be more.

        A batch that Postgres refuses is halved until the culprit stands alone (design rule 10).
        """
        while True:
            try:
                done = await work.run(work.limit)
            except asyncpg.PostgresError as error:
                if work.limit > 1:
                    work.limit //= 2
                    continue
                culprit = await work.first()
                if culprit is None:
                    raise  # for no row's sake
                self._aside.put(culprit)
                stats.errors += 1
                log.error("row set aside", verb=work.verb, message_id=culprit, sqlstate=error.sqlstate, reason=type(error).__name__)
                return 0, True
            more = done >= work.limit
            work.limit = min(_BATCH, work.limit * 2)
            return done, more


@dataclass(slots=True)
class _Work:
    """One kind of what is due in a shard. `run` does a batch of up to `limit` rows, `first` names the message that a batch of one takes."""

    verb: str
    run: Callable[[int], Awaitable[int]]
    first: Callable[[], Awaitable[int | None]]
    limit: int = _BATCH


class _Window:
    """What the sweeps of one shard have to look at.

    That is how far back: to where the last one left nothing undone, or to the beginning of time; and the kinds of work that are due: to
    find nothing costs a statement too, and one for each lease that runs out if it is not asked for.
    """

    def __init__(self) -> None:
        self._first: float | None = None  # the moment from which on it looks; None is the beginning of time
        self._began = 0.0
        self._whole_due = 0.0
        self._due_at: dict[str, float] = {}  # when each verb has something to do, as far as it is known; else it may be at any moment

    @property
    def reach(self) -> float | None:
        """Seconds from now that a statement has to look back, None for everything."""
        return None if self._first is None else time.monotonic() - self._first

    def open(self) -> None:
        """Begin a sweep, of everything if that is due."""
        self._began = time.monotonic()
        if self._began >= self._whole_due:
            self._first = None
            self.forget_plan()

    def has_due(self, verb: str) -> bool:
        """Whether the sweep may find something to do by this verb."""
        return self._due_at.get(verb, 0.0) <= self._began

    def close(self, due: Mapping[str, float], asked_at: float) -> None:
        """End a sweep after which each verb has something to do in so many seconds from when that was asked.

        What is overdue is in other hands: it stays in view. The answer may have taken long: what nobody has cleared away does that.
        """
        now = time.monotonic()
        if self._first is None:
            self._whole_due = now + rest_after(now - asked_at)
        self._first = min(self._began, asked_at + min(due.values())) - _LATENESS_S
        self._due_at = {verb: asked_at + seconds for verb, seconds in due.items()}

    def forget_plan(self) -> None:
        """Let the next sweep do everything that is due, whatever was planned."""
        self._due_at = {}
