"""Parked claims: calls for leases that wait in memory until messages are ready. They hold no connection (design rule 11).

All calls for one queue stand in one line. Whenever the queue may have ready messages, one statement serves as many of the line as it
can; if it could not serve all whom it tried for, nothing is ready, and who does not want to wait is sent away empty.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

import asyncpg

from app.leases.rotation import Rotation
from app.store.claim import Claim, GrantedLease, claim, repeated
from app.store.database import Pool
from app.store.queues import QueueRef

_BATCH_SLOTS = 1000
_IDLE_LINES = 10_000


@dataclass(slots=True, eq=False)
class _Caller:
    claim: Claim
    patient: bool
    answer: "asyncio.Future[list[GrantedLease]]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    in_hand: bool = False

    def lose_patience(self) -> None:
        """End the wait, unless a statement is already under way for this call: then its outcome decides."""
        self.patient = False
        if not self.in_hand and not self.answer.done():
            self.answer.set_result([])


class Parking:
    """The lines in front of all queues, and each queue's place in its rotation over fairness keys."""

    def __init__(
        self,
        pool: Pool,
        *,
        poll: float,
        on_granted: Callable[[list[GrantedLease]], None],
        give_back: Callable[[list[GrantedLease]], Awaitable[None]],
    ) -> None:
        self._pool = pool
        self._poll = poll
        self._on_granted = on_granted
        self._give_back = give_back
        self._lines: OrderedDict[int, _Line] = OrderedDict()
        self._closed = False

    async def claim(self, queue: QueueRef, wanted: Claim, wait: float) -> list[GrantedLease]:
        """Return leases on the queue's messages; wait up to `wait` seconds if none is ready. Cancelling it gives back what was granted.

        Raises:
            UnavailableError: Postgres did not answer.

        """
        return await self._line(queue).stand(wanted, 0 if self._closed else wait)

    def wake(self, queue_ids: Iterable[int]) -> None:
        """Serve the lines of these queues: they may have ready messages."""
        for queue_id in queue_ids:
            if line := self._lines.get(queue_id):
                line.wake()

    def wake_all(self) -> None:
        self.wake(list(self._lines))

    def dismiss(self) -> None:
        """Send everybody away empty, and let nobody wait from now on: the service is stopping."""
        self._closed = True
        for line in self._lines.values():
            line.dismiss()

    @property
    def parked(self) -> int:
        return sum(len(line.callers) for line in self._lines.values())

    def _line(self, queue: QueueRef) -> "_Line":
        line = self._lines.get(queue.id)
        if line is None:
            line = self._lines[queue.id] = _Line(self, queue)
            self._forget_idle()
        self._lines.move_to_end(queue.id)
        return line

    def _forget_idle(self) -> None:
        if len(self._lines) > _IDLE_LINES:
            idle = next((queue_id for queue_id, line in self._lines.items() if not line.callers), None)
            if idle is not None:
                del self._lines[idle]

    async def grant(self, queue: QueueRef, rotation: Rotation, wanted: list[Claim]) -> list[list[GrantedLease]]:
        granted = await claim(self._pool, queue.shard, queue.id, rotation, wanted)
        leases = [lease for each in granted for lease in each]
        if leases:
            self._on_granted(leases)
        return granted

    async def repeated(self, queue: QueueRef, claim_ids: list[str]) -> dict[str, list[GrantedLease]]:
        return await repeated(self._pool, queue.shard, queue.id, claim_ids) if claim_ids else {}

    async def give_back(self, leases: list[GrantedLease]) -> None:
        await self._give_back(leases)

    @property
    def poll(self) -> float:
        return self._poll


class _Line:
    """Everybody who waits for one queue's messages, first come first served."""

    def __init__(self, parking: Parking, queue: QueueRef) -> None:
        self.callers: deque[_Caller] = deque()
        self._parking = parking
        self._queue = queue
        self._rotation = Rotation()
        self._woken = asyncio.Event()
        self._server: asyncio.Task[None] | None = None

    async def stand(self, wanted: Claim, wait: float) -> list[GrantedLease]:
        caller = _Caller(wanted, patient=wait > 0)
        self.callers.append(caller)
        self.wake()
        if self._server is None:
            self._server = asyncio.create_task(self._serve(), name=f"claims for queue {self._queue.id}")
        timer = asyncio.get_running_loop().call_later(wait, caller.lose_patience) if wait > 0 else None
        try:
            return await caller.answer
        except asyncio.CancelledError:
            if caller.answer.done() and not caller.answer.cancelled() and (leases := caller.answer.result()):
                await self._parking.give_back(leases)
            raise
        finally:
            if timer:
                timer.cancel()

    def wake(self) -> None:
        self._woken.set()

    def dismiss(self) -> None:
        for caller in self.callers:
            caller.lose_patience()
        self.wake()

    async def _serve(self) -> None:
        try:
            while self.callers:
                self._woken.clear()
                all_served = await self._serve_batch()
                self._leave()
                if self.callers and not all_served:
                    await self._nap()
        finally:
            self._server = None

    async def _nap(self) -> None:
        try:
            await asyncio.wait_for(self._woken.wait(), self._parking.poll)
        except TimeoutError:
            return

    async def _serve_batch(self) -> bool:
        """Serve the head of the line. Returns whether everybody in it got all the leases they asked for."""
        batch = self._head()
        try:
            granted = await self._grant(batch)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to those it was tried for
            for caller in batch:
                if not caller.answer.done():
                    caller.answer.set_exception(error)
            return True
        finally:
            for caller in batch:
                caller.in_hand = False
        for caller, leases in zip(batch, granted, strict=True):
            await self._answer(caller, leases)
        if all(len(leases) == caller.claim.max_messages for caller, leases in zip(batch, granted, strict=True)):
            return True
        self._send_away()
        return False

    def _head(self) -> list[_Caller]:
        """Take callers in hand, as many as one statement serves. Of several with one claim id, one: the others will find its leases."""
        batch: list[_Caller] = []
        claim_ids: set[str] = set()
        slots = 0
        for caller in self.callers:
            if caller.answer.done() or caller.claim.claim_id in claim_ids:
                continue
            if batch and slots + caller.claim.max_messages > _BATCH_SLOTS:
                break
            caller.in_hand = True
            batch.append(caller)
            slots += caller.claim.max_messages
            if caller.claim.claim_id:
                claim_ids.add(caller.claim.claim_id)
        return batch

    async def _grant(self, batch: list[_Caller]) -> list[list[GrantedLease]]:
        """Grant leases, to those whose claim id has leases already the same ones."""
        try:
            return await self._grant_once(batch)
        except asyncpg.UniqueViolationError:
            # Another replica has just granted leases under one of these claim ids; now they can be found.
            return await self._grant_once(batch)

    async def _grant_once(self, batch: list[_Caller]) -> list[list[GrantedLease]]:
        known = await self._parking.repeated(self._queue, [caller.claim.claim_id for caller in batch if caller.claim.claim_id])
        fresh = [caller.claim for caller in batch if caller.claim.claim_id not in known]
        granted = iter(await self._parking.grant(self._queue, self._rotation, fresh) if fresh else ())
        return [known[caller.claim.claim_id] if caller.claim.claim_id in known else next(granted) for caller in batch]

    async def _answer(self, caller: _Caller, leases: list[GrantedLease]) -> None:
        if caller.answer.done():
            if leases:
                await self._parking.give_back(leases)
        elif leases or not caller.patient:
            caller.answer.set_result(leases)

    def _send_away(self) -> None:
        for caller in self.callers:
            if not caller.patient and not caller.answer.done():
                caller.answer.set_result([])

    def _leave(self) -> None:
        self.callers = deque(caller for caller in self.callers if not caller.answer.done())
