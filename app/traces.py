"""Spans of the hot calls.

FastAPI's own instrumentation costs a call about as much when it is not sampled as when it is: a third of a beat. So it leaves hot calls
alone, and this asks the sampler before it does anything else. The spans say what FastAPI's do.
"""

from http import HTTPStatus

from opentelemetry.propagate import extract
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, use_span
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HOT_PATHS = frozenset({"/beat", "/ack", "/nack", "/release"})
_HOT_ENDS = ("/messages", "/leases")


def is_hot(scope: Scope) -> bool:
    """Tell whether a request is a call that workers and senders make all the time."""
    path: str = scope["path"]
    return scope.get("method") == "POST" and (path in _HOT_PATHS or path.endswith(_HOT_ENDS))


class HotSpans:
    """Give each hot call that the sampler takes a span: a child of the client's, if it sent one."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_hot(scope):
            await self._app(scope, receive, send)
            return
        span = self._tracer.start_span("POST", extract(Headers(scope=scope)), SpanKind.SERVER)
        if not span.is_recording():
            await self._app(scope, receive, send)
            return

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                _note_status(span, message["status"])
            await send(message)

        with use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            _note_request(span, scope)
            try:
                await self._app(scope, receive, send_noted)
            except Exception as error:
                _note_failure(span, type(error).__qualname__)
                raise
            finally:
                _note_route(span, scope)


def _note_request(span: Span, scope: Scope) -> None:
    span.set_attributes(
        {
            "http.request.method": "POST",
            "url.scheme": scope["scheme"],
            "url.path": scope["path"],
            "network.protocol.version": scope["http_version"],
        }
    )


def _note_status(span: Span, status: int) -> None:
    span.set_attribute("http.response.status_code", status)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        _note_failure(span, str(status))


def _note_failure(span: Span, kind: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(StatusCode.ERROR)


def _note_route(span: Span, scope: Scope) -> None:
    if path := getattr(scope.get("route"), "path_format", None):
        span.set_attribute("http.route", path)
        span.update_name(f"POST {path}")
