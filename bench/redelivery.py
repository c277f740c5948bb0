"""Messages whose first worker falls silent, and how long after the deadline a parked claim has each again."""

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

import uvloop

from bench.clients import moments
from bench.http import Connection

_PATIENCE_S = 20
"""How long after the last message was sent all must have come back."""
_SHORTEST_S, _LONGEST_S = 1.0, 3.0


@dataclass(slots=True)
class Redelivered:
    """Seconds from expiry to redelivery, and how often each message was redelivered."""

    after: list[float] = field(default_factory=list)
    times: Counter[str] = field(default_factory=Counter)
    sent: int = 0

    @property
    def lost(self) -> int:
        return self.sent - len(self.times)

    @property
    def twice(self) -> int:
        return sum(1 for times in self.times.values() if times > 1)


def run(url: str, queue: str, rate: float, seconds: float, parked: int) -> Redelivered:
    """Send messages at a rate while so many claims are parked. Whoever has one first falls silent; who has it next acks it.

    The moments compared are the database's (the deadline) and this process's (the answer): they share this machine's clock.
    """
    return uvloop.run(_run(url, queue, rate, seconds, parked))


async def _run(url: str, queue: str, rate: float, seconds: float, parked: int) -> Redelivered:
    found = Redelivered()
    expires: dict[str, float] = {}
    over = asyncio.Event()

    async def worker(number: int) -> None:
        connection = await Connection.open(url)
        wanted = {"worker_id": f"worker-{number}", "wait": 1}
        while not over.is_set():
            length = random.uniform(_SHORTEST_S, _LONGEST_S)
            answer = await connection.post(f"/queues/{queue}/leases", wanted | {"visibility_timeout": length})
            came = time.time()
            for lease in answer["leases"]:
                message = lease["message"]["id"]
                if lease["attempt"] == 1:
                    expires[message] = datetime.fromisoformat(lease["expires_at"]).timestamp()
                    continue
                found.after.append(came - expires[message])
                found.times[message] += 1
                acked = await connection.post("/ack", {"leases": [{"receipt": lease["receipt"]}]})
                assert acked["results"][0]["status"] == "acked", acked
        connection.close()

    async def send_all() -> None:
        connection = await Connection.open(url)
        async for _ in moments(rate, seconds):
            await connection.post(f"/queues/{queue}/messages", {"messages": [{"body": 0}]})
            found.sent += 1
        last = time.monotonic() + _PATIENCE_S
        while len(found.times) < found.sent and time.monotonic() < last:  # noqa: ASYNC110 - a last look suffices
            await asyncio.sleep(0.05)
        await asyncio.sleep(_LONGEST_S + 1)  # for whatever might come again
        over.set()
        connection.close()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(send_all())
        for number in range(parked):
            tasks.create_task(worker(number))
    return found
