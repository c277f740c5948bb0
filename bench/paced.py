"""Beats at a steady rate, as from a fleet of workers, with how long each took."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import uvloop

from bench.clients import Connection

_CALLERS = 16


@dataclass(frozen=True, slots=True)
class Beaten:
    """How long the beats took, in seconds each, and at what rate they were sent."""

    took: list[float]
    rate: float


def beats(url: str, receipts: Sequence[str], rate: float, seconds: float) -> Beaten:
    """Beat for one lease after another, one lease per request, `rate` times a second, or as often as the service can."""
    return uvloop.run(_beats(url, receipts, rate, seconds))


async def _beats(url: str, receipts: Sequence[str], rate: float, seconds: float) -> Beaten:
    took: list[float] = []
    started = time.perf_counter()

    async def caller(number: int) -> None:
        connection = await Connection.open(url)
        turns = range(number, int(rate * seconds), _CALLERS)
        for turn in turns:
            due = started + turn / rate
            if (early := due - time.perf_counter()) > 0:
                await asyncio.sleep(early)
            elif early < -seconds:
                break  # the service is far behind
            sent = time.perf_counter()
            answer = await connection.post("/beat", {"leases": [{"receipt": receipts[turn % len(receipts)]}]})
            took.append(time.perf_counter() - sent)
            assert answer["results"][0]["status"] in {"extended", "held"}, answer
        connection.close()

    await asyncio.gather(*map(caller, range(_CALLERS)))
    return Beaten(took, len(took) / (time.perf_counter() - started))
