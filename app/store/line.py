"""The line in front of one queue: everybody who waits for its messages, or for those of one filter, first come first served.

Whenever the queue may have ready messages, one statement serves the head of the line, and others those behind, as long as all whom they
try for are served. If one could not serve all, nothing is ready for those who stood in line before it ran: whoever of them does not want
to wait is sent away empty.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass, field, replace

import asyncpg
import structlog

from app.leases.floors import Firsts
from app.store.aside import Aside
from app.store.claim import Claim, ClaimName, Granted, GrantedLease, Place, claim, first_below, first_ready, repeated
from app.store.database import Pool
from app.store.pick import ANYTHING, Filter
from app.store.queues import QueueRef

_BATCH_SLOTS = 1000
_FIRST_BATCH_CALLERS = 16
_REMEMBERED_CLAIMS = 1000

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Claimed:
    """The answer to a claim.

    `tried_at` is the moment (monotonic, in seconds) that the leases' times are at least as late as. `repeated` tells that an earlier
    call of the same name was granted them, `drain` that the worker is to stop taking work, `short` that more may be ready for it: what came
    is as much as one answer holds.
    """

    queue: QueueRef
    leases: list[GrantedLease]
    tried_at: float
    name: ClaimName | None = None
    repeated: bool = False
    filter: Filter = ANYTHING
    drain: bool = False
    short: bool = False


@dataclass(slots=True, eq=False)
class _Caller:
    queue: QueueRef
    claim: Claim
    patient: bool
    tried_at: float = field(default_factory=time.monotonic)
    answer: "asyncio.Future[Claimed]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    in_hand: bool = False
    stuck: bool = False  # its claim id has leases that it cannot be told of

    def claimed(self, leases: list[GrantedLease], *, repeated: bool = False, drain: bool = False, short: bool = False) -> Claimed:
        return Claimed(self.queue, leases, self.tried_at, self.claim.name, repeated, self.claim.filter, drain, short)

    def is_served_by(self, outcome: Claimed | Exception) -> bool:
        """Whether there is no more to wish for, or to be had now: what a repeated call gets says nothing about what is ready."""
        if isinstance(outcome, Exception):
            return True
        return outcome.drain or outcome.repeated or outcome.short or len(outcome.leases) == self.claim.max_messages


@dataclass(frozen=True, slots=True)
class Serving:
    """What all lines of a replica share.

    `poll` is the longest, in seconds, that a line goes without a look at its queue; `limit` is how many calls that do not wait for messages
    may wait for the database.
    """

    pool: Pool
    poll: float
    limit: int
    on_granted: Callable[[list[GrantedLease]], None]
    release: Callable[[list[GrantedLease]], Awaitable[None]]


class Line:
    """Everybody who waits for one queue's messages, or for those of one filter, first come first served."""

    def __init__(self, queue: QueueRef, wanted: Filter, serving: Serving, turn: asyncio.Lock) -> None:
        self.callers: dict[_Caller, None] = {}  # in the order in which they came; whoever is answered leaves at once
        self._queue = queue
        self._serving = serving
        self._place = Place(queue.shard, queue.id, wanted)
        self._aside = Aside()
        self._impatient: dict[_Caller, None] = {}  # those of them who do not wait
        self._batch_callers = _FIRST_BATCH_CALLERS  # more after each batch that was served, as more may be ready
        self._claimed = False  # since it last looked below the floors
        self._woken = asyncio.Event()
        self._server: asyncio.Task[None] | None = None
        self._dry = False  # some have been tried for in vain, and nothing has become ready since
        self.turn = turn  # all lines of a queue have one: leases are granted, or given back, but never both at once
        self._inherited: deque[ClaimName] = deque(maxlen=_REMEMBERED_CLAIMS)  # calls whose leases a repeated one has got

    async def stand(self, wanted: Claim, wait: float) -> Claimed:
        caller = _Caller(self._queue, wanted, patient=wait > 0)
        self.callers[caller] = None
        if not caller.patient:
            self._impatient[caller] = None
        if not (self._dry and caller.patient and wanted.name is None):  # else there is nothing to be had, but maybe by its name
            self._woken.set()
        if self._server is None:
            self._server = asyncio.create_task(self._serve(), name=f"claims for queue {self._queue.id}")
        timer = asyncio.get_running_loop().call_later(wait, self._lose_patience, caller) if wait > 0 else None
        try:
            return await caller.answer
        except asyncio.CancelledError:
            self._leave(caller)
            if caller.answer.done() and not caller.answer.cancelled() and caller.answer.exception() is None:
                await self.give_back(caller.answer.result())
            raise
        finally:
            if timer:
                timer.cancel()

    async def repeat(self, wanted: Claim) -> Claimed:
        """Return the leases that an earlier call of this name was granted, and grant none."""
        caller = _Caller(self._queue, wanted, patient=False)
        if wanted.name is None:
            return caller.claimed([])
        async with self.turn:
            known = await repeated(self._serving.pool, self._queue.shard, self._queue.id, [wanted.name])
            self._inherited.extend(known)
        return caller.claimed(known.get(wanted.name, []), repeated=True)

    async def give_back(self, *claims: Claimed) -> None:
        """Release leases that nobody was there to take, unless a repeated call has got them since."""
        untaken = [claimed for claimed in claims if claimed.leases and not claimed.repeated]
        if not untaken:
            return
        async with self.turn:
            leases = [lease for claimed in untaken if claimed.name not in self._inherited for lease in claimed.leases]
            if leases:
                await self._serving.release(leases)

    def wake(self, firsts: Firsts | None = None) -> None:
        """Serve those who wait: messages may be ready, of which those from `firsts` on may be older than what was claimed last."""
        if firsts:
            self._place.floors.lower(firsts)
        self._dry = False
        self._woken.set()

    @property
    def rests(self) -> bool:
        """Whether nobody waits here, and the next claim begins at the front: whatever becomes ready is nothing to it."""
        return not self.callers and self._server is None and not self._place.floors

    async def look_below(self, pool: Pool) -> None:
        """Look for messages that are ready, and that no claim would find because this replica has not heard of it.

        Without a claim since the last look, the floors are left instead: else each line that was ever busy would cost a look for good.

        Raises:
            UnavailableError: Postgres did not answer.

        """
        floors = self._place.floors
        if not self._claimed:
            floors.leave()
        if not floors:
            return
        self._claimed = False
        if firsts := await first_below(pool, self._place, self._aside.ids()):
            self.wake(firsts)

    def dismiss(self, workers: Container[str] | None = None) -> None:
        """Let nobody wait any longer, or none of these workers."""
        for caller in list(self.callers):
            if workers is None or caller.claim.worker_id in workers:
                self._lose_patience(caller)
        self.wake()

    def _lose_patience(self, caller: _Caller) -> None:
        """End the wait, unless a statement is already under way for this call: then its outcome decides."""
        caller.patient = False
        if not caller.in_hand:
            self._settle(caller, Claimed(self._queue, [], caller.tried_at))

    def _settle(self, caller: _Caller, outcome: Claimed | Exception) -> None:
        """Answer a caller, who leaves the line."""
        self._leave(caller)
        if caller.answer.done():
            return
        if isinstance(outcome, Exception):
            caller.answer.set_exception(outcome)
        else:
            caller.answer.set_result(outcome)

    def _leave(self, caller: _Caller) -> None:
        self.callers.pop(caller, None)
        self._impatient.pop(caller, None)

    async def _serve(self) -> None:
        try:
            while self.callers:
                self._woken.clear()
                all_served = await self._serve_batch()
                if self.callers and not all_served:
                    await self._nap()
        finally:
            self._server = None
            self._dry = False

    async def _nap(self) -> None:
        try:
            await asyncio.wait_for(self._woken.wait(), self._serving.poll)
        except TimeoutError:
            return

    async def _serve_batch(self) -> bool:
        """Serve the head of the line. Returns whether more may be ready: everybody in it got all there is for them."""
        impatient = list(self._impatient)
        batch = self._head()
        try:
            async with self.turn:
                outcomes: Sequence[Claimed | Exception] = await self._grant(batch)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to those it was tried for
            outcomes = [error] * len(batch)
        finally:
            for caller in batch:
                caller.in_hand = False
        pairs = list(zip(batch, outcomes, strict=True))
        untaken = [outcome for caller, outcome in pairs if caller.answer.done() and isinstance(outcome, Claimed)]
        for caller, outcome in pairs:
            self._answer(caller, outcome)
        await self.give_back(*untaken)
        if all(caller.stuck or caller.is_served_by(outcome) for caller, outcome in pairs):
            self._batch_callers = min(_BATCH_SLOTS, 2 * self._batch_callers)
            stuck = [caller for caller in batch if caller.stuck]
            self._put_last(stuck)
            return len(stuck) < len(batch)
        self._batch_callers = _FIRST_BATCH_CALLERS
        self._dry = not self._woken.is_set()
        names = {caller.claim.name for caller in batch if caller.claim.name}
        for caller in (*batch, *impatient):
            if caller.patient:
                continue
            if caller.claim.name in names and caller not in batch:
                self.wake()  # it is to find the leases of its namesake
            else:
                self._settle(caller, Claimed(self._queue, [], caller.tried_at))
        return False

    def _put_last(self, callers: list[_Caller]) -> None:
        """Let those of them who still wait stand at the end, so that they keep nobody from being served."""
        for caller in callers:
            if caller in self.callers:
                del self.callers[caller]
                self.callers[caller] = None

    def _head(self) -> list[_Caller]:
        """Take callers in hand, as many as one statement serves. Of several with one name, one: the others will find its leases."""
        batch: list[_Caller] = []
        names: set[ClaimName] = set()
        slots = 0
        for caller in self.callers:
            if caller.answer.done() or caller.claim.name in names:
                continue
            if batch and (slots + caller.claim.max_messages > _BATCH_SLOTS or len(batch) == self._batch_callers):
                break
            caller.in_hand, caller.stuck = True, False
            caller.tried_at = time.monotonic()
            batch.append(caller)
            slots += caller.claim.max_messages
            if caller.claim.name:
                names.add(caller.claim.name)
        return batch

    def _answer(self, caller: _Caller, outcome: Claimed | Exception) -> None:
        """Answer a caller, unless there is nothing to tell and it waits on, for messages or for its turn."""
        if isinstance(outcome, Exception) or outcome.leases or outcome.drain or not (caller.patient or outcome.short):
            self._settle(caller, outcome)

    async def _grant(self, batch: list[_Caller]) -> Sequence[Claimed | Exception]:
        """Grant leases to the callers; if Postgres refuses, to each by itself, so that none pays for another (design rule 10)."""
        try:
            return await self._grant_together(batch)
        except asyncpg.PostgresError:
            return await self._grant_by_turns(batch)

    async def _grant_by_turns(self, batch: list[_Caller]) -> list[Claimed | Exception]:
        """Grant leases to each caller by itself. What ends this early is told to those who are left: the others have their leases."""
        outcomes: list[Claimed | Exception] = []
        for caller in batch:
            try:
                outcomes.append(await self._grant_alone(caller))
            except asyncpg.PostgresError as error:
                outcomes.append(error)
            except Exception as error:  # noqa: BLE001 - it is nobody's own
                return outcomes + [error] * (len(batch) - len(outcomes))
        return outcomes

    async def _grant_together(self, batch: list[_Caller]) -> list[Claimed]:
        """Grant leases, to those whose claim id has leases already the same ones."""
        names = [caller.claim.name for caller in batch if caller.claim.name]
        known = await repeated(self._serving.pool, self._queue.shard, self._queue.id, names) if names else {}
        self._inherited.extend(known)
        fresh = [caller.claim for caller in batch if caller.claim.name not in known]
        grants = iter(await self._claim(fresh) if fresh else ())

        def answer(caller: _Caller) -> Claimed:
            if caller.claim.name in known:
                return caller.claimed(known[caller.claim.name], repeated=True)
            grant = next(grants)
            return caller.claimed(grant.leases, drain=grant.drain, short=grant.short)

        return [answer(caller) for caller in batch]

    async def _claim(self, claims: list[Claim]) -> list[Granted]:
        self._claimed = True
        grants = await claim(self._serving.pool, self._place, claims, self._aside.ids())
        if leases := [lease for grant in grants for lease in grant.leases]:
            self._serving.on_granted(leases)
        return grants

    async def _grant_alone(self, caller: _Caller) -> Claimed:
        """Grant leases to one caller. A message that cannot be leased is set aside; then there is none for this call, this time."""
        try:
            (claimed,) = await self._grant_together([caller])
        except asyncpg.UniqueViolationError:
            # Another replica has just granted leases under this claim id, or they ran out and wait to be reclaimed.
            caller.stuck = True
            return caller.claimed([])
        except asyncpg.PostgresError:
            return await self._grant_one(caller)
        return claimed

    async def _grant_one(self, caller: _Caller) -> Claimed:
        """Grant a single lease: either the message is sound, or it is the culprit."""
        single = replace(caller, claim=replace(caller.claim, max_messages=1))
        try:
            (claimed,) = await self._grant_together([single])
        except asyncpg.PostgresError as error:
            culprit = await first_ready(self._serving.pool, self._place, self._aside.ids())
            if culprit is None:
                raise  # for no row's sake
            self._aside.put(culprit)
            log.error("row set aside", verb="claim", message_id=culprit, sqlstate=error.sqlstate, reason=type(error).__name__)
            self.wake()
            return caller.claimed([])
        return claimed
