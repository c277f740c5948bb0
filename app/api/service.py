"""What the routes get from the running service."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import asyncpg
import structlog
from fastapi import Request
from prometheus_client import CollectorRegistry

from app.api.fields import is_queue_name
from app.api.room import Room
from app.errors import queue_not_found
from app.leases.receipts import LeaseName, Receipts
from app.store.database import Database, fetch
from app.store.faults import UnavailableError
from app.store.queues import QueueRef
from app.store.recovery import RecoveryStats
from app.store.revision import revision_of
from app.store.store import Store

_RECEIPT_KEY = """
-- Locks: none. Index: secret_pkey.
select value from secret where name = 'receipt'
"""
_RETRY_S = 0.2
_MOST_TIMER_LAG_S = 30.0

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Service:
    """One replica: its store, and the key to the receipts, which it reads from the database when that first answers."""

    database: Database
    store: Store
    migrations: Path
    timer_lag: Callable[[], float]
    sweep: Callable[[], Awaitable[RecoveryStats]]
    metrics: CollectorRegistry
    queue_bytes: int
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _looking: "asyncio.Task[str | None] | None" = field(default=None, repr=False)
    _receipts: Receipts | None = field(default=None, repr=False)
    _rooms: dict[str, Room] = field(default_factory=dict, repr=False)

    def dismiss_soon(self) -> None:
        """Send parked claims away at the loop's next turn. May be called from a signal handler, which can come between any two steps."""
        self.loop.call_soon_threadsafe(self.store.parking.dismiss)

    def room(self, kind: str) -> Room:
        """Return the room that calls of one kind share."""
        return self._rooms.get(kind) or self._rooms.setdefault(kind, Room(kind, self.queue_bytes))

    @property
    def receipts(self) -> Receipts:
        """Return the issuer of receipts.

        Raises:
            UnavailableError: the database has not answered since the start.

        """
        if self._receipts is None:
            raise UnavailableError("no receipt key yet")
        return self._receipts

    @property
    def timer_keeps_up(self) -> bool:
        return self.timer_lag() < _MOST_TIMER_LAG_S

    @property
    def can_issue_receipts(self) -> bool:
        return self._receipts is not None

    async def load_key(self) -> None:
        """Read the receipt key, trying until the database answers."""
        while self._receipts is None:
            try:
                (row,) = await fetch(self.database.work, _RECEIPT_KEY)
                self._receipts = Receipts(row["value"])
            except (UnavailableError, asyncpg.PostgresError) as error:
                log.warning("waiting for the database", reason=str(error) or type(error).__name__)
            except ValueError:
                log.error("the database has no receipt key; restore the table `secret`")
            await asyncio.sleep(_RETRY_S)

    async def revision(self, patience: float) -> str | None:
        """Return the revision of the database's schema, waiting at most `patience` seconds.

        All who ask while a look is under way share it: it is not cancelled, as a Postgres that hangs would not hear of that either. It has
        a connection of the timer's, which no calls keep busy, however slow they are.

        Raises:
            TimeoutError: it takes longer.
            UnavailableError: Postgres did not answer.

        """
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(revision_of(self.database.timer))
            self._looking.add_done_callback(lambda look: look.cancelled() or look.exception())  # its failure may find nobody waiting
        return await asyncio.wait_for(asyncio.shield(self._looking), patience)

    def leases_named(self, receipts: Iterable[str]) -> list[LeaseName | None]:
        """Return the leases that receipts name, None for each that names none here."""
        shards = self.store.shards
        return [name if name and name.shard in shards else None for name in map(self.receipts.read, receipts)]

    async def queue_named(self, name: str, *, fresh: bool = False) -> QueueRef:
        """Return the queue of this name.

        Raises:
            ProblemError: 404, there is none.

        """
        queue = await self.store.queues.find(name, fresh=fresh) if is_queue_name(name) else None
        if queue is None:
            raise queue_not_found(name)
        return queue


def service_of(request: Request) -> Service:
    return cast("Service", request.app.state.service)
