"""How long calls for a lease wait for their answer."""

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from sdk.conftest import Clock
from sdk.scripted_service import Answer, Break, Received, ScriptedService, lease, problem, verdicts

import leasebeat
from leasebeat import Ack, Beat, Client, HeldMessage, Lease, Nack, RetryPolicy
from leasebeat._call import Call, Reply, finish
from leasebeat._calls import leases
from leasebeat._http import Options
from leasebeat._retry import Attempts


def granted(client: Client, service: ScriptedService, expires_in: float) -> Lease:
    service.on("POST", "/queues/q/leases", Answer({"leases": [lease(expires_in=expires_in)]}))
    (held,) = client.claim("q", worker_id="w")
    return held


CALLS: dict[str, Callable[[Lease], Call[Any]]] = {
    "beat": lambda lease: leases.beat(lease, progress=1),
    "beat_many": lambda lease: leases.beat_many([Beat(lease)]),
    "ack": leases.ack,
    "ack_many": lambda lease: leases.ack_many([Ack(lease)]),
    "nack": leases.nack,
    "nack_many": lambda lease: leases.nack_many([Nack(lease)]),
    "release": leases.release,
    "release_many": lambda lease: leases.release_many([lease]),
}


@pytest.mark.scar(24)
@pytest.mark.timed
def test_an_attempt_that_hangs_leaves_time_for_another_on_a_fresh_connection(service: ScriptedService) -> None:
    ended = threading.Event()

    def hang(_request: Received) -> Break:
        ended.wait(90)
        return Break()

    service.on("POST", "/ack", hang, verdicts("acked", late=False))
    with Client(service.url, timeout=90) as client:
        held = granted(client, service, expires_in=12.0)
        client.ack(held)
        assert held.remaining() > 0, "answered while it lasts"
        ended.set()
    first, second = service.asked("/ack")
    assert first.body == second.body
    assert first.connection != second.connection


@pytest.mark.timed
def test_a_service_that_hangs_is_given_up_with_the_lease(service: ScriptedService) -> None:
    service.on("POST", "/beat", Answer({}, delay=90.0))
    with Client(service.url, timeout=90) as client:
        held = granted(client, service, expires_in=6.0)
        started = time.monotonic()
        with pytest.raises(leasebeat.ServiceUnreachableError):
            client.beat(held)
        assert time.monotonic() - started < 30
    assert len(service.wait_for("/beat", 2)) == 2


def lasting(seconds: float) -> Lease:
    """A lease that was granted just now."""
    now = time.monotonic()
    body = json.dumps({"leases": [lease(expires_in=seconds)]}).encode()
    (held,) = finish(leases.claim("q", worker_id="w"), Reply(status=200, body=body, retry_after=None, sent_at=now, answered_at=now))
    return held


def pause_after(call: Call[Any], retry_after: float) -> float | None:
    unavailable = Reply(status=503, body=b"", retry_after=retry_after, sent_at=0.0, answered_at=0.0)
    return Attempts(call, RetryPolicy()).pause_after(unavailable)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.usefixtures("clock")
def test_a_503_is_waited_out_only_while_the_lease_lasts(call: Callable[[Lease], Call[Any]]) -> None:
    assert pause_after(call(lasting(3.0)), 3.0) is None
    assert pause_after(call(lasting(3.0)), 5.0) is None
    assert 2.0 <= (pause_after(call(lasting(3.0)), 2.0) or 0.0) <= 2.5
    assert 3.0 <= (pause_after(call(lasting(0.0)), 3.0) or 0.0) <= 3.75, "a late ack may be accepted"


@pytest.mark.timed
def test_a_beat_that_would_wait_beyond_the_end_of_its_lease_fails_at_once(service: ScriptedService) -> None:
    service.on("POST", "/beat", problem(503, "overloaded", headers={"retry-after": "5"}))
    with Client(service.url) as client:
        held = HeldMessage(client, granted(client, service, expires_in=4.0))
        with pytest.raises(leasebeat.UnavailableError) as caught:
            held.extend_visibility()
        assert held.lease.remaining() > 0
    assert caught.value.retry_after == 5.0
    assert len(service.asked("/beat")) == 1


def timeout_of(call: Call[Any]) -> float:
    limit = Options(base_url="http://service", timeout=10.0).limit(call)
    assert limit["connect"] == limit["read"] == limit.total
    return limit.total


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_time_is_a_third_of_what_is_left_and_never_more_than_the_clients(call: Callable[[Lease], Call[Any]], clock: Clock) -> None:
    held = lasting(15.0)
    assert timeout_of(call(held)) == 5.0
    clock.now += 9
    assert timeout_of(call(held)) == 2.0
    assert timeout_of(call(lasting(300.0))) == 10.0
    assert timeout_of(call(lasting(0.3))) == 0.25, "long enough to be answered at all"


@pytest.mark.usefixtures("clock")
def test_a_receipt_alone_or_a_lease_that_is_over_is_worth_the_clients_time() -> None:
    """A late ack may be accepted, and a lease may have been extended since it was granted."""
    assert timeout_of(leases.ack(lasting(0.0))) == 10.0
    assert timeout_of(leases.ack("secret-1")) == 10.0
