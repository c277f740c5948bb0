"""Calls that work in batches end in time."""

import asyncio
from collections.abc import AsyncGenerator

from app.store.batches import PATIENCE_S, Done, in_time
from leasebeat._client import DEFAULT_TIMEOUT_S


async def batches(*sizes: int, takes: float = 0.0, ended: list[str] | None = None) -> AsyncGenerator[int]:
    try:
        for size in sizes:
            await asyncio.sleep(takes)
            yield size
    finally:
        if ended is not None:
            ended.append("ended")


async def test_all_batches_are_added_up_while_there_is_time() -> None:
    assert await in_time(batches(1000, 1000, 7)) == Done(2007, more=False)
    assert await in_time(batches()) == Done(0, more=False)


async def test_a_call_whose_time_is_up_tells_what_it_did_and_that_there_is_more() -> None:
    ended: list[str] = []
    assert await in_time(batches(*[1000] * 1000, takes=0.02, ended=ended), patience=0.05) in [
        Done(count * 1000, more=True) for count in (1, 2, 3)
    ]
    assert ended == ["ended"], "no batch is begun after the answer"


def test_a_call_is_answered_before_the_sdk_stops_waiting() -> None:
    assert PATIENCE_S <= DEFAULT_TIMEOUT_S / 2
