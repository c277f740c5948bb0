"""The line in front of one queue: everybody who waits for its messages, first come first served.

Whenever the queue may have ready messages, one statement serves as many of the line as it can; if it could not serve all whom it tried
for, nothing is ready, and who does not want to wait is sent away empty.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import asyncpg

from app.leases.rotation import Rotation
from app.store.claim import Claim, GrantedLease, claim, repeated
from app.store.database import Pool
from app.store.queues import QueueRef

_BATCH_SLOTS = 1000


@dataclass(frozen=True, slots=True)
class Claimed:
    """The answer to a claim: its leases, and the moment (monotonic, seconds) that their times are at least as late as."""

    leases: list[GrantedLease]
    tried_at: float


@dataclass(slots=True, eq=False)
class _Caller:
    claim: Claim
    patient: bool
    tried_at: float = field(default_factory=time.monotonic)
    answer: "asyncio.Future[list[GrantedLease]]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    in_hand: bool = False

    def lose_patience(self) -> None:
        """End the wait, unless a statement is already under way for this call: then its outcome decides."""
        self.patient = False
        if not self.in_hand and not self.answer.done():
            self.answer.set_result([])


@dataclass(frozen=True, slots=True)
class Serving:
    """What all lines of a replica share. `poll` is the longest, in seconds, that a line goes without a look at its queue."""

    pool: Pool
    poll: float
    on_granted: Callable[[list[GrantedLease]], None]
    give_back: Callable[[list[GrantedLease]], Awaitable[None]]


class Line:
    """Everybody who waits for one queue's messages, first come first served."""

    def __init__(self, queue: QueueRef, serving: Serving) -> None:
        self.callers: deque[_Caller] = deque()
        self._queue = queue
        self._serving = serving
        self._rotation = Rotation()
        self._woken = asyncio.Event()
        self._server: asyncio.Task[None] | None = None

    async def stand(self, wanted: Claim, wait: float) -> Claimed:
        caller = _Caller(wanted, patient=wait > 0)
        self.callers.append(caller)
        self.wake()
        if self._server is None:
            self._server = asyncio.create_task(self._serve(), name=f"claims for queue {self._queue.id}")
        timer = asyncio.get_running_loop().call_later(wait, caller.lose_patience) if wait > 0 else None
        try:
            return Claimed(await caller.answer, caller.tried_at)
        except asyncio.CancelledError:
            if caller.answer.done() and not caller.answer.cancelled() and (leases := caller.answer.result()):
                await self._serving.give_back(leases)
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
            await asyncio.wait_for(self._woken.wait(), self._serving.poll)
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
            caller.tried_at = time.monotonic()
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
        pool, shard, queue_id = self._serving.pool, self._queue.shard, self._queue.id
        claim_ids = [caller.claim.claim_id for caller in batch if caller.claim.claim_id]
        known = await repeated(pool, shard, queue_id, claim_ids) if claim_ids else {}
        fresh = [caller.claim for caller in batch if caller.claim.claim_id not in known]
        granted = await claim(pool, shard, queue_id, self._rotation, fresh) if fresh else []
        if leases := [lease for each in granted for lease in each]:
            self._serving.on_granted(leases)
        fresh_leases = iter(granted)
        return [known[caller.claim.claim_id] if caller.claim.claim_id in known else next(fresh_leases) for caller in batch]

    async def _answer(self, caller: _Caller, leases: list[GrantedLease]) -> None:
        if caller.answer.done():
            if leases:
                await self._serving.give_back(leases)
        elif leases or not caller.patient:
            caller.answer.set_result(leases)

    def _send_away(self) -> None:
        for caller in self.callers:
            if not caller.patient and not caller.answer.done():
                caller.answer.set_result([])

    def _leave(self) -> None:
        self.callers = deque(caller for caller in self.callers if not caller.answer.done())
