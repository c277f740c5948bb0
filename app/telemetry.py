"""Telemetry: the one place that turns what the service counts into metrics, and asks for traces if the environment does.

Hot counters are plain numbers in the store, read when somebody scrapes: counting costs a hot call next to nothing. So FastAPI's metrics
of requests (`http.server.…`) tell of all calls but these and the probes, whether there are traces or not.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fastapi.telemetry import TelemetryConfig
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from app.store.figures import Figures
from app.store.models import STATUSES
from app.store.tally import Tally
from app.traces import HotSpans, TraceIds

_NAME = "leasebeat"
_QUIET_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
_LAG_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60)


@dataclass(frozen=True, slots=True)
class Observed:
    """What is observed when somebody scrapes."""

    tally: Tally
    figures: Figures
    parked_claims: Callable[[], int]
    timer_lag: Callable[[], float]


class Telemetry:
    """The providers of one process, with their exporters."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        readers: list[MetricReader] = [PrometheusMetricReader(registry=self.registry)]
        if _asked_for("METRICS"):
            # Not imported at every start: it takes Protobuf and an HTTP client along, and few ask for it.
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415 - see above

            readers.append(PeriodicExportingMetricReader(OTLPMetricExporter()))
        resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", _NAME)})
        lag = View(instrument_name="leasebeat.reclaim.lag", aggregation=ExplicitBucketHistogramAggregation(_LAG_BUCKETS_S))
        self.meters = MeterProvider(readers, resource, views=[lag])
        self._trace_ids = TraceIds()
        self.traces = TracerProvider(resource=resource, id_generator=self._trace_ids) if _asked_for("TRACES") else None
        if self.traces:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - the same

            self.traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))

    def traced(self, hot: ASGIApp) -> ASGIApp:
        """Give hot calls their spans, if there are to be traces."""
        return HotSpans(hot, self.traces, self._trace_ids) if self.traces else hot

    def for_fastapi(self) -> TelemetryConfig:
        """Return FastAPI's own instrumentation: it skips probes. Hot calls, which it would slow down, never come to it."""
        return TelemetryConfig(
            meter_provider=self.meters,
            tracer_provider=self.traces,
            tracing=self.traces is not None,
            logs=False,
            operation_spans=False,
            auto_configure=False,
            exclude=lambda scope: scope["path"] in _QUIET_PATHS,
        )

    def observe(self, observed: Observed) -> None:
        """Export what the service counts."""
        meter = self.meters.get_meter(_NAME)
        tally, figures = observed.tally, observed.figures

        def counter(name: str, description: str, read: Callable[[], Iterable[Observation]]) -> None:
            meter.create_observable_counter(f"leasebeat.{name}", [_callback(read)], description=description)

        def gauge(name: str, description: str, unit: str, read: Callable[[], Iterable[Observation]]) -> None:
            meter.create_observable_gauge(f"leasebeat.{name}", [_callback(read)], unit=unit, description=description)

        counter("sends", "Messages sent.", lambda: [Observation(tally.sends)])
        counter("claims", "Leases granted.", lambda: [Observation(tally.claims)])
        counter("beats", "Beats, by outcome.", lambda: [Observation(n, {"outcome": word}) for word, n in tally.beats.items()])
        counter(
            "settles", "Acks, nacks and releases, by outcome.",
            lambda: [Observation(n, {"verb": verb, "outcome": word}) for (verb, word), n in tally.settles.items()],
        )  # fmt: skip
        counter(
            "reclaims", "Leases that ran out, and the messages given up for it.",
            lambda: [Observation(n, {"outcome": word}) for word, n in tally.reclaims.items()],
        )  # fmt: skip
        gauge(
            "active_leases", "Active leases, by queue, as of the last background count. The same from all replicas.", "",
            lambda: [Observation(counts.leases["active"], {"queue": queue}) for queue, counts in figures.by_name()],
        )  # fmt: skip
        gauge(
            "stale_leases", "Active leases without a sign of life for two minutes, by queue, as of the same count.", "",
            lambda: [Observation(counts.leases["stale"], {"queue": queue}) for queue, counts in figures.by_name()],
        )  # fmt: skip
        gauge(
            "messages", "Messages, by queue and status, as of the same count.", "",
            lambda: [
                Observation(counts.messages[status], {"queue": queue, "status": status})
                for queue, counts in figures.by_name() for status in STATUSES
            ],
        )  # fmt: skip
        gauge("parked_claims", "Claims that wait for work.", "", lambda: [Observation(observed.parked_claims())])
        gauge("timer.lag", "How far this replica's timer is behind its plan.", "s", lambda: [Observation(observed.timer_lag())])
        lag = meter.create_histogram(
            "leasebeat.reclaim.lag", unit="s", description="From a lease's expiry to its reclaim, the longest of each batch."
        )
        tally.observe_lag = lag.record

    def shutdown(self) -> None:
        self.meters.shutdown()
        if self.traces:
            self.traces.shutdown()


def _callback(read: Callable[[], Iterable[Observation]]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _options: read()


def _asked_for(signal: str) -> bool:
    """Whether the standard variables ask for this signal: an endpoint is named, and neither the signal nor the SDK is turned off."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get(f"OTEL_{signal}_EXPORTER", "otlp") == "none":
        return False
    return bool(os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or os.environ.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"))
