"""Parked claims: calls for leases that wait in memory until messages are ready. They hold no connection (design rule 11)."""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Container, Iterator
from weakref import WeakValueDictionary

import asyncpg
import structlog

from app.store.claim import Claim
from app.store.database import Pool
from app.store.faults import OverloadedError, UnavailableError
from app.store.line import Claimed, Line, Serving
from app.store.pick import Filter
from app.store.queues import QueueRef
from app.store.ready import QueueFirsts

_MOST_LINES = 10_000

log = structlog.get_logger(__name__)


class Parking:
    """The lines in front of all queues, one per filter, each with its place in the rotation over fairness keys.

    For that place they are remembered, up to a number. What becomes ready is told only to those of its queue that are in use, so that
    nobody waits for the sake of filters that were asked for once.
    """

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._lines: OrderedDict[tuple[int, Filter], Line] = OrderedDict()
        self._in_use: dict[int, dict[Filter, Line]] = {}
        # One turn for all lines of a queue: claims that wait for its row, as they do if it limits its leases, hold one connection.
        self._turns: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        self._closed = False
        self._impatient = 0  # calls that wait for the database, but not for messages

    async def claim(self, queue: QueueRef, wanted: Claim, wait: float) -> Claimed:
        """Return leases on the queue's messages; wait up to `wait` seconds if none is ready. Cancelling it gives back what was granted.

        Raises:
            UnavailableError: Postgres did not answer.
            OverloadedError: it is not to wait, and too many such calls wait for the database already.
            QueueGoneError: the queue has been deleted while the call waited.

        """
        line = self._line(queue, wanted.filter)
        if wait > 0 and not self._closed:
            return await line.stand(wanted, wait)
        with self._within_limit():
            return await line.stand(wanted, 0)

    async def repeat(self, queue: QueueRef, wanted: Claim) -> Claimed:
        """Return the leases that an earlier call of the same name was granted, and grant none.

        Raises:
            UnavailableError: Postgres did not answer.
            OverloadedError: too many such calls wait for the database already.

        """
        with self._within_limit():
            return await self._line(queue, wanted.filter).repeat(wanted)

    async def give_back(self, claimed: Claimed) -> None:
        """Release leases that nobody was there to take."""
        await self._line(claimed.queue, claimed.filter).give_back(claimed)

    def wake(self, ready: QueueFirsts) -> None:
        """Serve the lines of these queues: they may have ready messages."""
        for queue_id, firsts in ready.items():
            for line in self._in_use.get(queue_id, {}).values():
                line.wake(firsts)

    def wake_all(self) -> None:
        """Serve all lines, for whatever they may have missed."""
        self.wake({queue_id: {None: 0} for queue_id in self._in_use})

    async def look_below(self, pool: Pool) -> None:
        """Have each line look for messages that it has left behind. One that fails keeps no other from it. One that rests is put away."""
        failed: list[Exception] = []
        for place, line in self._lines_in_use():
            try:
                await line.look_below(pool)
            except (UnavailableError, asyncpg.PostgresError) as error:
                failed.append(error)
            if line.rests:
                self._put_away(*place)
        if failed:
            log.warning("not looked below the floors", lines=len(failed), reason=str(failed[-1]) or type(failed[-1]).__name__)

    def dismiss(self) -> None:
        """Send everybody away empty, and let nobody wait from now on: the service is stopping."""
        self._closed = True
        for _, line in self._lines_in_use():
            line.dismiss()

    def dismiss_workers(self, workers: Container[str]) -> None:
        """Send away whoever waits for these workers: they are to stop taking work."""
        for _, line in self._lines_in_use():
            line.dismiss(workers)

    @property
    def parked(self) -> int:
        return sum(len(line.callers) for _, line in self._lines_in_use())

    @contextlib.contextmanager
    def _within_limit(self) -> Iterator[None]:
        """Count a call that does not wait for messages, or refuse it. Parked ones cost nothing while the database does not answer."""
        if self._impatient >= self._serving.limit:
            raise OverloadedError("claim")
        self._impatient += 1
        try:
            yield
        finally:
            self._impatient -= 1

    def _line(self, queue: QueueRef, wanted: Filter) -> Line:
        """Return a line, which is in use from now on."""
        line = self._lines.get((queue.id, wanted))
        if line is None:
            self._forget_idle()
            turn = self._turns.setdefault(queue.id, asyncio.Lock())
            line = self._lines[queue.id, wanted] = Line(queue, wanted, self._serving, turn)
        self._lines.move_to_end((queue.id, wanted))
        self._in_use.setdefault(queue.id, {})[wanted] = line
        return line

    def _lines_in_use(self) -> list[tuple[tuple[int, Filter], Line]]:
        return [((queue_id, wanted), line) for queue_id, lines in self._in_use.items() for wanted, line in lines.items()]

    def _forget_idle(self) -> None:
        if len(self._lines) < _MOST_LINES:
            return
        idle = next((place for place, line in self._lines.items() if not line.callers), None)
        if idle is not None:
            del self._lines[idle]
            self._put_away(*idle)

    def _put_away(self, queue_id: int, wanted: Filter) -> None:
        """Have a line in use no more."""
        lines = self._in_use.get(queue_id, {})
        lines.pop(wanted, None)
        if not lines:
            self._in_use.pop(queue_id, None)
