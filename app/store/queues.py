"""Queues: their configuration, and the short way from a name to a queue's id."""

import time
import zlib
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, func, literal_column
from sqlalchemy import exists as any_row
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import col, select

from app.store.database import Database, fetch, session
from app.store.models import DeletedQueue, Lease, Message, Queue

DEFAULT_QUEUE = "default"

_LOOK_UP = """
-- Locks: none. Index: queue_name_key.
select id, shard, name from queue where name = $1
"""

_TRUST_S = 1.0
_MOST_KNOWN = 10_000


class QueueGoneError(Exception):
    """The queue has been deleted under the call."""


class QueueNotEmptyError(Exception):
    """The queue still has messages."""


@dataclass(frozen=True, slots=True)
class QueueRef:
    """What a hot call needs of a queue. `id` differs between a queue and its successor under the same name."""

    id: int
    shard: int
    name: str


class Queues:
    """Reads and writes queues, and remembers names for a second.

    A remembered name may belong to a queue that was just deleted: every statement that uses the id finds that out by itself.
    """

    def __init__(self, database: Database, shards: int) -> None:
        self._database = database
        self._shards = shards
        self._known: dict[str, tuple[QueueRef, float]] = {}

    async def find(self, name: str, *, fresh: bool = False) -> QueueRef | None:
        """Return the queue of this name. With `fresh`, whatever is remembered is looked up anew."""
        known = self._known.get(name)
        if known and not fresh and time.monotonic() < known[1]:
            return known[0]
        self._known.pop(name, None)
        rows = await fetch(self._database.work, _LOOK_UP, name)
        if not rows:
            return None
        queue = QueueRef(*rows[0])
        self._forget_old()
        self._known[name] = (queue, time.monotonic() + _TRUST_S)
        return queue

    def _forget_old(self) -> None:
        if len(self._known) >= _MOST_KNOWN:
            now = time.monotonic()
            self._known = {name: (queue, until) for name, (queue, until) in self._known.items() if until > now}

    async def put(self, name: str, config: dict[str, Any]) -> tuple[Queue, bool]:
        """Create the queue, or give it this configuration, by columns. Returns it, and whether it is new."""
        statement = (
            insert(Queue)
            .values(name=name, shard=zlib.crc32(name.encode()) % self._shards, **config)
            .on_conflict_do_update(index_elements=["name"], set_=config | {"updated_at": func.now()})
            .returning(Queue, (literal_column("xmax") == 0).label("created"))
        )
        async with session(self._database) as opened:
            queue, created = (await opened.execute(statement)).one()
            await opened.commit()
            return queue, created

    async def get(self, name: str) -> Queue | None:
        async with session(self._database) as opened:
            return (await opened.exec(select(Queue).where(Queue.name == name))).one_or_none()

    async def page(self, after: str, limit: int) -> list[Queue]:
        """Return up to `limit` queues by name, from the first after `after` on."""
        async with session(self._database) as opened:
            return list((await opened.exec(select(Queue).where(Queue.name > after).order_by(col(Queue.name)).limit(limit))).all())

    async def delete(self, name: str, *, force: bool) -> int | None:
        """Delete the queue, and leave its messages to be removed in small batches. Returns its id, or None.

        Raises:
            QueueNotEmptyError: it has messages, and `force` is not given.

        """
        async with session(self._database) as opened:
            # Waits for the sends that are under way, and keeps later ones out, so that no message is left without its queue.
            queue = (await opened.exec(select(Queue).where(Queue.name == name).with_for_update())).one_or_none()
            if queue is None:
                return None
            mine = (col(Message.shard) == queue.shard, col(Message.queue_id) == queue.id)
            if not force and (await opened.exec(select(any_row().where(*mine, col(Message.status) != "")))).one():
                raise QueueNotEmptyError(name)
            held = (col(Lease.shard) == queue.shard, col(Lease.queue_id) == queue.id)
            await opened.exec(select(Lease.message_id).where(*held).order_by(col(Lease.message_id)).with_for_update())
            await opened.exec(delete(Lease).where(*held))
            await opened.exec(insert(DeletedQueue).values(id=queue.id, shard=queue.shard))
            await opened.delete(queue)
            await opened.commit()
        self._known.pop(name, None)
        return queue.id
