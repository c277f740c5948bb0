"""Pure ASGI middleware: it must not hide a client's disconnect from the routes, nor cost more than it brings (scar 21)."""

import itertools
import re
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADER = b"x-request-id"
_ACCEPTABLE = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_process = uuid.uuid4().hex[:20]
_numbers = itertools.count(1)


def request_id_of(scope: Scope) -> str:
    """Return the request's id: the client's own if it sent a sane one, else a new one, made when first asked for.

    New ones count up within a process: 12 digits behind 20 that are the process's own.
    """
    if "leasebeat.request_id" not in scope:
        given = next((value for name, value in scope["headers"] if name == _HEADER), b"")
        scope["leasebeat.request_id"] = given.decode() if _ACCEPTABLE.fullmatch(given) else f"{_process}{next(_numbers):012x}"
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
                message["headers"] = [*message.get("headers", ()), (_HEADER, request_id_of(scope).encode())]
            await send(message)

        await self._app(scope, receive, send_named)
