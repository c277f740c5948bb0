"""The line in front of one queue: everybody who waits for its messages, or for those of one filter, first come first served.

Whenever the queue may have ready messages, one statement serves the head of the line, and others those behind, as long as all whom they
try for are served. If one could not serve all, nothing is ready for those who stood in line before it ran: whoever of them does not want
to wait is sent away empty.

Whoever has a name may have leases by it already, wherever in the line it stands. So all names are asked, those that came meanwhile
together, and before that nobody is sent away empty.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass, field
from itertools import islice
from weakref import WeakValueDictionary

from app.leases.floors import Firsts
from app.store.aside import Aside
from app.store.claim import Claim, ClaimName, Granted, GrantedLease, Place, first_below, repeated
from app.store.coalescer import isolate
from app.store.database import Pool
from app.store.granting import Granting, NameTakenError, TooManyRefusedError
from app.store.pick import ANYTHING, Filter
from app.store.queues import QueueRef

_BATCH_SLOTS = 1000
_FIRST_BATCH_CALLERS = 16
_REMEMBERED_CLAIMS = 1000


@dataclass(frozen=True, slots=True)
class Claimed:
    """The answer to a claim.

    `tried_at` is the moment (monotonic, in seconds) that the leases' times are at least as late as. `repeated` tells that an earlier
    call of the same name was granted them, `drain` that the worker is to stop taking work, `short` that more may be ready for it: what came
    is as much as one answer holds, or as Postgres did not refuse.
    """

    queue: QueueRef
    leases: list[GrantedLease]
    tried_at: float
    name: ClaimName | None = None
    repeated: bool = False
    filter: Filter = ANYTHING
    drain: bool = False
    short: bool = False


@dataclass(slots=True, eq=False, repr=False)
class _Caller:
    queue: QueueRef
    claim: Claim
    patient: bool
    tried_at: float = field(default_factory=time.monotonic)
    answer: "asyncio.Future[Claimed]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    in_hand: bool = False
    leaving: bool = False  # its wait is over, and it only has its name asked
    stuck: bool = False  # it has none this time: its claim id has leases that it cannot be told of, or too much is refused
    namesakes: "set[_Caller]" = field(default_factory=set)  # all who stand in line under its name, if it has one

    def __repr__(self) -> str:
        """Name it for the log, without its claim id: who knows that has its receipts for the asking."""
        return f"claim of {self.claim.worker_id!r}"

    def claimed(self, leases: list[GrantedLease], *, repeated: bool = False, drain: bool = False, short: bool = False) -> Claimed:
        return Claimed(self.queue, leases, self.tried_at, self.claim.name, repeated, self.claim.filter, drain, short)

    def outcome_of(self, granted: Granted | Exception) -> Claimed | Exception:
        """Return what a grant comes to for this caller."""
        if isinstance(granted, Granted):
            return self.claimed(granted.leases, drain=granted.drain, short=granted.short)
        if isinstance(granted, (NameTakenError, TooManyRefusedError)):
            self.stuck = True
            return self.claimed([])
        return granted

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
        self._granting = Granting(serving.pool, self._place, self._aside, serving.on_granted, self.wake)
        self._impatient: dict[_Caller, None] = {}  # those of them who do not wait
        self._unasked: dict[_Caller, None] = {}  # those of them whose names are to be asked: they may have leases by them
        self._namesakes: WeakValueDictionary[ClaimName, set[_Caller]] = WeakValueDictionary()
        self._batch_callers = _FIRST_BATCH_CALLERS  # more after each batch that was served, as more may be ready
        self._claimed = False  # since it last looked below the floors
        self._woken = asyncio.Event()
        self._server: asyncio.Task[None] | None = None
        self._dry = False  # some have been tried for in vain, and nothing has become ready since, nor has anybody come who does not wait
        self._look_at = 0.0  # when it tries again all the same (monotonic, in seconds)
        self.turn = turn  # all lines of a queue have one: leases are granted, or given back, but never both at once
        self._inherited: deque[ClaimName] = deque(maxlen=_REMEMBERED_CLAIMS)  # calls whose leases a repeated one has got

    async def stand(self, wanted: Claim, wait: float) -> Claimed:
        caller = _Caller(self._queue, wanted, patient=wait > 0)
        self.callers[caller] = None
        if wanted.name:
            caller.namesakes = self._namesakes.setdefault(wanted.name, caller.namesakes)
            caller.namesakes.add(caller)
            self._unasked[caller] = None
        if not caller.patient:
            self._impatient[caller] = None
            self.wake()
        elif wanted.name or not self._dry:  # else there is nothing to be had
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
        """End the wait, unless a statement is already under way for this call: then its outcome decides.

        A name is asked a last time, however long Postgres takes: another replica may have granted leases by it, or a commit have come late.
        """
        if caller.answer.done():
            return
        caller.patient = False
        if caller.claim.name:
            caller.leaving = True
            self._unasked[caller] = None
            self._woken.set()
        elif not caller.in_hand:
            self._settle(caller, caller.claimed([]))

    def _settle(self, caller: _Caller, outcome: Claimed | Exception) -> None:
        """Answer a caller, who leaves the line. If it has leases, they are its namesakes' too."""
        self._leave(caller)
        if caller.answer.done():
            return
        if isinstance(outcome, Exception):
            caller.answer.set_exception(outcome)
            return
        caller.answer.set_result(outcome)
        if outcome.leases:
            self._unasked.update(dict.fromkeys(caller.namesakes))

    def _leave(self, caller: _Caller) -> None:
        for standing in (self.callers, self._impatient, self._unasked):
            standing.pop(caller, None)
        caller.namesakes.discard(caller)

    async def _serve(self) -> None:
        try:
            while self.callers:
                self._woken.clear()
                all_served = await self._serve_batch()
                if self.callers and not (all_served or self._unasked):
                    await self._nap()
        finally:
            self._server = None
            self._dry = False

    async def _nap(self) -> None:
        """Rest until woken, or until it is time to look at the queue."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), self._look_at - time.monotonic())

    async def _serve_batch(self) -> bool:
        """Serve the head of the line, if there may be something to be had, and whoever has leases by its name.

        Returns whether more may be ready: everybody at the head got all there is for them.
        """
        impatient = list(self._impatient)
        batch, askers = self._head(), self._askers()
        self._dry = self._dry or bool(batch)  # unless it is woken meanwhile
        outcomes = await self._outcomes(batch, askers)
        for caller in batch:
            caller.in_hand = False
        untaken = [outcome for caller, outcome in outcomes.items() if caller.answer.done() and isinstance(outcome, Claimed)]
        for caller, outcome in outcomes.items():
            self._answer(caller, outcome)
        for caller in askers:
            if caller.leaving and caller not in self._unasked:
                self._settle(caller, caller.claimed([]))
        await self.give_back(*untaken)
        if batch:
            self._look_at = time.monotonic() + self._serving.poll
            if all(caller.stuck or caller.is_served_by(outcomes[caller]) for caller in batch):
                return self._go_on(batch)
        self._batch_callers = _FIRST_BATCH_CALLERS
        for caller in (*batch, *impatient):
            if not caller.patient and caller not in self._unasked:
                self._settle(caller, caller.claimed([]))
        return False

    def _go_on(self, served: list[_Caller]) -> bool:
        """Let a larger batch follow one that was served. Returns whether somebody in it was, who was not stuck."""
        self._dry = False
        self._batch_callers = min(_BATCH_SLOTS, 2 * self._batch_callers)
        stuck = [caller for caller in served if caller.stuck]
        self._put_last(stuck)
        return len(stuck) < len(served)

    def _put_last(self, callers: list[_Caller]) -> None:
        """Let those of them who still wait stand at the end, so that they keep nobody from being served."""
        for caller in callers:
            if caller in self.callers:
                del self.callers[caller]
                self.callers[caller] = None

    def _head(self) -> list[_Caller]:
        """Take callers in hand, as many as one statement serves. Of several with one name, one: the others will find its leases.

        Nobody as long as the line is dry.
        """
        batch: list[_Caller] = []
        if self._dry and time.monotonic() < self._look_at:
            return batch
        names: set[ClaimName] = set()
        slots = 0
        for caller in self.callers:
            if caller.leaving or caller.answer.done() or caller.claim.name in names:
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

    def _askers(self) -> list[_Caller]:
        """Return others whose names are to be asked, as many as one statement looks up."""
        askers = list(islice((caller for caller in self._unasked if not caller.in_hand), _BATCH_SLOTS))
        for caller in askers:
            caller.tried_at = time.monotonic()
        return askers

    def _answer(self, caller: _Caller, outcome: Claimed | Exception) -> None:
        """Answer a caller, unless there is nothing to tell and it waits on, for messages or for its turn."""
        waits_on = caller.patient or caller in self._unasked
        if isinstance(outcome, Exception) or outcome.leases or outcome.drain or not (waits_on or outcome.short):
            self._settle(caller, outcome)

    async def _outcomes(self, batch: list[_Caller], askers: list[_Caller]) -> dict[_Caller, Claimed | Exception]:
        """Ask for names, and grant leases to those in the batch who have none by theirs. Tells nothing of askers who have none.

        Of what another replica grants by a name later, the index of names tells, and the last look at the end of a wait.
        """
        outcomes: dict[_Caller, Claimed | Exception] = {}
        tried = [*batch, *askers]
        to_ask = [caller for caller in tried if caller in self._unasked]
        for caller in to_ask:
            del self._unasked[caller]
        try:
            async with self.turn:
                outcomes |= await self._ask(to_ask)
                tried = [caller for caller in batch if caller not in outcomes]
                outcomes |= await self._grant(tried)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to those it was tried for
            outcomes |= dict.fromkeys(tried, error)
        return outcomes

    async def _ask(self, callers: Sequence[_Caller]) -> dict[_Caller, Claimed | Exception]:
        """Return the leases of those who have some by their names, or why they cannot be told of them."""
        named = [caller for caller in callers if caller.claim.name]
        if not named:
            return {}

        async def look_up(some: list[_Caller]) -> list[list[GrantedLease]]:
            names = [caller.claim.name for caller in some if caller.claim.name]
            known = await repeated(self._serving.pool, self._queue.shard, self._queue.id, names)
            self._inherited.extend(known)
            return [known.get(name, []) for name in names]

        found = zip(named, await isolate("repeat", named, look_up), strict=True)
        return {
            caller: leases if isinstance(leases, Exception) else caller.claimed(leases, repeated=True) for caller, leases in found if leases
        }

    async def _grant(self, batch: list[_Caller]) -> dict[_Caller, Claimed | Exception]:
        """Grant leases to the callers."""
        if not batch:
            return {}
        self._claimed = True
        grants = dict(zip(batch, await self._granting.grant([caller.claim for caller in batch]), strict=True))
        found = await self._ask([caller for caller, granted in grants.items() if isinstance(granted, NameTakenError)])
        return {caller: found.get(caller) or caller.outcome_of(granted) for caller, granted in grants.items()}
