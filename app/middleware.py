"""Pure ASGI middleware: it must not hide a client's disconnect from the routes, nor cost more than it brings (scar 21)."""

import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADER = b"x-request-id"
_ACCEPTABLE = re.compile(rb"[A-Za-z0-9._-]{1,64}")


def request_id_of(scope: Scope) -> str:
    """Return the request's id: the client's own if it sent a sane one, else a new one, made when first asked for."""
    if "leasebeat.request_id" not in scope:
        given = next((value for name, value in scope["headers"] if name == _HEADER), b"")
        scope["leasebeat.request_id"] = given.decode() if _ACCEPTABLE.fullmatch(given) else uuid.uuid4().hex
    return str(scope["leasebeat.request_id"])


class RequestIds:
    """Give every answer an `X-Request-Id`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault(_HEADER.decode(), request_id_of(scope))
            await send(message)

        await self._app(scope, receive, send_named)


class BodyLimit:
    """Refuse a body that is too large as a problem like any other: it is found out where the body is read, inside the error handlers."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "")
        read = 0

        async def receive_limited() -> Message:
            nonlocal read
            if announced.isdecimal() and int(announced) > self._max_bytes:
                raise self._refusal()
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._max_bytes:
                raise self._refusal()
            return message

        await self._app(scope, receive_limited, send)

    def _refusal(self) -> HTTPException:
        return HTTPException(413, f"A body may be at most {self._max_bytes} bytes long.")
