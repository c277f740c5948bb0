"""Messages whose first worker falls silent, and how long after the deadline a parked claim has each again."""

import asyncio
import random
import time
import uuid
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

import uvloop

from bench.clients import moments
from bench.http import Connection

_PATIENCE_S = 20
"""How long after the last message was sent all must have come back."""
_SHORTEST_S, _LONGEST_S = 1.0, 3.0


class Delivery(NamedTuple):
    """One lease of a message: which attempt it is, when it came, and when it runs out."""

    attempt: int
    came: float
    expires: float


@dataclass(slots=True)
class Redelivered:
    """How many messages were sent, and what was delivered of each, in the order of their first deliveries."""

    sent: int = 0
    deliveries: defaultdict[str, list[Delivery]] = field(default_factory=lambda: defaultdict(list))

    @property
    def after(self) -> list[float]:
        """Seconds from expiry to redelivery, of those that came again as they were to."""
        return [again.came - first.expires for first, again, *_ in map(sorted, self._again) if _is_due(first, again)]

    @property
    def lost(self) -> int:
        return self.sent - len(self._again)

    @property
    def twice(self) -> int:
        """How many came again while they were leased, or not as the second attempt, or more than once."""
        return sum(bool(more) or not _is_due(first, again) for first, again, *more in map(sorted, self._again))

    @property
    def _again(self) -> list[list[Delivery]]:
        return [each for each in self.deliveries.values() if len(each) > 1]


def _is_due(first: Delivery, again: Delivery) -> bool:
    return (first.attempt, again.attempt) == (1, 2) and again.came >= first.expires


def run(url: str, queue: str, rate: float, seconds: float, parked: int) -> Redelivered:
    """Send messages at a rate while so many claims are parked. Whoever has one first falls silent; who has it next acks it.

    The moments compared are the database's (the deadline) and this process's (the answer): they share this machine's clock.
    """
    return uvloop.run(_run(url, queue, rate, seconds, parked))


async def _run(url: str, queue: str, rate: float, seconds: float, parked: int) -> Redelivered:
    found = Redelivered()
    over = asyncio.Event()

    async def worker(number: int) -> None:
        connection = await Connection.open(url)
        wanted = {"worker_id": f"worker-{number}", "wait": 1}
        while not over.is_set():
            wanted |= {"claim_id": uuid.uuid4().hex, "visibility_timeout": random.uniform(_SHORTEST_S, _LONGEST_S)}
            answer = await connection.post(f"/queues/{queue}/leases", wanted)
            came = time.time()
            for lease in answer["leases"]:
                expires = datetime.fromisoformat(lease["expires_at"]).timestamp()
                found.deliveries[lease["message"]["id"]].append(Delivery(lease["attempt"], came, expires))
                if lease["attempt"] > 1:
                    acked = await connection.post("/ack", {"leases": [{"receipt": lease["receipt"]}]})
                    assert acked["results"][0]["status"] == "acked", acked
        connection.close()

    async def send_all() -> None:
        connection = await Connection.open(url)
        async for _ in moments(rate, seconds):
            await connection.post(f"/queues/{queue}/messages", {"messages": [{"body": 0}]})
            found.sent += 1
        last = time.monotonic() + _PATIENCE_S
        while found.lost and time.monotonic() < last:  # noqa: ASYNC110 - a last look suffices
            await asyncio.sleep(0.05)
        await asyncio.sleep(_LONGEST_S + 1)  # for whatever might come again
        over.set()
        connection.close()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(send_all())
        for number in range(parked):
            tasks.create_task(worker(number))
    return found
