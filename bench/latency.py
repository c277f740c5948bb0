"""How long single calls take, as one client sees it."""

import time
from collections.abc import Sequence

import uvloop

from bench.http import Connection
from bench.service import QUEUE

_BATCH = 10


def p99(seconds: Sequence[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.99)]


def claims_in_turn(urls: Sequence[str], seconds: float, keys: int) -> list[list[float]]:
    """Send, claim and ack ten messages at a time at one service after the other, and return how long the claims of each took.

    In turn, so that whatever else disturbs them disturbs each as much. With `keys`, the messages are sent under so many fairness keys,
    one after another, so that as many stay in use.
    """
    return uvloop.run(_claims_in_turn(urls, seconds, keys))


async def _claims_in_turn(urls: Sequence[str], seconds: float, keys: int) -> list[list[float]]:
    connections = [await Connection.open(url) for url in urls]
    took: list[list[float]] = [[] for _ in urls]
    until = time.monotonic() + seconds
    sent = 0
    while time.monotonic() < until:
        names = [f"key-{number % keys:05}" if keys else "" for number in range(sent, sent + _BATCH)]
        sent += _BATCH
        for connection, times in zip(connections, took, strict=True):
            times.append(await _claim(connection, names))
    for connection in connections:
        connection.close()
    return took


async def _claim(connection: Connection, keys: Sequence[str]) -> float:
    await connection.post(f"/queues/{QUEUE}/messages", {"messages": [{"body": 0, "fairness_key": key} for key in keys]})
    started = time.perf_counter()
    granted = await connection.post(f"/queues/{QUEUE}/leases", {"worker_id": "bench", "max_messages": len(keys)})
    took = time.perf_counter() - started
    held = [{"receipt": lease["receipt"]} for lease in granted["leases"]]
    assert len(held) == len(keys), f"{len(held)} leases came"
    await connection.post("/ack", {"leases": held})
    return took
