"""Coalescing on plain functions: who shares a batch, who waits, and who hears of what."""

import asyncio
from collections.abc import Awaitable, Callable

import asyncpg
import pytest

from app.store.coalescer import Coalescer
from app.store.faults import OverloadedError, UnavailableError

Run = Callable[[list[int]], Awaitable[list[int]]]


class Gate:
    """A verb that doubles numbers, and that stands still while its door is shut."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.door = asyncio.Event()
        self.entered = asyncio.Event()
        self.fault: Exception | None = None

    async def __call__(self, rows: list[int]) -> list[int]:
        self.batches.append(rows)
        self.entered.set()
        await self.door.wait()
        if self.fault:
            raise self.fault
        return [2 * row for row in rows]


def coalescer(run: Run, *, batch: int = 1000, limit: int = 1000) -> Coalescer[int, int]:
    return Coalescer("double", run, batch=batch, limit=limit)


async def start(calls: Coalescer[int, int], gate: Gate, first: int) -> "asyncio.Task[object]":
    """Submit one row, and return when its batch is under way."""
    task: asyncio.Task[object] = asyncio.create_task(calls.submit([first]))
    await asyncio.wait_for(gate.entered.wait(), 60)
    return task


async def queued(calls: Coalescer[int, int], *rows: list[int]) -> "list[asyncio.Task[object]]":
    """Submit calls that wait for the batch under way."""
    tasks: list[asyncio.Task[object]] = [asyncio.create_task(calls.submit(each)) for each in rows]
    await asyncio.sleep(0)
    return tasks


async def test_a_lone_call_runs_at_once() -> None:
    gate = Gate()
    gate.door.set()
    assert await coalescer(gate).submit([1, 2, 3]) == [2, 4, 6]
    assert gate.batches == [[1, 2, 3]]


async def test_calls_that_come_during_a_flush_share_the_next_one_in_order() -> None:
    gate = Gate()
    calls = coalescer(gate)
    first = await start(calls, gate, 0)
    others = await queued(calls, *([n, -n] for n in range(1, 51)))
    gate.door.set()
    assert await asyncio.gather(first, *others) == [[0], *([2 * n, -2 * n] for n in range(1, 51))]
    assert gate.batches == [[0], [row for n in range(1, 51) for row in (n, -n)]]


async def test_a_batch_is_bounded_and_never_splits_a_call() -> None:
    gate = Gate()
    calls = coalescer(gate, batch=5)
    first = await start(calls, gate, 0)
    others = await queued(calls, [1, 2], [3, 4], [5, 6], [7, 8, 9, 10, 11, 12], [13])
    gate.door.set()
    await asyncio.gather(first, *others)
    assert gate.batches == [[0], [1, 2, 3, 4], [5, 6], [7, 8, 9, 10, 11, 12], [13]]


async def test_a_call_counts_for_the_size_it_gives() -> None:
    gate = Gate()
    calls = coalescer(gate, batch=10)
    first = await start(calls, gate, 0)
    others = [asyncio.create_task(calls.submit([n], size=6)) for n in (1, 2)]
    await asyncio.sleep(0)
    gate.door.set()
    await asyncio.gather(first, *others)
    assert gate.batches == [[0], [1], [2]]


@pytest.mark.scar(43)
async def test_one_call_more_than_may_wait_is_refused_at_once_and_the_others_go_through() -> None:
    gate = Gate()
    calls = coalescer(gate, limit=2)
    first = await start(calls, gate, 0)
    others = await queued(calls, [1], [2])
    with pytest.raises(OverloadedError):
        await calls.submit([3])
    gate.door.set()
    assert await asyncio.gather(first, *others) == [[0], [2], [4]]
    assert await calls.submit([3]) == [6]


async def test_an_error_reaches_exactly_the_callers_of_its_batch() -> None:
    gate = Gate()
    calls = coalescer(gate)
    first = await start(calls, gate, 0)
    gate.fault = UnavailableError("gone")
    gate.door.set()
    with pytest.raises(UnavailableError):
        await first
    gate.fault = None
    assert await calls.submit([1]) == [2]
    assert gate.batches == [[0], [1]], "an outage is told, not tried again: it is unknown whether the rows took effect"


async def test_a_failed_batch_does_not_fail_the_one_behind_it() -> None:
    gate = Gate()
    seen: list[list[int]] = []

    async def fail_first(rows: list[int]) -> list[int]:
        seen.append(rows)
        if len(seen) == 1:
            await gate(rows)
            raise UnavailableError("gone")
        return rows

    calls = coalescer(fail_first)
    first = await start(calls, gate, 0)
    others = await queued(calls, [1], [2])
    gate.door.set()
    with pytest.raises(UnavailableError):
        await first
    assert await asyncio.gather(*others) == [[1], [2]]


async def test_an_outage_while_a_refused_batch_is_run_in_halves_is_told_to_those_of_its_half_alone() -> None:
    gate = Gate()

    async def run(rows: list[int]) -> list[int]:
        await gate(rows)
        if len(rows) == 4:
            raise asyncpg.DivisionByZeroError("refused")
        if 4 in rows:
            raise UnavailableError("gone")
        return rows

    calls = coalescer(run)
    first = await start(calls, gate, 0)
    others = await queued(calls, [1], [2], [3], [4])
    gate.door.set()
    assert await first == [0]
    answers = await asyncio.gather(*others, return_exceptions=True)
    assert answers[:2] == [[1], [2]]
    assert [type(answer) for answer in answers[2:]] == [UnavailableError, UnavailableError]


async def test_of_verdicts_and_outages_each_call_hears_its_own() -> None:
    gate, outage = Gate(), UnavailableError("gone")

    async def run(rows: list[int]) -> list[int | UnavailableError]:
        await gate(rows)
        return [row or outage for row in rows]

    calls: Coalescer[int, int] = Coalescer("double", run, batch=1000, limit=1000)
    first = await start(calls, gate, 1)
    others = await queued(calls, [2, 3], [4, 0], [0], [5])
    gate.door.set()
    assert await asyncio.gather(first, *others, return_exceptions=True) == [[1], [2, 3], outage, outage, [5]]


async def test_a_caller_that_is_cancelled_takes_nobody_with_it() -> None:
    gate = Gate()
    calls = coalescer(gate)
    first = await start(calls, gate, 0)
    leaving, staying = await queued(calls, [1], [2])
    leaving.cancel()
    gate.door.set()
    assert await first == [0]
    assert await staying == [4]
    with pytest.raises(asyncio.CancelledError):
        await leaving


async def test_a_caller_cancelled_during_its_own_flush_takes_nobody_with_it() -> None:
    gate = Gate()
    calls = coalescer(gate)
    first = await start(calls, gate, 0)
    first.cancel()
    (other,) = await queued(calls, [1])
    gate.door.set()
    assert await other == [2]
    assert await calls.submit([3]) == [6]


async def test_thousands_of_concurrent_calls_each_get_their_own_verdicts() -> None:
    gate = Gate()
    gate.door.set()
    calls = coalescer(gate, limit=5000)
    answers = await asyncio.gather(*(calls.submit([n]) for n in range(3000)))
    assert answers == [[2 * n] for n in range(3000)]
    assert len(gate.batches) <= 5
