import time
from collections.abc import Iterator
from typing import Any

import pytest
from sdk.running import CLAIM, Running, Start, grant, park
from sdk.scripted_service import ScriptedService, beats, lease, verdicts

import leasebeat
from leasebeat import Worker

PATIENCE_S = 60.0


@pytest.fixture
def service() -> Iterator[ScriptedService]:
    with ScriptedService() as running:
        yield running


class Clock:
    """The time, which goes on when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


@pytest.fixture
def willing(service: ScriptedService) -> ScriptedService:
    """A service with one lease and then no more work, that agrees to everything."""
    service.on("POST", CLAIM, grant(lease()), park)
    service.on("POST", "/beat", beats())
    service.on("POST", "/ack", verdicts("acked", late=False))
    service.on("POST", "/nack", verdicts("requeued"))
    service.on("POST", "/release", verdicts("released"))
    return service


@pytest.fixture
def start(willing: ScriptedService, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start workers; they end with the test. What they do in haste as they end is given time: the machine may stand still for seconds."""
    for name in ("_task.FLUSH_TIMEOUT_S", "_worker.FLUSH_TIMEOUT_S", "_worker.CANCEL_TIMEOUT_S", "_claims.RECOVERY_TIMEOUT_S"):
        monkeypatch.setattr(f"leasebeat.{name}", PATIENCE_S)
    started: list[Running] = []

    def begin(handler: leasebeat.Handler, queues: str | list[str] = "default", **options: Any) -> Running:
        started.append(Running(Worker(willing.url, queues, handler, **{"drain_timeout": PATIENCE_S, **options})))
        return started[-1]

    yield begin
    for running in started:
        running.worker.stop()
        running.worker.stop()
        running.join()
