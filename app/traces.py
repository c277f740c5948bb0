"""Spans of the hot calls.

FastAPI's own instrumentation costs a call about as much when it is not sampled as when it is: a third of a beat. So hot calls
go past it, and this asks the sampler before it does anything else. The spans say what FastAPI's do.
"""

from collections.abc import Awaitable
from http import HTTPStatus

from opentelemetry.context import Context
from opentelemetry.propagate import extract, get_global_textmap
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import Span, SpanKind, StatusCode, use_span
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class TraceIds(RandomIdGenerator):
    """Random ids, of which the next is known beforehand: so the sampler can be asked about a trace that may never begin."""

    def __init__(self) -> None:
        self.next = super().generate_trace_id()

    def generate_trace_id(self) -> int:
        drawn, self.next = self.next, super().generate_trace_id()
        return drawn


class HotSpans:
    """Give each hot call that the sampler takes a span: a child of the client's, if it sent one."""

    def __init__(self, app: ASGIApp, traces: TracerProvider, ids: TraceIds) -> None:
        self._app = app
        self._tracer = traces.get_tracer("leasebeat")
        self._sampler = traces.sampler
        self._ids = ids
        self._parent_headers = frozenset(name.lower().encode() for name in get_global_textmap().fields)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if not self._parent_headers.isdisjoint([name for name, _ in scope["headers"]]):
            return self._traced(extract(Headers(scope=scope)), scope, receive, send)
        root = Context()
        if self._sampler.should_sample(root, self._ids.next, "POST", SpanKind.SERVER).decision is not Decision.DROP:
            return self._traced(root, scope, receive, send)
        self._ids.generate_trace_id()  # that one is used up: the next call has a chance of its own
        return self._app(scope, receive, send)

    async def _traced(self, parent: Context, scope: Scope, receive: Receive, send: Send) -> None:
        span = self._tracer.start_span("POST", parent, SpanKind.SERVER)

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
