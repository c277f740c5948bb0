"""Operators' calls that go through a queue's messages in batches, however many there are, and end in time all the same."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

BATCH_ROWS = 1000
PATIENCE_S = 5.0
"""Half of what the most impatient clients and proxies wait for an answer, the SDK among them."""


@dataclass(frozen=True, slots=True)
class Done:
    """How many messages a call has changed, and whether time ran out before it was through."""

    messages: int
    more: bool


async def in_time(batches: AsyncGenerator[int], patience: float = PATIENCE_S) -> Done:
    """Carry out batches, each of which tells how many messages it changed, until there are no more or time runs out."""
    end = time.monotonic() + patience
    messages = 0
    async with aclosing(batches):
        async for changed in batches:
            messages += changed
            if time.monotonic() >= end:
                return Done(messages, more=True)
    return Done(messages, more=False)
