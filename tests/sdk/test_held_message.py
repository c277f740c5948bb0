"""`HeldMessage`: what it knows of its lease."""

import time

import pytest
from sdk.running import CLAIM, grant
from sdk.scripted_service import Answer, Received, ScriptedService, beats, lease, verdicts

from leasebeat import Client, HeldMessage


@pytest.mark.timed
def test_once_extended_its_calls_have_the_time_of_the_extended_lease(service: ScriptedService) -> None:
    """The first end would leave each attempt to ack 1.5 s, and cause a repeat."""

    def ack_slowly(request: Received) -> Answer:
        time.sleep(2)
        return verdicts("acked", late=False)(request)

    service.on("POST", CLAIM, grant(lease(expires_in=4.5)))
    service.on("POST", "/beat", beats(expires_in=60.0))
    service.on("POST", "/ack", ack_slowly)
    with Client(service.url) as client:
        held = HeldMessage(client, client.claim("default", worker_id="w")[0])
        held.extend_visibility()
        held.ack()
    assert len(service.asked("/ack")) == 1


def test_no_answer_shortens_what_it_knows(service: ScriptedService) -> None:
    service.on("POST", CLAIM, grant(lease(expires_in=60.0)))
    service.on("POST", "/beat", beats("held", expires_in=30.0))
    with Client(service.url) as client:
        held = HeldMessage(client, client.claim("default", worker_id="w")[0])
        known = held.lease.valid_until
        held.extend_visibility()
        assert held.lease.valid_until == known
