"""Wake-ups for parked claims on every way into `pending`: at once in this replica, by one throttled NOTIFY in the others.
The listener also hears which workers somebody has drained or deleted (`app/store/workers.py` tells of it).

Nothing depends on a notification: parked claims also look by themselves once per sweep interval, and below their floors now and then
(`app/leases/floors.py`), and a listener whose connection breaks, or has fallen silent, comes back by itself and wakes everybody, for what
it may have missed.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Iterator, Mapping

import asyncpg
import orjson
import structlog

from app.leases.floors import Firsts, blur, join
from app.store.database import Database, connect, fetch
from app.store.faults import UnavailableError, answering
from app.store.parking import Parking
from app.store.ready import QueueFirsts
from app.store.registry import Registry
from app.store.workers import CHANNEL as WORKERS_CHANNEL

_CHANNEL = "leasebeat_ready"
_THROTTLE_S = 0.02
_MOST_PAYLOAD_BYTES = 7999
_RECONNECT_S = 0.5
_PATIENCE_S = 15.0

_NOTIFY = """
-- Locks: none but the notification queue's own, at commit. Throttled, so that no send waits for it.
select pg_notify($1, payload) from unnest($2::text[]) as payload
"""

log = structlog.get_logger(__name__)


class Wakeups:
    """Tells parked claims, here and in the other replicas, that queues may have ready messages, and hears of changes to workers.

    Args:
        database: where it notifies and listens.
        parking: the parked claims of this replica.
        registry: what this replica knows of workers.
        patience: the listener asks after this many seconds whether its connection lives, and waits as long for the answer.

    """

    def __init__(self, database: Database, parking: Parking, registry: Registry, *, patience: float = _PATIENCE_S) -> None:
        self._database = database
        self._parking = parking
        self._registry = registry
        self._patience = patience
        self._replica = uuid.uuid4().hex
        self._unsent: QueueFirsts = {}
        self._has_unsent = asyncio.Event()

    def ready(self, ready: QueueFirsts) -> None:
        """Tell that claims on these queues may get something."""
        self._parking.wake(ready)
        for queue_id, firsts in ready.items():
            join(self._unsent.setdefault(queue_id, {}), firsts)
        if self._unsent:
            self._has_unsent.set()

    async def notify(self) -> None:
        """Tell the other replicas, for as long as this one runs."""
        while True:
            await self._has_unsent.wait()
            self._has_unsent.clear()
            unsent, self._unsent = self._unsent, {}
            try:
                await fetch(self._database.work, _NOTIFY, _CHANNEL, list(payloads(self._replica, unsent)))
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
            while True:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(gone.wait(), self._patience)
                # Who only listens would never find out that the other end has left without a word, as in a failover.
                await connection.execute("select 1", timeout=self._patience)
        finally:
            connection.terminate()

    def _heard(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        try:
            replica, ready = read_payload(str(payload))
        except (ValueError, TypeError):
            return  # of a version to come, perhaps: what it tells of is found without
        if replica != self._replica:
            self._parking.wake(ready)

    def _heard_of_worker(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        self._registry.heard(str(payload))


def payloads(replica: str, ready: Mapping[int, Firsts]) -> Iterator[str]:
    """Lay out what is ready, in as few texts as may be, none longer than a notification may be."""
    head = orjson.dumps([replica])[:-1]
    text = head
    for queue_id, firsts in ready.items():
        part = _part(queue_id, firsts)
        if len(head) + len(part) >= _MOST_PAYLOAD_BYTES:  # with so many levels, or such long keys
            blurred = firsts.copy()
            blur(blurred)
            part = _part(queue_id, blurred)
        if len(text) + len(part) >= _MOST_PAYLOAD_BYTES:
            yield f"{text.decode()}]"
            text = head
        text += part
    yield f"{text.decode()}]"


def _part(queue_id: int, firsts: Firsts) -> bytes:
    return b"," + orjson.dumps([queue_id, *((*(level or (None, 0)), message_id) for level, message_id in firsts.items())])


def read_payload(payload: str) -> tuple[str, QueueFirsts]:
    """Return which replica tells of what."""
    replica, *queues = orjson.loads(payload)
    return replica, {
        queue_id: {None if key is None else (key, rank): message_id for key, rank, message_id in firsts} for queue_id, *firsts in queues
    }
