"""Claims parked by the thousand, and messages that wake them one by one."""

import asyncio
import random
import time
import uuid

import uvloop

from bench.clients import moments
from bench.http import Connection

_WAIT_S = 50
_AT_ONCE = 100
"""Connections that are opened at the same time: more would overflow what the service's socket keeps waiting."""


def park(url: str, queue: str, name: str, count: int, seconds: float) -> list[float]:
    """Keep so many claims parked, and return how long each message took from its send to here.

    Each is of a worker of its own, and has a name of its own, as the SDK's workers give theirs.
    """
    return uvloop.run(_park(url, queue, name, count, seconds))


def feed(url: str, queue: str, rate: float, seconds: float) -> int:
    """Send one message at a time, each with the moment of its sending, and return how many."""
    return uvloop.run(_feed(url, queue, rate, seconds))


async def _park(url: str, queue: str, name: str, count: int, seconds: float) -> list[float]:
    opening = asyncio.Semaphore(_AT_ONCE)
    took: list[float] = []

    async def worker(number: int) -> None:
        async with opening:
            connection = await Connection.open(url)
        try:
            wait = random.uniform(1, _WAIT_S)  # the first time, so that not all come back at once
            while True:
                wanted = {"worker_id": f"{name}-{number}", "claim_id": uuid.uuid4().hex, "wait": wait, "visibility_timeout": 3600}
                wait = _WAIT_S
                answer = await connection.post(f"/queues/{queue}/leases", wanted)
                came = time.monotonic()  # one clock for all processes of a machine
                took.extend(came - lease["message"]["body"] for lease in answer["leases"])
        finally:
            connection.close()

    workers = [asyncio.create_task(worker(number)) for number in range(count)]
    done, _ = await asyncio.wait(workers, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for each in workers:
        each.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    for each in done:
        each.result()  # none ends by itself, unless it fails
    return took


async def _feed(url: str, queue: str, rate: float, seconds: float) -> int:
    connection = await Connection.open(url)
    sent = 0
    async for _ in moments(rate, seconds):
        await connection.post(f"/queues/{queue}/messages", {"messages": [{"body": time.monotonic()}]})
        sent += 1
    connection.close()
    return sent
