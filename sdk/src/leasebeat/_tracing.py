"""OpenTelemetry, where it is installed (`leasebeat[otel]`). Without it everything here does nothing.

Where traces cross the service, they follow OpenTelemetry's conventions for messaging: the context that a message was made in travels
in the message's own `headers`, and is the parent of the span in which a worker processes it. Those headers are the sender's, and a
part of what a repeated send is compared by, so nothing is put there that the sender has not: see `trace_headers`.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from leasebeat._messages import LeasedMessage
from leasebeat._once_used import OnceUsed
from leasebeat._version import __version__

if TYPE_CHECKING:
    from opentelemetry import context, propagate, trace
else:
    context, propagate, trace = (OnceUsed(f"opentelemetry.{name}") for name in ("context", "propagate", "trace"))

try:
    _installed = find_spec("opentelemetry.propagate") is not None
except ImportError:
    _installed = False

Fail = Callable[[BaseException], None]
"""Notes on a span what went wrong in it."""


def trace_headers() -> dict[str, str]:
    """The trace that this code runs in, as headers: a `traceparent`, and whatever else the configured propagator adds.

    The SDK sends them with each call. Give them to a message too, and its handler carries on the same trace:
    `client.send("default", body, headers=trace_headers())`. Empty without OpenTelemetry, or outside of a trace.
    """
    headers: dict[str, str] = {}
    if _installed:
        propagate.inject(headers)
    return headers


@contextmanager
def processing(message: LeasedMessage) -> Generator[Fail, None, None]:
    """A span around the processing of a message and its settlement, whose parent is the trace in the message's headers."""
    if not _installed:
        yield _note_nothing
        return
    tracer = trace.get_tracer("leasebeat", __version__)
    attributes = {
        "messaging.system": "leasebeat",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": message.queue,
        "messaging.message.id": message.id,
    }
    parent = propagate.extract(message.headers)
    with tracer.start_as_current_span(
        f"process {message.queue}", context=parent, kind=trace.SpanKind.CONSUMER, attributes=attributes
    ) as span:

        def fail(error: BaseException) -> None:
            span.record_exception(error)
            span.set_status(trace.StatusCode.ERROR, type(error).__name__)

        yield fail


@contextmanager
def continuing(headers: dict[str, str]) -> Generator[None, None, None]:
    """Carry on a trace that came from another process as `trace_headers`."""
    if not (_installed and headers):
        yield
        return
    token = context.attach(propagate.extract(headers))
    try:
        yield
    finally:
        context.detach(token)


def _note_nothing(_error: BaseException) -> None:
    """Without OpenTelemetry there is no span."""
