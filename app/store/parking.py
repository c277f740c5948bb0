"""Parked claims: calls for leases that wait in memory until messages are ready. They hold no connection (design rule 11)."""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Container, Iterator

import asyncpg
import structlog

from app.store.claim import Claim
from app.store.database import Pool
from app.store.faults import OverloadedError, UnavailableError
from app.store.line import Claimed, Line, Serving
from app.store.pick import Filter
from app.store.queues import QueueRef
from app.store.ready import QueueFirsts

_IDLE_LINES = 10_000

log = structlog.get_logger(__name__)


class Parking:
    """The lines in front of all queues, one per filter, each with its place in the rotation over fairness keys."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._lines: OrderedDict[tuple[int, Filter], Line] = OrderedDict()
        self._of_queue: dict[int, dict[Filter, Line]] = {}
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
            for line in self._of_queue.get(queue_id, {}).values():
                line.wake(firsts)

    def wake_all(self) -> None:
        """Serve all lines, for whatever they may have missed."""
        self.wake({queue_id: {None: 0} for queue_id in self._of_queue})

    async def look_below(self, pool: Pool) -> None:
        """Have each line look for messages that it has left behind. One that fails keeps no other from it."""
        failed: list[Exception] = []
        for line in list(self._lines.values()):
            try:
                await line.look_below(pool)
            except (UnavailableError, asyncpg.PostgresError) as error:
                failed.append(error)
        if failed:
            log.warning("not looked below the floors", lines=len(failed), reason=str(failed[-1]) or type(failed[-1]).__name__)

    def dismiss(self) -> None:
        """Send everybody away empty, and let nobody wait from now on: the service is stopping."""
        self._closed = True
        for line in self._lines.values():
            line.dismiss()

    def dismiss_workers(self, workers: Container[str]) -> None:
        """Send away whoever waits for these workers: they are to stop taking work."""
        for line in self._lines.values():
            line.dismiss(workers)

    @property
    def parked(self) -> int:
        return sum(len(line.callers) for line in self._lines.values())

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
        line = self._lines.get((queue.id, wanted))
        if line is None:
            self._forget_idle()
            siblings = self._of_queue.setdefault(queue.id, {})
            # One turn for all: claims from a queue that limits its leases wait for its row with one connection, not with all there are.
            turn = next((each.turn for each in siblings.values()), None) or asyncio.Lock()
            line = self._lines[queue.id, wanted] = siblings[wanted] = Line(queue, wanted, self._serving, turn)
        self._lines.move_to_end((queue.id, wanted))
        return line

    def _forget_idle(self) -> None:
        if len(self._lines) < _IDLE_LINES:
            return
        idle = next((place for place, line in self._lines.items() if not line.callers), None)
        if idle is None:
            return
        del self._lines[idle]
        queue_id, wanted = idle
        del self._of_queue[queue_id][wanted]
        if not self._of_queue[queue_id]:
            del self._of_queue[queue_id]
