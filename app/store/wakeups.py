"""Wake-ups for parked claims on every way into `pending`: at once in this replica, by one throttled NOTIFY in the others.
The listener also hears which workers somebody has drained or deleted (`app/store/workers.py` tells of it).

Nothing depends on a notification: parked claims also look by themselves once per sweep interval, and below their floors now and then
(`app/leases/floors.py`), and a listener whose connection breaks comes back by itself and wakes everybody, for what it may have missed.
"""

import asyncio
import uuid
from collections.abc import Iterable

import asyncpg
import structlog

from app.store.database import Database, connect, fetch
from app.store.faults import UnavailableError, answering
from app.store.parking import Parking
from app.store.registry import Registry
from app.store.workers import CHANNEL as WORKERS_CHANNEL

_CHANNEL = "leasebeat_ready"
_THROTTLE_S = 0.02
_QUEUES_PER_NOTIFICATION = 150  # a payload is limited to 8000 bytes
_RECONNECT_S = 0.5

_NOTIFY = """
-- Locks: none but the notification queue's own, at commit. Throttled, so that no send waits for it.
select pg_notify($1, $2)
"""

log = structlog.get_logger(__name__)


class Wakeups:
    """Tells parked claims, here and in the other replicas, that queues may have ready messages, and hears of changes to workers."""

    def __init__(self, database: Database, parking: Parking, registry: Registry) -> None:
        self._database = database
        self._parking = parking
        self._registry = registry
        self._replica = uuid.uuid4().hex
        self._unsent: dict[int, int | None] = {}
        self._has_unsent = asyncio.Event()

    def ready(self, queue_ids: Iterable[int], lowest: int | None = None) -> None:
        """Tell that claims on these queues may get something: messages from the id `lowest` on, or those that were ready before."""
        queue_ids = list(queue_ids)
        self._parking.wake(queue_ids, lowest)
        for queue_id in queue_ids:
            known = self._unsent.get(queue_id)
            self._unsent[queue_id] = lowest if known is None else known if lowest is None else min(known, lowest)
        if self._unsent:
            self._has_unsent.set()

    async def notify(self) -> None:
        """Tell the other replicas, for as long as this one runs."""
        while True:
            await self._has_unsent.wait()
            self._has_unsent.clear()
            queues = [self._unsent.popitem() for _ in range(min(len(self._unsent), _QUEUES_PER_NOTIFICATION))]
            if self._unsent:
                self._has_unsent.set()
            payload = " ".join(str(queue_id) if lowest is None else f"{queue_id}:{lowest}" for queue_id, lowest in queues)
            try:
                await fetch(self._database.work, _NOTIFY, _CHANNEL, f"{self._replica} {payload}")
            except UnavailableError:
                log.warning("notification not sent; the other replicas will find out by themselves")
            await asyncio.sleep(_THROTTLE_S)

    async def listen(self) -> None:
        """Hear from the other replicas, for as long as this one runs, over as many connections as it takes."""
        while True:
            try:
                with answering():
                    await self._listen_on(await connect(self._database.url))
            except UnavailableError as error:
                log.warning("listener lost its connection", reason=str(error))
            await asyncio.sleep(_RECONNECT_S)

    async def _listen_on(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        gone = asyncio.Event()
        connection.add_termination_listener(lambda _: gone.set())
        try:
            await connection.add_listener(_CHANNEL, self._heard)
            await connection.add_listener(WORKERS_CHANNEL, self._heard_of_worker)
            self._parking.wake_all()
            self._registry.refresh()
            await gone.wait()
        finally:
            connection.terminate()

    def _heard(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        replica, *queues = str(payload).split()
        if replica == self._replica:
            return
        for queue_id, _, lowest in (each.partition(":") for each in queues):
            self._parking.wake([int(queue_id)], int(lowest) if lowest else None)

    def _heard_of_worker(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        self._registry.heard(str(payload))
