"""Whole cycles (send, claim, beat, ack) with many messages per call: over HTTP, and by the same statements straight on Postgres."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import asyncpg
import uvloop

from app.leases.floors import Floors, Taken
from app.store.ack import ACK
from app.store.beat import BEAT
from app.store.claim import CLAIMS
from app.store.database import HOT_SESSION
from app.store.pick import PICK_ANY
from app.store.send import SEND
from app.store.sending import NewMessage, columns_of
from bench.http import Connection
from bench.service import QUEUE

BATCH = 100
_LEVEL = ("", 0)
"""Of all that is sent here: no fairness key, no priority."""


@dataclass(frozen=True, slots=True)
class Cycles:
    """How many messages went all the way, in how many seconds, what CPU that took this client, and how long each call for leases took."""

    done: int
    seconds: float
    cpu: float
    claims: list[float]

    @property
    def rate(self) -> float:
        return self.done / self.seconds


def over_http(url: str, callers: int, seconds: float) -> Cycles:
    """Run cycles with as many callers, each on a connection of its own."""
    return uvloop.run(_many(callers, seconds, lambda number, claims: _http_cycles(url, f"bench-{number}", seconds, claims)))


def on_postgres(url: str, queue_id: int, callers: int, seconds: float) -> Cycles:
    """Run the statements of the service in the same order, each call one transaction."""
    return uvloop.run(_many(callers, seconds, lambda number, claims: _sql_cycles(url, queue_id, f"bench-{number}", seconds, claims)))


async def _many(callers: int, seconds: float, caller: Callable[[int, list[float]], Awaitable[int]]) -> Cycles:
    claims: list[float] = []
    started, cpu = time.monotonic(), time.process_time()
    async with asyncio.timeout(seconds + 60):
        done = await asyncio.gather(*(caller(number, claims) for number in range(callers)))
    return Cycles(sum(done), time.monotonic() - started, time.process_time() - cpu, claims)


async def _http_cycles(url: str, worker_id: str, seconds: float, claims: list[float]) -> int:
    connection = await Connection.open(url)
    messages = {"messages": [{"body": number} for number in range(BATCH)]}
    wanted = {"worker_id": worker_id, "max_messages": BATCH}
    done = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        await connection.post(f"/queues/{QUEUE}/messages", messages)
        asked = time.monotonic()
        granted = await connection.post(f"/queues/{QUEUE}/leases", wanted)
        claims.append(time.monotonic() - asked)
        held = {"leases": [{"receipt": lease["receipt"]} for lease in granted["leases"]]}
        if not held["leases"]:
            continue
        beaten = await connection.post("/beat", held)
        assert all(result["status"] == "extended" for result in beaten["results"]), beaten
        acked = await connection.post("/ack", held)
        assert all(result["status"] == "acked" for result in acked["results"]), acked
        done += len(acked["results"])
    connection.close()
    return done


async def _sql_cycles(url: str, queue_id: int, worker_id: str, seconds: float, claims: list[float]) -> int:
    sql = await asyncpg.connect(url, server_settings=HOT_SESSION)
    try:
        send, claim, beat, ack = [await sql.prepare(statement) for statement in (SEND, CLAIMS[PICK_ANY], BEAT, ACK)]
        sent = (0, [queue_id], [queue_id] * BATCH, *columns_of([_message(number) for number in range(BATCH)]))
        wanted: tuple[object, ...] = (0, queue_id, "", 0, False, [], [worker_id] * BATCH)
        floors = Floors()  # as the service's claims have them: else these would walk what those skip
        done = 0
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await send.fetch(*sent)
            asked = time.monotonic()
            granted = await claim.fetch(*wanted, *floors.stretches(), (), (), (), list(range(BATCH)))
            claims.append(time.monotonic() - asked)
            leases = [(row["id"], row["generation"]) for row in granted if row["id"] is not None]
            if not leases:
                continue
            floors.took([Taken(_LEVEL, len(leases), leases[-1][0])])
            ids, generations = [message_id for message_id, _ in leases], [generation for _, generation in leases]
            beaten = await beat.fetch(0, ids, generations, (), ())
            assert [row["status"] for row in beaten] == ["extended"] * len(leases), beaten
            acked = await ack.fetch(0, ids, generations, ())
            assert len(acked) == len(leases), "not every ack did its work"
            done += len(acked)
    finally:
        await sql.close()
    return done


def _message(number: int) -> NewMessage:
    """Return what the service makes of a message that has nothing but a body."""
    return NewMessage(
        body=str(number),
        headers=None,
        priority=0,
        delay=0.0,
        fairness_key="",
        work_type=None,
        task_id=None,
        max_attempts=None,
        dedup_key=None,
    )
