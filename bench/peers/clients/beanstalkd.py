"""beanstalkd, by its protocol. It has no call for many; a job belongs to the connection that reserved it."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from .turns import Queue, serve


@dataclass
class Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def call(self, command: bytes, expect: bytes) -> list[bytes]:
        self.writer.write(command)
        words = (await self.reader.readline()).split()
        assert words[0] == expect, words
        return words


@dataclass
class Reserved:
    connection: Connection
    job: bytes


class Beanstalkd(Queue[Reserved]):
    async def open(self) -> None:
        self._free: list[Connection] = []

    async def send(self, size: int) -> None:
        assert size == 1
        connection = self._free.pop() if self._free else Connection(*await asyncio.open_connection("127.0.0.1", int(sys.argv[1])))
        await connection.call(b'put 0 0 300 8\r\n{"n": 1}\r\n', b"INSERTED")
        self._free.append(connection)

    async def take(self, size: int) -> Sequence[Reserved]:  # noqa: ARG002 - one at a time
        connection = self._free.pop()
        _, job, length = await connection.call(b"reserve\r\n", b"RESERVED")
        await connection.reader.readexactly(int(length) + 2)
        return [Reserved(connection, job)]

    async def keep(self, taken: Sequence[Reserved]) -> None:
        for each in taken:
            await each.connection.call(b"touch %s\r\n" % each.job, b"TOUCHED")

    async def finish(self, taken: Sequence[Reserved]) -> None:
        for each in taken:
            await each.connection.call(b"delete %s\r\n" % each.job, b"DELETED")
            self._free.append(each.connection)


if __name__ == "__main__":
    serve(Beanstalkd())
