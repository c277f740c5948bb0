"""Traces and pushed metrics go out when the standard variables ask for them, and only then."""

import gzip
import os
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest
from harness.loopback import LoopbackServer, QuietHandler
from harness.metrics import samples
from harness.server import Server
from harness.wait import until
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status


class Collector(LoopbackServer):
    """A real OTLP endpoint on loopback that keeps what it gets."""

    def __init__(self) -> None:
        self.received: list[tuple[str, bytes]] = []
        received = self.received

        class Handler(QuietHandler):
            def do_POST(self) -> None:  # noqa: N802 - named by http.server
                body = self.rfile.read(int(self.headers["content-length"]))
                received.append((self.path, gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body))
                self.send_response(200)
                self.end_headers()

        super().__init__(Handler)

    def spans(self) -> list[Span]:
        exports = [ExportTraceServiceRequest.FromString(body) for path, body in list(self.received) if path == "/v1/traces"]
        return [span for export in exports for each in export.resource_spans for scope in each.scope_spans for span in scope.spans]

    def names(self) -> set[str]:
        return {span.name for span in self.spans()}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


_TRACE = "4bf92f3577b34da6a3ce929d0e0e47{:02x}"
_PARENT_SPAN = "00f067aa0ba902b7"


def tracing(collector: Collector, sampler: str | None = None, ratio: float | None = None) -> dict[str, str]:
    """Ask for traces, in the words of the standard variables."""
    asked = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_METRIC_EXPORT_INTERVAL": "100"}
    if sampler:
        asked["OTEL_TRACES_SAMPLER"] = sampler
    if ratio is not None:
        asked["OTEL_TRACES_SAMPLER_ARG"] = str(ratio)
    return asked


def ack_of_nothing(server: Server, traceparent: str | None = None) -> None:
    headers = {"traceparent": traceparent} if traceparent else {}
    assert server.api.client.post("/ack", json={"leases": [{"receipt": "none"}]}, headers=headers).status_code == 200


def use(server: Server) -> None:
    server.api.send("default", "work")
    receipt = server.api.claim_one("default")["receipt"]
    server.api.beat(receipt)
    server.api.ack(receipt)


def test_calls_are_traced_if_an_endpoint_is_named(database_url: str, collector: Collector) -> None:
    with Server(database_url, environment=tracing(collector)) as server:
        use(server)
        until(lambda: {"POST /beat", "POST /ack", "POST /queues/{queue}/leases", "POST /queues/{queue}/messages"} <= collector.names())
        until(lambda: any(path == "/v1/metrics" and b"leasebeat.beats" in body for path, body in collector.received))
        server.api.client.get("/healthz")
        receipts_in_traces = [body for path, body in collector.received if path == "/v1/traces" and b"receipt" in body]
        assert receipts_in_traces == []
        assert server.stop() == 0
    assert not any("healthz" in name or "readyz" in name for name in collector.names())


@pytest.mark.parametrize("off", [{}, {"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}])
def test_nothing_goes_out_unless_asked_for(database_url: str, collector: Collector, off: dict[str, str]) -> None:
    asked = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url} if off else {}
    with Server(database_url, environment={**asked, **off, "OTEL_BSP_SCHEDULE_DELAY": "20"}) as server:
        use(server)
        assert server.stop() == 0
    assert collector.received == []


def test_an_endpoint_that_does_not_answer_slows_no_call(database_url: str) -> None:
    asked = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_BSP_SCHEDULE_DELAY": "20", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    with Server(database_url, environment=asked) as server:
        for _ in range(5):
            use(server)
        assert server.ready
    assert os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") is None


def test_the_span_of_a_hot_call_tells_what_it_was_and_how_it_went(database_url: str, collector: Collector) -> None:
    with Server(database_url, environment=tracing(collector)) as server:
        assert server.api.client.post("/queues/nope/messages", json={"messages": [{"body": 1}]}).status_code == 404
        assert server.stop() == 0
    (span,) = [each for each in collector.spans() if each.name == "POST /queues/{queue}/messages"]
    attributes = {each.key: each.value.string_value or each.value.int_value for each in span.attributes}
    assert attributes == {
        "http.request.method": "POST",
        "http.route": "/queues/{queue}/messages",
        "http.response.status_code": 404,
        "url.scheme": "http",
        "url.path": "/queues/nope/messages",
        "network.protocol.version": "1.1",
    }
    assert span.kind == Span.SPAN_KIND_SERVER
    assert span.status.code == Status.STATUS_CODE_UNSET
    assert 0 < span.end_time_unix_nano - span.start_time_unix_nano < 60e9


def test_the_span_of_a_hot_call_that_the_service_could_not_carry_out_is_an_error(collector: Collector) -> None:
    with ExitStack() as stack:
        server = Server("postgresql://127.0.0.1:1/none", environment=tracing(collector))
        stack.push(server)  # it never becomes ready
        until(lambda: answers(server))
        assert server.api.client.post("/beat", json={"leases": [{"receipt": "A" * 44}]}).status_code == 503
        until(lambda: "POST /beat" in collector.names())
    (span,) = [each for each in collector.spans() if each.name == "POST /beat"]
    assert span.status.code == Status.STATUS_CODE_ERROR
    assert {each.key: each.value.string_value for each in span.attributes}["error.type"] == "503"


def answers(server: Server) -> bool:
    try:
        return server.api.client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize(
    ("sampler", "ratio", "takes"),
    [
        (None, None, {"none", "sampled"}),
        ("always_on", None, {"none", "sampled", "unsampled"}),
        ("always_off", None, set()),
        ("traceidratio", 1.0, {"none", "sampled", "unsampled"}),
        ("traceidratio", 0.0, set()),
        ("parentbased_always_off", None, {"sampled"}),
        ("parentbased_traceidratio", 1.0, {"none", "sampled"}),
        ("parentbased_traceidratio", 0.0, {"sampled"}),
    ],
)
def test_the_sampler_that_is_asked_for_decides(
    database_url: str, collector: Collector, sampler: str | None, ratio: float | None, takes: set[str]
) -> None:
    """Of 20 calls without a parent, 20 with one that is sampled and 20 with one that is not, those that `takes` names have spans."""
    with Server(database_url, environment=tracing(collector, sampler, ratio)) as server:
        for number in range(20):
            ack_of_nothing(server)
            ack_of_nothing(server, f"00-{_TRACE.format(number)}-{_PARENT_SPAN}-01")
            ack_of_nothing(server, f"00-{_TRACE.format(100 + number)}-{_PARENT_SPAN}-00")
        assert server.stop() == 0
    spans = [span for span in collector.spans() if span.name == "POST /ack"]
    of_sampled = {_TRACE.format(number) for number in range(20)} if "sampled" in takes else set()
    of_unsampled = {_TRACE.format(100 + number) for number in range(20)} if "unsampled" in takes else set()
    children = [span for span in spans if span.parent_span_id]
    assert len(spans) - len(children) == (20 if "none" in takes else 0)
    assert len(children) == len(of_sampled | of_unsampled)
    assert {span.trace_id.hex() for span in children} == of_sampled | of_unsampled
    assert {span.parent_span_id.hex() for span in children} <= {_PARENT_SPAN}


@pytest.mark.parametrize("sampler", ["traceidratio", "parentbased_traceidratio"])
def test_the_share_of_calls_that_is_asked_for_is_traced(database_url: str, collector: Collector, sampler: str) -> None:
    calls, ratio = 2000, 0.25
    with Server(database_url, environment=tracing(collector, sampler, ratio)) as server:
        for _ in range(calls):
            ack_of_nothing(server)
        assert server.stop() == 0
    traced = sum(span.name == "POST /ack" for span in collector.spans())
    # Six standard deviations: once in 500 million runs.
    assert abs(traced - calls * ratio) < 6 * (calls * ratio * (1 - ratio)) ** 0.5


@pytest.mark.parametrize("sampler", ["always_on", "always_off", None])
def test_metrics_of_requests_do_not_depend_on_traces(database_url: str, collector: Collector, sampler: str | None) -> None:
    environment = tracing(collector, sampler) if sampler else {}
    with Server(database_url, environment=environment) as server:
        use(server)
        server.api.client.get("/queues")
        server.api.client.get("/beat")
        counts = samples(server.api, "http_server_request_duration_seconds_count")
    assert {(dict(labels)["http_route"], dict(labels)["http_response_status_code"]): n for labels, n in counts.items()} == {
        ("/queues", "200"): 1,
        ("/beat", "405"): 1,
    }
