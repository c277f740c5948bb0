"""How long calls for a lease wait for their answer."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from sdk.scripted_service import Answer, ScriptedService, lease, verdicts

import leasebeat
from leasebeat import Ack, Beat, Client, Lease, Nack
from leasebeat._calls import leases
from leasebeat._http import Options

Use = Callable[[Client, Lease], object]
BEATEN = verdicts("extended", expires_at=None, expires_in=None, next_beat_in=None)


def granted(client: Client, service: ScriptedService, expires_in: float) -> Lease:
    service.on("POST", "/queues/q/leases", Answer({"leases": [lease(expires_in=expires_in)]}))
    (held,) = client.claim("q", worker_id="w")
    return held


CALLS: dict[str, tuple[str, Use, Any]] = {
    "beat": ("/beat", lambda client, lease: client.beat(lease, progress=1), BEATEN),
    "beat_many": ("/beat", lambda client, lease: client.beat_many([Beat(lease)]), BEATEN),
    "ack": ("/ack", lambda client, lease: client.ack(lease), verdicts("acked", late=False)),
    "ack_many": ("/ack", lambda client, lease: client.ack_many([Ack(lease)]), verdicts("acked", late=False)),
    "nack": ("/nack", lambda client, lease: client.nack(lease), verdicts("requeued")),
    "nack_many": ("/nack", lambda client, lease: client.nack_many([Nack(lease)]), verdicts("requeued")),
    "release": ("/release", lambda client, lease: client.release(lease), verdicts("released")),
    "release_many": ("/release", lambda client, lease: client.release_many([lease]), verdicts("released")),
}


@pytest.mark.scar(24)
@pytest.mark.parametrize(("path", "use", "answer"), CALLS.values(), ids=CALLS)
def test_an_attempt_that_hangs_leaves_time_for_another_on_a_fresh_connection(
    path: str, use: Use, answer: Any, service: ScriptedService
) -> None:
    service.on("POST", path, lambda request: Answer(answer(request).payload, delay=4.0), answer)
    with Client(service.url, timeout=30) as client:
        held = granted(client, service, expires_in=3.0)
        use(client, held)
        assert held.remaining() > 0, "answered while it lasts"
    first, second = service.asked(path)
    assert first.body == second.body
    assert first.connection != second.connection
    assert 0.5 < second.at - first.at < 2.0


def test_a_service_that_hangs_is_given_up_with_the_lease(service: ScriptedService) -> None:
    service.on("POST", "/beat", Answer({}, delay=20.0))
    with Client(service.url, timeout=30) as client:
        held = granted(client, service, expires_in=1.5)
        started = time.monotonic()
        with pytest.raises(leasebeat.ServiceUnreachableError):
            client.beat(held)
        assert time.monotonic() - started < 5
    assert len(service.asked("/beat")) == 2


def timeout_of(held: Lease | str, client_timeout: float = 10.0) -> float:
    limit = Options(base_url="http://service", timeout=client_timeout).limit(leases.ack(held))
    assert limit["connect"] == pytest.approx(limit["read"], abs=0.05)
    return limit.total


def test_the_time_is_a_third_of_what_is_left_and_never_more_than_the_clients(service: ScriptedService) -> None:
    with Client(service.url) as client:
        assert timeout_of(granted(client, service, expires_in=15.0)) == pytest.approx(5.0, abs=0.2)
        assert timeout_of(granted(client, service, expires_in=300.0)) == 10.0
        assert timeout_of(granted(client, service, expires_in=0.3)) == 0.25, "long enough to be answered at all"


def test_a_receipt_alone_or_a_lease_that_is_over_is_worth_the_clients_time(service: ScriptedService) -> None:
    """A late ack may be accepted, and a lease may have been extended since it was granted."""
    with Client(service.url) as client:
        assert timeout_of(granted(client, service, expires_in=0.0)) == 10.0
    assert timeout_of("secret-1") == 10.0
