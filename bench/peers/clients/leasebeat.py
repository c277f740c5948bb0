"""Leasebeat, by plain HTTP."""

import sys
from collections.abc import Sequence
from functools import cache

import orjson

from bench.http import JSON, Connections, post

from .turns import Queue, serve


class Leasebeat(Queue[str]):
    async def open(self) -> None:
        self._calls = Connections(sys.argv[1:])

    async def send(self, size: int) -> None:
        await self._calls.call(_send(size))

    async def take(self, size: int) -> Sequence[str]:
        answer = await self._calls.call(_claim(size))
        return [lease["receipt"] for lease in orjson.loads(answer)["leases"]]

    async def keep(self, taken: Sequence[str]) -> None:
        answer = await self._calls.call(post("/beat", _leases(taken), JSON))
        assert answer.count(b'"extended"') == len(taken), answer

    async def finish(self, taken: Sequence[str]) -> None:
        answer = await self._calls.call(post("/ack", _leases(taken), JSON))
        assert answer.count(b'"acked"') == len(taken), answer


@cache
def _send(size: int) -> bytes:
    return post("/queues/bench/messages", orjson.dumps({"messages": [{"body": {"n": 1}}] * size}), JSON)


@cache
def _claim(size: int) -> bytes:
    return post("/queues/bench/leases", orjson.dumps({"worker_id": "bench", "max_messages": size}), JSON)


def _leases(receipts: Sequence[str]) -> bytes:
    return orjson.dumps({"leases": [{"receipt": receipt} for receipt in receipts]})


if __name__ == "__main__":
    serve(Leasebeat())
