import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from sdk.running import CLAIM, Running, Standstills, Start, grant, park
from sdk.scripted_service import ScriptedService, beats, lease, verdicts

import leasebeat
from leasebeat import Client, Worker

PATIENCE_S = 60.0
LESS_HASTE_S = 20.0  # longer than a machine stands still, and not as long as the end of a worker is waited for
HASTE = (
    "_task.FLUSH_TIMEOUT_S",
    "_worker.FLUSH_TIMEOUT_S",
    "_worker.CANCEL_TIMEOUT_S",
    "_unanswered.RECOVERY_TIMEOUT_S",
    "_process_pool.EXIT_TIMEOUT_S",
)
TRIES = 5


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test that is marked as `timed` again, with fixtures of its own, if it fails and this machine stood still meanwhile."""
    if item.get_closest_marker("timed") is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _run_undisturbed(item, nextitem):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _run_undisturbed(item: pytest.Item, nextitem: pytest.Item | None) -> Sequence[pytest.TestReport]:
    reports: list[pytest.TestReport] = []
    for _ in range(TRIES):
        with Standstills() as standstills:
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if not (standstills.seen and any(report.failed for report in reports)):
            break
    return reports


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


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What workers do in haste as they end is given time: the machine may stand still for seconds."""
    for name in HASTE:
        monkeypatch.setattr(f"leasebeat.{name}", LESS_HASTE_S)


@pytest.fixture
def start(willing: ScriptedService) -> Iterator[Start]:
    """Start workers; they end with the test. No call of theirs runs out of time because the machine stands still."""
    started: list[Running] = []
    with Client(willing.url, timeout=LESS_HASTE_S) as client:

        def begin(handler: leasebeat.Handler, queues: str | list[str] = "default", **options: Any) -> Running:
            started.append(Running(Worker(client, queues, handler, **{"drain_timeout": PATIENCE_S, **options})))
            return started[-1]

        yield begin
        for running in started:
            running.worker.stop()
            running.worker.stop()
            running.join()
