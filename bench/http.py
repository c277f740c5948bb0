"""HTTP over kept connections, with as little work as asyncio allows: a client must not be the limit, nor take the server's CPU.

The clients of bar 4 have it too, in an environment of their own: it imports nothing of the service.
"""

import asyncio
from typing import Any, Self, cast
from urllib.parse import urlsplit

import orjson

JSON = "Content-Type: application/json"
_TIMEOUT_S = 60


class Connection(asyncio.Protocol):
    """One connection, one call at a time. Any answer other than 2xx is an error."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[bytes] | None = None
        self._read = b""
        self.kept = True
        self._transport: asyncio.WriteTransport

    @classmethod
    async def open(cls, url: str) -> Self:
        server = urlsplit(url)
        assert server.hostname is not None
        assert server.port is not None
        _, connection = await asyncio.get_running_loop().create_connection(cls, server.hostname, server.port)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's own is no subclass of it

    def data_received(self, data: bytes) -> None:
        self._read = self._read + data if self._read else data
        head, end, body = self._read.partition(b"\r\n\r\n")
        if not end:
            return
        lower = head.lower()
        length = lower.partition(b"content-length: ")[2].partition(b"\r")[0]
        if len(body) < int(length):
            return
        self._read = b""
        self.kept = b"connection: close" not in lower
        assert self._answer is not None
        if self._answer.done():
            return  # it comes too late: nobody waits for it any more
        if head[9:10] == b"2":
            self._answer.set_result(body)
        else:
            self._answer.set_exception(RuntimeError(f"{head!r} {body!r}"))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionError("the server has closed the connection"))

    def call(self, request: bytes) -> asyncio.Future[bytes]:
        """Send a whole request, and return its answer's body."""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    async def post(self, path: str, body: object) -> Any:
        """Make one call of the service, in JSON."""
        async with asyncio.timeout(_TIMEOUT_S):
            return orjson.loads(await self.call(post(path, orjson.dumps(body), JSON)))

    def close(self) -> None:
        self._transport.close()


class Connections:
    """As many connections as there are calls at once, spread over the servers."""

    def __init__(self, urls: list[str]) -> None:
        self._urls = urls
        self._free: list[Connection] = []
        self._made = 0

    async def call(self, request: bytes) -> bytes:
        connection = self._free.pop() if self._free else await self._connect()
        answer = await connection.call(request)
        if connection.kept:
            self._free.append(connection)
        return answer

    async def _connect(self) -> Connection:
        url = self._urls[self._made % len(self._urls)]
        self._made += 1
        return await Connection.open(url)


def post(path: str, body: bytes, *headers: str) -> bytes:
    """Return a whole request."""
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body
