"""The registry's part in memory: whose signs of life are still to be noted, and which workers are draining.

Claims and beats only touch this memory. A background task writes what is new, and reads who is draining, about once a second; sooner for
a worker that it has not known, and when a notification tells of a drain.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from time import monotonic

import structlog

from app.store import workers
from app.store.coalescer import Coalescer
from app.store.database import Pool, Row
from app.store.faults import UnavailableError
from app.store.workers import Sign

_INTERVAL_S = 15.0
_PAUSE_S = 1.0
_BREATH_S = 0.05
_FORGET_EVERY_S = 180.0
_KEPT_S = 60.0
_BATCH = 1000
_MOST = 10_000

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Known:
    """What was last noted of a worker. Its next sign is to be noted from `due` on (monotonic); never while one waits to be noted."""

    due: float = float("inf")
    host: str | None = None
    version: str | None = None


class Registry:
    """One replica's part of the registry.

    Args:
        pool: where it writes and reads.
        dismiss: hears whose parked claims are to be sent away: workers that are newly draining, or deleted.
        interval: a worker's signs are noted at most once per this many seconds, unless it says something new of itself.

    """

    def __init__(self, pool: Pool, dismiss: Callable[[frozenset[str]], None], *, interval: float = _INTERVAL_S) -> None:
        self._pool = pool
        self._dismiss = dismiss
        self._interval = interval
        self._known: dict[str, _Known] = {}  # by `due`: whoever comes first has been silent for longest
        self._unnoted: dict[str, Sign] = {}
        self._notes: Coalescer[Sign, None] = Coalescer("note", partial(workers.note, pool, interval), batch=_BATCH, limit=1)
        self._draining: frozenset[str] = frozenset()
        self._writing = asyncio.Lock()  # who asks for a flush gets one that is whole
        self._reading = asyncio.Lock()  # who reads the draining workers must not bring back what they were before a change
        self._asked = asyncio.Event()
        self._forget_at = monotonic() + _FORGET_EVERY_S

    def seen(self, worker_id: str, host: str | None = None, version: str | None = None) -> None:
        """Note a sign of life. Costs next to nothing: every claim and every beat gives one."""
        known = self._known.get(worker_id)
        if (
            known is None
            or monotonic() >= known.due
            or (host is not None and host != known.host)
            or (version is not None and version != known.version)
        ):
            self._note(Sign(worker_id, host, version))

    def is_draining(self, worker_id: str | None) -> bool:
        return worker_id in self._draining

    async def drain(self, worker_id: str, *, draining: bool) -> Row | None:
        """Say whether a worker is to stop taking work, and return it, or None if it is not in the registry."""
        await self.flush()  # it may have shown itself here a moment ago
        async with self._reading:
            row = await workers.set_draining(self._pool, worker_id, draining)
            if row:
                self._set_draining(self._draining | {worker_id} if draining else self._draining - {worker_id})
        return row

    async def delete(self, worker_id: str) -> bool:
        """Take a worker out, and return whether it was there. Its next sign brings it back."""
        async with self._reading:
            deleted = await workers.delete(self._pool, worker_id)
            self._set_draining(self._draining - {worker_id})
        self._changed(worker_id)
        return deleted

    def heard(self, news: str) -> None:
        """Hear that somebody has changed or deleted a worker, by another replica perhaps."""
        what, _, worker_id = news.partition(" ")
        if what == "deleted":
            self._dismiss(frozenset({worker_id}))  # a claim that is still parked must not get back what its worker held
        self._changed(worker_id)

    def _changed(self, worker_id: str) -> None:
        """Drop what is remembered of a worker, and look anew who is draining."""
        self._known.pop(worker_id, None)
        self._unnoted.pop(worker_id, None)
        self.refresh()

    def refresh(self) -> None:
        """Look anew who is draining, and write what is new, soon."""
        self._asked.set()

    async def run(self) -> None:
        """Keep memory and database in step, for as long as the replica lives."""
        while True:
            self._asked.clear()
            try:
                await self._read_draining()
                await self.flush()
                await self._forget_silent()
            except UnavailableError as error:
                log.warning("registry not brought up to date", reason=str(error))
            await asyncio.sleep(_BREATH_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), _PAUSE_S)

    async def flush(self) -> None:
        """Write the signs that wait to be noted, and drop from memory who has not been seen for a while.

        Raises:
            UnavailableError: Postgres did not answer. The workers of that batch are noted at their next sign.

        """
        async with self._writing:
            for _ in range(0, len(self._unnoted), _BATCH):
                await self._write([self._unnoted.pop(worker_id) for worker_id in list(islice(self._unnoted, _BATCH))])
        long_ago = monotonic() - _KEPT_S
        while self._known and next(iter(self._known.values())).due < long_ago:
            self._drop_first_known()

    async def _write(self, signs: list[Sign]) -> None:
        try:
            await self._notes.submit(signs)
        except Exception:
            for sign in signs:
                self._known.pop(sign.worker_id, None)
            raise
        due = monotonic() + self._interval
        for sign in signs:
            if known := self._known.get(sign.worker_id):
                known.due = due

    def _note(self, sign: Sign) -> None:
        if sign.worker_id not in self._known:
            self.refresh()  # soon: an operator may look for it through another replica
        waiting = self._unnoted.get(sign.worker_id)
        if waiting is None and len(self._unnoted) >= _MOST:
            return  # a flood: this worker's next sign may find a place
        known = self._known.pop(sign.worker_id, None) or _Known()
        self._known[sign.worker_id] = _Known(host=_newer(sign.host, known.host), version=_newer(sign.version, known.version))
        if waiting:
            sign = Sign(sign.worker_id, _newer(sign.host, waiting.host), _newer(sign.version, waiting.version))
        self._unnoted[sign.worker_id] = sign
        if len(self._known) > _MOST:
            self._drop_first_known()

    def _drop_first_known(self) -> None:
        del self._known[next(iter(self._known))]

    async def _read_draining(self) -> None:
        async with self._reading:
            self._set_draining(await workers.draining(self._pool))

    def _set_draining(self, draining: frozenset[str]) -> None:
        newly = draining - self._draining
        self._draining = draining
        if newly:
            self._dismiss(newly)

    async def _forget_silent(self) -> None:
        if monotonic() < self._forget_at:
            return
        while await workers.forget_silent(self._pool):
            pass
        self._forget_at = monotonic() + _FORGET_EVERY_S


def _newer(said: str | None, known: str | None) -> str | None:
    return known if said is None else said
