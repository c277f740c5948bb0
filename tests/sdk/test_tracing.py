"""What the SDK does with traces of the real OpenTelemetry, and without it."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import propagate
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span, format_span_id, format_trace_id
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from sdk.conftest import Clock
from sdk.running import CLAIM, grant, park
from sdk.scripted_service import Answer, ScriptedService, lease, message

import leasebeat
from leasebeat import AsyncClient, Client, Lease
from leasebeat._tracing import trace_headers

HEALTHY = Answer({"status": "ok"})
SENDER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(leasebeat.__file__).parents[1])}

WORKER = """
import json, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from leasebeat import Client, Worker

exporter = InMemorySpanExporter()
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))

def handle(message, context):
    with Client(sys.argv[1]) as client:
        client.healthz()
    worker.stop()
    if message.body == "fail":
        raise OSError("disk full")

worker = Worker(sys.argv[1], "default", handle)
worker.run()
print(json.dumps([json.loads(span.to_json()) for span in exporter.get_finished_spans()]))
"""

WITHOUT = """
import sys
sys.modules["opentelemetry"] = None
from leasebeat import Client, Worker

def handle(message, context):
    worker.stop()

worker = Worker(sys.argv[1], "default", handle)
worker.run()
"""


@pytest.fixture
def span() -> Iterator[Span]:
    """A span of the caller, current while the test runs."""
    with TracerProvider().get_tracer("test").start_as_current_span("caller") as current:
        yield current


def traceparent(span: Span) -> str:
    context = span.get_span_context()
    return f"00-{format_trace_id(context.trace_id)}-{format_span_id(context.span_id)}-{context.trace_flags:02x}"


def run(program: str, service: ScriptedService) -> str:
    return subprocess.run(
        [sys.executable, "-c", program, service.url], check=True, capture_output=True, text=True, env=ENVIRONMENT, timeout=60
    ).stdout


def test_each_call_carries_the_callers_trace(service: ScriptedService, span: Span) -> None:
    service.on("GET", "/healthz", HEALTHY)

    async def call() -> None:
        async with AsyncClient(service.url) as client:
            await client.healthz()

    with Client(service.url) as client:
        client.healthz()
    asyncio.run(call())
    assert [request.headers["traceparent"] for request in service.asked("/healthz")] == [traceparent(span)] * 2


class Slow(TraceContextTextMapPropagator):
    """Takes 2 s for each call, as whoever imports much for the first one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def inject(self, *_arguments: object, **_named: object) -> None:
        self._clock.now += 2


@pytest.fixture
def _slowly_traced(clock: Clock) -> Iterator[None]:
    propagator = propagate.get_global_textmap()
    propagate.set_global_textmap(Slow(clock))
    yield
    propagate.set_global_textmap(propagator)


@pytest.mark.usefixtures("_slowly_traced")
def test_what_a_trace_takes_is_not_taken_from_a_lease(service: ScriptedService) -> None:
    service.on("POST", CLAIM, Answer({"leases": [lease(expires_in=3.0)]}))
    with Client(service.url) as client:
        (held,) = client.claim("default", worker_id="w")
    assert held.remaining() == 3

    async def claim() -> Lease:
        async with AsyncClient(service.url) as client:
            (held,) = await client.claim("default", worker_id="w")
            return held

    assert asyncio.run(claim()).remaining() == 3


def test_outside_of_a_trace_nothing_is_sent(service: ScriptedService) -> None:
    service.on("GET", "/healthz", HEALTHY)
    with Client(service.url) as client:
        client.healthz()
    assert "traceparent" not in service.asked("/healthz")[0].headers
    assert trace_headers() == {}


def test_a_sent_message_is_what_its_sender_made_it(service: ScriptedService, span: Span) -> None:
    """A send that is repeated by its key, maybe in another trace, must have the same body, or it is refused."""
    service.on("POST", "/queues/q/messages", Answer({"messages": [{"id": "1", "status": "pending", "duplicate": False}]}, 201))
    with Client(service.url) as client:
        client.send("q", 1)
        client.send("q", 1, headers=trace_headers())
    plain, traced = [request.body["messages"][0] for request in service.asked("/queues/q/messages")]
    assert plain == {"body": 1}
    assert traced == {"body": 1, "headers": {"traceparent": traceparent(span)}}


@pytest.mark.parametrize(("body", "settled", "status"), [("work", "/ack", "UNSET"), ("fail", "/nack", "ERROR")])
def test_a_handler_carries_on_its_senders_trace(body: str, settled: str, status: str, willing: ScriptedService) -> None:
    willing.on("POST", CLAIM, grant(lease(message=message(body=body, headers={"traceparent": SENDER}))), park)
    willing.on("GET", "/healthz", HEALTHY)
    (process,) = json.loads(run(WORKER, willing))
    trace_id, span_id = (process["context"][name].removeprefix("0x") for name in ("trace_id", "span_id"))
    assert (process["name"], process["kind"], process["status"]["status_code"]) == ("process default", "SpanKind.CONSUMER", status)
    assert (f"00-{trace_id}", process["parent_id"]) == (SENDER[:35], f"0x{SENDER[36:52]}")
    assert process["attributes"]["messaging.message.id"] == "42"
    for path in ("/healthz", settled):
        assert willing.asked(path)[0].headers["traceparent"] == f"00-{trace_id}-{span_id}-01"


def test_a_message_without_a_trace_begins_one(willing: ScriptedService) -> None:
    willing.on("GET", "/healthz", HEALTHY)
    (process,) = json.loads(run(WORKER, willing))
    assert process["parent_id"] is None


def test_without_the_package_everything_works_and_no_trace_is_sent(willing: ScriptedService) -> None:
    willing.on("POST", CLAIM, grant(lease(message=message(headers={"traceparent": SENDER}))), park)
    run(WITHOUT, willing)
    assert [request.headers.get("traceparent") for request in willing.asked("/ack")] == [None]
