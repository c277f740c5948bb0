"""NATS JetStream: a work queue kept in files, each write synced; every publish and every ack waits for the server's answer."""

import asyncio
import sys
from collections.abc import Sequence

import nats
from nats.aio.msg import Msg
from nats.errors import TimeoutError as NothingThereError
from nats.js.api import ConsumerConfig, RetentionPolicy, StreamConfig
from nats.js.client import JetStreamContext

from .turns import Queue, serve

_BODY = b'{"n": 1}'


class JetStream(Queue[Msg]):
    async def open(self) -> None:
        self._stream = (await nats.connect(sys.argv[1])).jetstream()
        await self._stream.add_stream(StreamConfig(name="bench", subjects=["bench"], retention=RetentionPolicy.WORK_QUEUE))
        self._free: list[JetStreamContext.PullSubscription] = []

    async def send(self, size: int) -> None:
        await asyncio.gather(*(self._stream.publish("bench", _BODY) for _ in range(size)))

    async def take(self, size: int) -> Sequence[Msg]:
        taker = self._free.pop() if self._free else await self._subscribe()
        try:
            return await taker.fetch(size, timeout=1)
        except NothingThereError:
            return []
        finally:
            self._free.append(taker)

    async def keep(self, taken: Sequence[Msg]) -> None:
        for each in taken:
            await each.in_progress()

    async def finish(self, taken: Sequence[Msg]) -> None:
        await asyncio.gather(*(each.ack_sync() for each in taken))

    async def _subscribe(self) -> JetStreamContext.PullSubscription:
        return await self._stream.pull_subscribe("bench", "bench", config=ConsumerConfig(ack_wait=300, max_ack_pending=100_000))


if __name__ == "__main__":
    serve(JetStream())
