"""The store: every verb on messages and leases, coalesced per shard, counted per batch, with the wake-ups that each one owes."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import structlog

from app.leases import outcomes
from app.leases.outcomes import Fate
from app.store.ack import Ack, ack
from app.store.alarm import Alarm
from app.store.batches import Done, in_time
from app.store.beat import Beat, Beaten, beat
from app.store.cancel import cancel
from app.store.claim import Claim, GrantedLease
from app.store.coalescer import Coalescer, OrFault
from app.store.database import Database, Pool
from app.store.fate import LeaseKey
from app.store.faults import RowFaultError, StoreError
from app.store.figures import Figures
from app.store.line import Claimed, Serving
from app.store.nack import Nack, nack
from app.store.parking import Parking
from app.store.promote import Promoted, promote
from app.store.purge import purge
from app.store.queues import QueueRef, Queues, StoredQueue
from app.store.reads import Reads
from app.store.ready import QueueFirsts, firsts_of
from app.store.reclaim import Reclaimed, reclaim
from app.store.recovery import Recovery
from app.store.redrive import redrive
from app.store.registry import Registry
from app.store.release import Release, release
from app.store.send import send
from app.store.sending import NewMessage, NotSent, RequestKey, Sending, Sent
from app.store.settle import Settled
from app.store.tally import Tally
from app.store.wakeups import Wakeups
from app.store.workers import holdings

RowT = TypeVar("RowT")
VerdictT = TypeVar("VerdictT")
Lanes = dict[int, Coalescer[RowT, VerdictT]]

_BATCH_ROWS = 1000

log = structlog.get_logger(__name__)


class Store:
    """One replica's store.

    The verbs on leases take pairs of shard and row, and return one verdict per row, in order; `RowFaultError` stands for the verdict
    of a row that Postgres refused. Every verb may raise `UnavailableError` (Postgres did not answer; whether the call took effect is
    unknown) and `OverloadedError` (nothing was done).
    """

    def __init__(self, database: Database, *, shards: int, poll: float, queue_limit: int) -> None:
        self.shards = range(shards)
        self.queues = Queues(database, shards, limit=queue_limit)
        self.reads = Reads(database, shards)
        self.figures = Figures(database.reads)
        self.recovery = Recovery(database.reads)
        self.alarm = Alarm()
        self.tally = Tally()
        self.parking = Parking(Serving(database.work, poll, queue_limit, self._note_granted, self._release_untaken))
        self.registry = Registry(database.work, self.parking.dismiss_workers)
        self.wakeups = Wakeups(database, self.parking, self.registry)
        self._pool = database.work
        self._timer_pool = database.timer

        def lanes(
            name: str, pool: Pool, verb: Callable[[Pool, int, list[RowT]], Awaitable[Sequence[OrFault[VerdictT]]]]
        ) -> Lanes[RowT, VerdictT]:
            return {shard: Coalescer(name, partial(verb, pool, shard), batch=_BATCH_ROWS, limit=queue_limit) for shard in self.shards}

        self._send: Lanes[Sending, Sent | NotSent] = lanes("send", database.work, send)
        self._beat = lanes("beat", database.beats, beat)
        self._ack = lanes("ack", database.work, partial(ack, on_settled=self._note_settled))
        self._nack = lanes("nack", database.work, partial(nack, on_settled=self._note_settled))
        self._release = lanes("release", database.work, partial(release, on_settled=self._note_settled))

    async def send(self, queue: QueueRef, messages: list[NewMessage], request: RequestKey | None = None) -> Sent | NotSent:
        """Store those of the messages that are new, unless the request as a whole was here before.

        Raises:
            RowFaultError: Postgres refuses one of them; none is stored.

        """
        (verdict,) = await self._send[queue.shard].submit([Sending(queue.id, messages, request)], size=len(messages))
        if isinstance(verdict, RowFaultError):
            raise verdict
        if isinstance(verdict, Sent) and verdict.stored:
            self.tally.sends += verdict.stored
            ready = [message.id for message in verdict.messages if message.status == "pending" and not message.duplicate]
            self._note_ready({queue.id: {None: min(ready)}} if ready else {}, delays=(message.delay for message in messages))
        return verdict

    async def claim(self, queue: QueueRef, wanted: Claim, wait: float) -> Claimed:
        """Return leases, waiting up to `wait` seconds for the first. Cancelling it gives back whatever is granted too late.

        A draining worker gets no new ones, but those of a call that it repeats.
        """
        if self.registry.is_draining(wanted.worker_id):
            return await self.parking.repeat(queue, wanted)
        return await self.parking.claim(queue, wanted, wait)

    async def give_back(self, claimed: Claimed) -> None:
        """Release leases that nobody was there to take."""
        await self.parking.give_back(claimed)

    async def put_queue(self, name: str, config: dict[str, Any], dead_letter_queue: str | None) -> tuple[StoredQueue, bool]:
        """Create or reconfigure a queue. Returns it, and whether it is new. Claims that the old configuration held back go on.

        Raises:
            UnfitDeadLetterQueueError: the queue named cannot be its dead-letter queue; nothing is changed.

        """
        stored, created = await self.queues.put(name, config, dead_letter_queue)
        self._note_reconfigured(stored)
        return stored, created

    async def pause(self, name: str, *, paused: bool) -> StoredQueue | None:
        """Pause a queue, or resume it. Returns it, or None if there is none of this name."""
        stored = await self.queues.pause(name, paused=paused)
        if stored is not None:
            self._note_reconfigured(stored)
        return stored

    async def purge(self, queue: QueueRef, statuses: Collection[str]) -> Done:
        """Remove the messages in these states, never leased ones."""
        return await in_time(purge(self._pool, queue.shard, queue.id, statuses))

    async def redrive(self, queue: QueueRef, to: str | None, limit: int | None) -> Done:
        """Send up to `limit` dead letters back: to the queue named `to`, or to where each came from."""
        return await in_time(redrive(self._pool, queue, to, limit, self.wakeups.ready))

    async def delete_queue(self, name: str, *, force: bool) -> bool:
        """Delete a queue, and tell those who wait for its messages. Returns whether there was one.

        Raises:
            QueueInUseError: others send their dead letters to it, and `force` is not given.
            QueueNotEmptyError: it has messages, and `force` is not given.

        """
        queue_id = await self.queues.delete(name, force=force)
        if queue_id is not None:
            self.wakeups.ready({queue_id: {}})
        return queue_id is not None

    async def cancel(self, message_id: int) -> bool:
        """Cancel a message. Returns False if there is none, or it is final, or it changed hands just now."""
        for shard in self.shards:
            freed = await cancel(self._pool, shard, message_id)
            if freed is not None:
                self._note_ready({}, freed)
                return True
        return False

    async def delete_worker(self, worker_id: str) -> bool:
        """Release what a worker holds at this moment, and forget it. Returns whether it was known, or held anything."""
        await self.registry.drain(worker_id, draining=True)  # lest a parked claim of its own gets its leases back
        held = False
        for _ in range(2):  # a claim that was under way as the drain was ordered may have been granted meanwhile
            async for batch in holdings(self._pool, worker_id):
                await self.release([(each.shard, Release(each.message_id, each.generation)) for each in batch])
                held = True
        return await self.registry.delete(worker_id) or held

    async def beat(self, beats: Sequence[tuple[int, Beat]]) -> list[Beaten | RowFaultError]:
        verdicts = await _submit(self._beat, beats)
        self.tally.beats.update(verdict.status for verdict in verdicts if isinstance(verdict, Beaten))
        return verdicts

    async def ack(self, acks: Sequence[tuple[int, Ack]]) -> list[Settled | RowFaultError]:
        return self._tallied("ack", outcomes.ACK, await _submit(self._ack, acks))

    async def nack(self, nacks: Sequence[tuple[int, Nack]]) -> list[Settled | RowFaultError]:
        return self._tallied("nack", outcomes.NACK, await _submit(self._nack, nacks))

    async def release(self, releases: Sequence[tuple[int, Release]]) -> list[Settled | RowFaultError]:
        return self._tallied("release", outcomes.RELEASE, await _submit(self._release, releases))

    async def reclaim(self, shard: int, limit: int, aside: Collection[int], reach: float | None) -> Reclaimed:
        """Look at a batch of the leases that are due for it. A full batch means that more may be due."""
        done = await reclaim(self._timer_pool, shard, limit, aside, reach)
        if done.expired:
            self.tally.reclaims.update(expired=done.expired, given_up=done.given_up)
            self.tally.observe_lag(done.lag)
        self._note_ready(firsts_of(done.ready), done.freed)
        return done

    async def promote(self, shard: int, limit: int, aside: Collection[int], reach: float | None) -> Promoted:
        """Promote a batch of the delayed messages that are due. A full batch means that more may be due."""
        done = await promote(self._timer_pool, shard, limit, aside, reach)
        self._note_ready(firsts_of(done.ready))
        return done

    def _tallied(self, verb: str, words: Mapping[Fate, str], verdicts: list[Settled | RowFaultError]) -> list[Settled | RowFaultError]:
        self.tally.settles.update((verb, words[verdict.fate]) for verdict in verdicts if isinstance(verdict, Settled))
        return verdicts

    def _note_settled(self, settled: Mapping[LeaseKey, Settled]) -> None:
        ready = firsts_of(
            (each.ready_in, each.fairness_key, each.priority, message_id)
            for (message_id, _), each in settled.items()
            if each.ready_in is not None
        )
        freed = {each.freed for each in settled.values() if each.freed is not None}
        self._note_ready(ready, freed, (each.wait for each in settled.values()))

    def _note_ready(self, ready: QueueFirsts, freed: Iterable[int] = (), delays: Iterable[float] = ()) -> None:
        """Tell claims of messages that may be ready and of queues that have a place free, and the timer of messages that will be ready."""
        for queue_id in freed:
            ready.setdefault(queue_id, {})
        self.wakeups.ready(ready)
        if soonest := min((delay for delay in delays if delay > 0), default=None):
            self.alarm.set(soonest)

    def _note_reconfigured(self, stored: StoredQueue) -> None:
        if stored.queue.id is not None:
            self.wakeups.ready({stored.queue.id: {}})

    def _note_granted(self, leases: list[GrantedLease]) -> None:
        self.tally.claims += len(leases)
        self.alarm.set(min(lease.expires_in for lease in leases))

    async def _release_untaken(self, leases: list[GrantedLease]) -> None:
        try:
            await self.release([(lease.shard, Release(lease.message_id, lease.generation)) for lease in leases])
        except StoreError as error:
            log.warning("leases not given back; they will run out", leases=len(leases), reason=str(error))


async def _submit(lanes: Lanes[RowT, VerdictT], rows: Sequence[tuple[int, RowT]]) -> list[VerdictT | RowFaultError]:
    """Carry out rows that may be of several shards, each in its own shard's lane."""
    shards = {shard for shard, _ in rows}
    if len(shards) == 1:
        return await lanes[shards.pop()].submit([row for _, row in rows])
    parts = [[(index, row) for index, (of, row) in enumerate(rows) if of == shard] for shard in shards]
    answers = await asyncio.gather(*(lanes[shard].submit([row for _, row in part]) for shard, part in zip(shards, parts, strict=True)))
    placed = {index: verdict for part, answer in zip(parts, answers, strict=True) for (index, _), verdict in zip(part, answer, strict=True)}
    return [placed[index] for index in range(len(rows))]
