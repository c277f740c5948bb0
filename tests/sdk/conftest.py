from collections.abc import Iterator
from typing import Any

import pytest
from sdk.running import CLAIM, Running, Start, grant, park
from sdk.scripted_service import ScriptedService, beats, lease, verdicts

import leasebeat
from leasebeat import Worker


@pytest.fixture
def service() -> Iterator[ScriptedService]:
    with ScriptedService() as running:
        yield running


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
def start(willing: ScriptedService) -> Iterator[Start]:
    """Start workers; they end with the test."""
    started: list[Running] = []

    def begin(handler: leasebeat.Handler, queues: str | list[str] = "default", **options: Any) -> Running:
        started.append(Running(Worker(willing.url, queues, handler, **{"drain_timeout": 1.0, **options})))
        return started[-1]

    yield begin
    for running in started:
        running.worker.stop()
        running.worker.stop()
        running.join()
