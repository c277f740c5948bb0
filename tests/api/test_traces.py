"""Traces and pushed metrics go out when the standard variables ask for them, and only then."""

import gzip
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from harness.server import Server
from harness.wait import until
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """A real OTLP endpoint on loopback that keeps what it gets."""

    def __init__(self) -> None:
        self.received: list[tuple[str, bytes]] = []
        received = self.received

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                received.append((self.path, gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Keep the test's output clean."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def spans(self) -> set[str]:
        names = set()
        for path, body in list(self.received):
            if path == "/v1/traces":
                request = ExportTraceServiceRequest.FromString(body)
                names |= {span.name for each in request.resource_spans for scope in each.scope_spans for span in scope.spans}
        return names


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.http.shutdown()
    made.http.server_close()


def use(server: Server) -> None:
    server.api.send("default", "work")
    receipt = server.api.claim_one("default")["receipt"]
    server.api.beat(receipt)
    server.api.ack(receipt)


def test_calls_are_traced_if_an_endpoint_is_named(database_url: str, collector: Collector) -> None:
    asked = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_METRIC_EXPORT_INTERVAL": "100"}
    with Server(database_url, environment=asked) as server:
        use(server)
        until(lambda: {"POST /beat", "POST /ack", "POST /queues/{queue}/leases", "POST /queues/{queue}/messages"} <= collector.spans())
        until(lambda: any(path == "/v1/metrics" and b"leasebeat.beats" in body for path, body in collector.received))
        server.api.client.get("/healthz")
        receipts_in_traces = [body for path, body in collector.received if path == "/v1/traces" and b"receipt" in body]
        assert receipts_in_traces == []
        assert server.stop() == 0
    assert not any("healthz" in name or "readyz" in name for name in collector.spans())


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
