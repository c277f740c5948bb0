"""Bar 5: beats with telemetry on (metrics exported and scraped, traces sampled at 1 %), as a share of those without."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from harness.server import Server

from bench.bars import Bar, Scale, in_turn, ratio
from bench.beats import Beats
from bench.world import serving, world

_SCRAPE_S = 1.0


def measure(scale: Scale) -> list[Bar]:
    with ExitStack() as stack:
        bench = stack.enter_context(world())
        collector = stack.enter_context(_collector())
        without = Beats(bench, stack.enter_context(serving(bench.database())))
        observed = stack.enter_context(serving(bench.database(), environment=_telemetry(collector)))
        with_it = Beats(bench, observed)

        def scraped() -> float:
            with _scraped(observed):
                return with_it.rate(1)

        pairs = in_turn(scale.windows, scraped, lambda: without.rate(1))
        with_it.check()
        without.check()
        collector.wait_for("/v1/metrics", "/v1/traces")
    return [ratio(5, "beat with telemetry / without", pairs, 0.90, note=f"{pairs[-1][0]:.0f} of {pairs[-1][1]:.0f} in the last round")]


class _Collector(ThreadingHTTPServer):
    """Takes what is exported, and counts it by path."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Export)
        self.got: Counter[str] = Counter()

    def wait_for(self, *paths: str) -> None:
        """Make sure that telemetry was on: something comes of each kind."""
        until = time.monotonic() + 15
        while any(not self.got[path] for path in paths):
            assert time.monotonic() < until, f"of {paths}, only {list(self.got)} came"
            time.sleep(0.1)


class _Export(BaseHTTPRequestHandler):
    server: _Collector

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got[self.path] += 1
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


@contextmanager
def _collector() -> Iterator[_Collector]:
    collector = _Collector()
    thread = threading.Thread(target=collector.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        collector.shutdown()
        thread.join()
        collector.server_close()


def _telemetry(collector: _Collector) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0.01",
        "OTEL_METRIC_EXPORT_INTERVAL": "2000",
        "OTEL_BSP_SCHEDULE_DELAY": "1000",
    }


@contextmanager
def _scraped(server: Server) -> Iterator[None]:
    """Scrape the metrics of a server now and throughout, as Prometheus does, only more often."""
    over = threading.Event()

    def scrape() -> None:
        while not over.is_set():
            server.api.client.get("/metrics").raise_for_status()
            over.wait(_SCRAPE_S)

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
