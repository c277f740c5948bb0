"""Queues: their configuration, and the short way from a name to a queue's id."""

import time
import zlib
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, func, literal_column, text, update
from sqlalchemy import exists as any_row
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import aliased
from sqlmodel import col, select
from sqlmodel.ext.asyncio.session import AsyncSession

from app.store.coalescer import Coalescer
from app.store.database import Database, fetch, reading, write
from app.store.derive import within_bounds
from app.store.faults import RowFaultError
from app.store.models import DeletedQueue, Message, Queue

DEFAULT_QUEUE = "default"

_LOOK_UP = """
-- Locks: none. Index: queue_name_key.
select queue.*
from unnest($1::text[]) as asked(name)
cross join lateral (select id, shard, name from queue where queue.name = asked.name offset 0) as queue
"""

# Dead-letter queues are given one call at a time, so that no two of them close a circle together.
_ONE_AT_A_TIME = text("select pg_advisory_xact_lock(hashtext('dead_letter_queue'))")

_LEADS_BACK = text("""
-- Locks: none. Index: queue_pkey, once per link.
with recursive chain(id) as (
    select cast(:first as bigint)
    union
    select queue.dead_letter_queue_id from chain join queue on queue.id = chain.id where queue.dead_letter_queue_id is not null
)
select exists (select from chain join queue on queue.id = chain.id where queue.name = :name)
""")

# A lease duration that was derived stays, within the new bounds.
_KEPT = {"derived_lease": text(within_bounds("queue.derived_lease", "excluded"))}

_TRUST_S = 1.0
_MOST_KNOWN = 10_000
_MOST_LOOKED_UP = 1000
_MOST_NAMED = 3


class QueueGoneError(Exception):
    """The queue has been deleted under the call."""


class QueueNotEmptyError(Exception):
    """The queue still has messages."""


class QueueInUseError(Exception):
    """The queue is the dead-letter queue of others. Some of them are named."""

    def __init__(self, users: list[str]) -> None:
        super().__init__(", ".join(users))
        self.users = users


class UnfitDeadLetterQueueError(Exception):
    """The queue named cannot be this one's dead-letter queue. The text says why."""


@dataclass(frozen=True, slots=True)
class QueueRef:
    """What a hot call needs of a queue. `id` differs between a queue and its successor under the same name."""

    id: int
    shard: int
    name: str


@dataclass(frozen=True, slots=True)
class StoredQueue:
    """A queue as it is stored, with the name of its dead-letter queue."""

    queue: Queue
    dead_letter_queue: str | None


class Queues:
    """Reads and writes queues, and remembers names for a second.

    A remembered name may belong to a queue that was just deleted: every statement that uses the id finds that out by itself.
    Names that are looked up at the same time share a statement, so that a name that is asked for all the time takes one connection, not
    all there are.
    """

    def __init__(self, database: Database, shards: int, *, limit: int) -> None:
        self._database = database
        self._shards = shards
        self._names: Coalescer[str, QueueRef | None] = Coalescer("look up", self._look_up, batch=_MOST_LOOKED_UP, limit=limit)
        self._known: dict[str, tuple[QueueRef, float]] = {}

    async def find(self, name: str, *, fresh: bool = False) -> QueueRef | None:
        """Return the queue of this name. With `fresh`, whatever is remembered is looked up anew.

        Raises:
            UnavailableError: Postgres did not answer.
            OverloadedError: too many calls wait for a look already.

        """
        known = self._known.get(name)
        if known and not fresh and time.monotonic() < known[1]:
            return known[0]
        (queue,) = await self._names.submit([name])
        if isinstance(queue, RowFaultError):
            raise queue
        return queue

    async def _look_up(self, names: list[str]) -> list[QueueRef | None]:
        """Look names up, and remember those that there are."""
        asked = set(names)
        found = {queue.name: queue for queue in (QueueRef(*row) for row in await fetch(self._database.work, _LOOK_UP, list(asked)))}
        self._forget_old()
        until = time.monotonic() + _TRUST_S
        self._known |= {name: (queue, until) for name, queue in found.items()}
        for name in asked - found.keys():
            self._known.pop(name, None)
        return [found.get(name) for name in names]

    def _forget_old(self) -> None:
        if len(self._known) >= _MOST_KNOWN:
            now = time.monotonic()
            self._known = {name: (queue, until) for name, (queue, until) in self._known.items() if until > now}

    async def put(self, name: str, config: dict[str, Any], dead_letter_queue: str | None) -> tuple[StoredQueue, bool]:
        """Create the queue, or give it this configuration, by columns. Returns it, and whether it is new.

        Raises:
            UnfitDeadLetterQueueError: the queue named cannot be its dead-letter queue; nothing is changed.

        """

        async def change(opened: AsyncSession) -> tuple[StoredQueue, bool]:
            dead_letters = await _dead_letter_queue(opened, name, dead_letter_queue) if dead_letter_queue else None
            columns = config | {"dead_letter_queue_id": dead_letters and dead_letters.id}
            statement = (
                insert(Queue)
                .values(name=name, shard=dead_letters.shard if dead_letters else self._shard_of(name), **columns)
                .on_conflict_do_update(index_elements=["name"], set_=_KEPT | columns | {"updated_at": func.now()})
                .returning(col(Queue.shard), (literal_column("xmax") == 0).label("created"))
            )
            shard, created = (await opened.execute(statement)).one()
            if dead_letters and dead_letters.shard != shard:
                raise UnfitDeadLetterQueueError(f"{dead_letter_queue!r} is in another shard than {name!r}: messages cannot move there.")
            (stored,) = await _read(opened, col(Queue.name) == name)
            return stored, created

        return await write(self._database, change)

    async def get(self, name: str) -> StoredQueue | None:
        async with reading(self._database) as opened:
            return next(iter(await _read(opened, col(Queue.name) == name)), None)

    async def page(self, after: str, limit: int) -> list[StoredQueue]:
        """Return up to `limit` queues by name, from the first after `after` on."""
        async with reading(self._database) as opened:
            return await _read(opened, col(Queue.name) > after, limit)

    async def pause(self, name: str, *, paused: bool) -> StoredQueue | None:
        """Pause the queue, or resume it. Returns it, or None if there is none of this name."""
        changed = update(Queue).where(col(Queue.name) == name, col(Queue.paused) != paused)

        async def change(opened: AsyncSession) -> StoredQueue | None:
            await opened.exec(changed.values(paused=paused, updated_at=func.now()))
            return next(iter(await _read(opened, col(Queue.name) == name)), None)

        return await write(self._database, change)

    async def delete(self, name: str, *, force: bool) -> int | None:
        """Delete the queue, and leave its leases and messages to be removed in small batches. Returns its id, or None.

        Raises:
            QueueInUseError: others send their dead letters to it, and `force` is not given.
            QueueNotEmptyError: it has messages, and `force` is not given.

        """

        async def change(opened: AsyncSession) -> int | None:
            # Waits for the sends and claims that are under way, and keeps later ones out: no message or lease is left without its queue.
            queue = (await opened.exec(select(Queue).where(Queue.name == name).with_for_update())).one_or_none()
            if queue is None:
                return None
            if not force:
                await _refuse_to_delete(opened, queue)
            await opened.exec(insert(DeletedQueue).values(id=queue.id, shard=queue.shard))
            await opened.delete(queue)
            return queue.id

        deleted = await write(self._database, change)
        self._known.pop(name, None)
        return deleted

    def _shard_of(self, name: str) -> int:
        return zlib.crc32(name.encode()) % self._shards


async def _refuse_to_delete(opened: AsyncSession, queue: Queue) -> None:
    """Raise if the queue is in use or not empty."""
    users = select(Queue.name).where(Queue.dead_letter_queue_id == queue.id).order_by(col(Queue.name)).limit(_MOST_NAMED)
    if named := (await opened.exec(users)).all():
        raise QueueInUseError(list(named))
    mine = (col(Message.shard) == queue.shard, col(Message.queue_id) == queue.id)
    if (await opened.exec(select(any_row().where(*mine, col(Message.status) != "")))).one():
        raise QueueNotEmptyError(queue.name)


async def _read(opened: AsyncSession, wanted: ColumnElement[bool], limit: int | None = None) -> list[StoredQueue]:
    """Read queues, by name, with the names of their dead-letter queues."""
    dead_letters = aliased(Queue)
    statement = (
        select(Queue, dead_letters.name)
        .outerjoin(dead_letters, col(Queue.dead_letter_queue_id) == col(dead_letters.id))
        .where(wanted)
        .order_by(col(Queue.name))
        .limit(limit)
    )
    return [StoredQueue(queue, name) for queue, name in await opened.exec(statement)]


async def _dead_letter_queue(opened: AsyncSession, name: str, dead_letter_queue: str) -> Queue:
    """Find the dead-letter queue for the queue `name`, and keep it from being deleted until the transaction ends."""
    await opened.execute(_ONE_AT_A_TIME)
    by_name = select(Queue).where(Queue.name == dead_letter_queue).with_for_update(read=True, key_share=True)
    found = (await opened.exec(by_name)).one_or_none()
    if found is None:
        raise UnfitDeadLetterQueueError(f"There is no queue named {dead_letter_queue!r}. Create it first.")
    if (await opened.execute(_LEADS_BACK, {"first": found.id, "name": name})).scalar_one():
        detail = f"Dead letters would come back from {dead_letter_queue!r} to {name!r}, and never be given up."
        raise UnfitDeadLetterQueueError(detail)
    return found
