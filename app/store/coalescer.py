"""Calls that arrive while a statement is under way wait for the next one and share it.

No timer: an idle service runs a lone call at once, a busy one runs ever larger batches. A batch that Postgres refuses is run again in
halves until the culprit stands alone (design rule 10); the rest goes through. A caller hears nothing before its batch is committed
(rule 7), and of an outage only if it concerns one of its rows.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeAlias, TypeVar

import asyncpg
import structlog

from app.store.faults import OverloadedError, RowFaultError, UnavailableError

RowT = TypeVar("RowT")
VerdictT = TypeVar("VerdictT")

OrFault: TypeAlias = VerdictT | RowFaultError | UnavailableError
"""A verdict, or why there is none: Postgres refuses the row, or did not answer for it."""

log = structlog.get_logger(__name__)


async def isolate(
    verb: str, rows: list[RowT], run: Callable[[list[RowT]], Awaitable[Sequence[OrFault[VerdictT]]]]
) -> list[OrFault[VerdictT]]:
    """Carry out rows, and return one verdict per row, in order. One that Postgres refuses is run by itself in the end, and fails alone."""
    try:
        return [*await run(rows)]
    except UnavailableError as error:
        return [error] * len(rows)
    except asyncpg.PostgresError as error:
        if len(rows) > 1:
            middle = len(rows) // 2
            return await isolate(verb, rows[:middle], run) + await isolate(verb, rows[middle:], run)
        log.error("row set aside", verb=verb, row=repr(rows[0]), sqlstate=error.sqlstate, reason=type(error).__name__)
        return [RowFaultError(type(error).__name__)]


@dataclass(slots=True)
class _Call(Generic[RowT, VerdictT]):
    rows: Sequence[RowT]
    size: int
    answer: "asyncio.Future[list[VerdictT | RowFaultError]]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Coalescer(Generic[RowT, VerdictT]):
    """Turns many small calls of one verb on one shard into few statements.

    Args:
        name: the verb, for the log.
        run: carries out a batch and returns one verdict per row, in order, or why there is none.
        batch: a statement takes calls up to this size in all.
        limit: calls that may wait; one more is refused.

    """

    def __init__(self, name: str, run: Callable[[list[RowT]], Awaitable[Sequence[OrFault[VerdictT]]]], *, batch: int, limit: int) -> None:
        self._name = name
        self._run = run
        self._batch = batch
        self._limit = limit
        self._waiting: deque[_Call[RowT, VerdictT]] = deque()
        self._flusher: asyncio.Task[None] | None = None

    async def submit(self, rows: Sequence[RowT], size: int | None = None) -> list[VerdictT | RowFaultError]:
        """Carry out the rows with whatever else is waiting, and return one verdict per row, in order.

        `size` is what the call counts for in a batch, its number of rows by default.

        Raises:
            OverloadedError: too many calls wait already.
            UnavailableError: Postgres did not answer; whether the rows took effect is unknown.

        """
        if len(self._waiting) >= self._limit:
            raise OverloadedError(self._name)
        call: _Call[RowT, VerdictT] = _Call(rows, size or len(rows))
        self._waiting.append(call)
        if self._flusher is None:
            self._flusher = asyncio.create_task(self._flush_all(), name=f"coalescer {self._name}")
        return await call.answer

    async def _flush_all(self) -> None:
        try:
            while self._waiting:
                await self._flush(self._next_batch())
        finally:
            self._flusher = None

    def _next_batch(self) -> list[_Call[RowT, VerdictT]]:
        calls = [self._waiting.popleft()]
        size = calls[0].size
        while self._waiting and size + self._waiting[0].size <= self._batch:
            calls.append(self._waiting.popleft())
            size += calls[-1].size
        return calls

    async def _flush(self, calls: list[_Call[RowT, VerdictT]]) -> None:
        try:
            verdicts = iter(await isolate(self._name, [row for call in calls for row in call.rows], self._run))
        except asyncio.CancelledError:
            _fail(calls, UnavailableError("the service is stopping"))
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the callers, and the next batch must run
            _fail(calls, error)
            return
        for call in calls:
            _answer(call, list(islice(verdicts, len(call.rows))))


def _answer(call: _Call[RowT, VerdictT], verdicts: Sequence[OrFault[VerdictT]]) -> None:
    answer: list[VerdictT | RowFaultError] = []
    for verdict in verdicts:
        if isinstance(verdict, UnavailableError):
            _fail([call], verdict)
            return
        answer.append(verdict)
    if not call.answer.done():
        call.answer.set_result(answer)


def _fail(calls: list[_Call[RowT, VerdictT]], error: Exception) -> None:
    for call in calls:
        if not call.answer.done():
            call.answer.set_exception(error)
