"""What a drain waits for: reports that are on their way, and none of those that nobody sends any more."""

import threading
import time
from collections.abc import Iterator

import pytest
from harness.wait import until
from sdk.running import CLAIM, grant
from sdk.scripted_service import ScriptedService, lease

from leasebeat import Client
from leasebeat._beat_sender import BeatSender
from leasebeat._http import Options
from leasebeat._tracked_lease import TrackedLease

TIMEOUT_S = 60.0


@pytest.fixture
def sender(service: ScriptedService) -> Iterator[BeatSender]:
    sender = BeatSender(Options(base_url=service.url), "w", lambda: None)
    yield sender
    sender.close()


@pytest.fixture
def unsent(service: ScriptedService) -> TrackedLease:
    """A lease with a report that has not gone out."""
    service.on("POST", CLAIM, grant(lease()))
    with Client(service.url) as client:
        (granted,) = client.claim("default", worker_id="w")
    tracked = TrackedLease(granted)
    tracked.note(progress=1)
    tracked.move()
    return tracked


def test_a_report_of_a_lease_that_nobody_watches_any_more_is_not_waited_for(sender: BeatSender, unsent: TrackedLease) -> None:
    sender.track(unsent)
    sender.forget(unsent)
    began = time.monotonic()
    sender.flush([unsent], TIMEOUT_S)
    assert time.monotonic() - began < TIMEOUT_S / 2


def test_a_lease_that_is_forgotten_ends_the_wait_for_its_report(sender: BeatSender, unsent: TrackedLease) -> None:
    flush = threading.Thread(target=sender.flush, args=([unsent], TIMEOUT_S))  # of a lease that is not tracked, so it stays unsent
    began = time.monotonic()
    flush.start()
    until(lambda: unsent._urgent)  # noqa: SLF001 - what it waits for
    sender.forget(unsent)
    flush.join(TIMEOUT_S / 2)
    assert time.monotonic() - began < TIMEOUT_S / 2
