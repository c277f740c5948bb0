"""The guide to lease extension: what it promises of `Heartbeat`, of attaching, of errors, and of how times fit together.

What it says of tools and loops is tested with them.
"""

import threading
from collections.abc import Iterator
from unittest.mock import Mock

import pytest
from harness.api import Api
from harness.server import Server
from harness.wait import until

from leasebeat import Client, Heartbeat, HeldMessage, LeaseExtender, LeaseExtenderConfig

LONG = 60


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


def hold(client: Client, queue: str, *, visibility_timeout: float | None = None) -> HeldMessage:
    client.send(queue, "work")
    (lease,) = client.claim(queue, worker_id="worker-1", visibility_timeout=visibility_timeout)
    return HeldMessage(client, lease)


# --- Heartbeat


def test_callbacks_are_added_and_removed(client: Client, api: Api, queue: str) -> None:
    """The observers of one heartbeat do not know of each other: removing one leaves the extender, and the other way round."""
    client.put_queue(queue, beat_interval=0)
    heard: list[str] = []
    heartbeat = Heartbeat()

    def mine() -> None:
        heard.append("mine")

    def last_beat() -> str:
        heartbeat.beat()
        (held,) = api.call("GET", "/leases", params={"queue": queue})["items"]
        return str(held["last_beat_at"])

    message = hold(client, queue)
    heartbeat.add_callback(mine)
    with LeaseExtender(LeaseExtenderConfig(interval=0)).attach(message, heartbeat):
        first = last_beat()
        heartbeat.remove_callback(mine)
        second = last_beat()
        heartbeat.add_callback(mine)
    third = last_beat()
    assert heard == ["mine", "mine"]
    assert first != "None"
    assert first < second == third


def test_a_heartbeat_is_shared_by_threads(client: Client, queue: str) -> None:
    client.put_queue(queue, visibility_timeout=60, beat_interval=0)
    heartbeat, heard = Heartbeat(), []
    heartbeat.add_callback(lambda: heard.append(threading.get_ident()))
    with LeaseExtender(LeaseExtenderConfig(interval=0)).attach(hold(client, queue), heartbeat):
        threads = [threading.Thread(target=heartbeat.beat) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(heard) == 20
    assert heartbeat.elapsed() < LONG


# --- LeaseExtender


def test_the_defaults() -> None:
    assert LeaseExtenderConfig() == LeaseExtenderConfig(interval=60.0, extension=300, enabled=True)


def test_attaching_twice_is_an_error(client: Client, queue: str) -> None:
    message, heartbeat, extender = hold(client, queue), Heartbeat(), LeaseExtender(config=LeaseExtenderConfig(interval=60, extension=300))
    with extender.attach(message, heartbeat):
        with pytest.raises(RuntimeError, match="already attached"), extender.attach(message, heartbeat):
            pass
        heartbeat.beat()
    with extender.attach(message, heartbeat):
        heartbeat.beat()
    assert not extender.lost.is_set()


def test_a_failed_extension_does_not_abort_processing_and_the_message_is_redelivered(client: Client, queue: str) -> None:
    """The lease runs out under its worker, which hears so, goes on, and is refused in the end: the other one's result stays."""
    message, heartbeat, extender = hold(client, queue, visibility_timeout=0.1), Heartbeat(), LeaseExtender(LeaseExtenderConfig(interval=0))
    (taken,) = client.claim(queue, worker_id="worker-2", wait=50)
    with extender.attach(message, heartbeat):
        heartbeat.beat()
        assert extender.lost.is_set()
        heartbeat.beat()
    assert taken.message.id == message.id
    assert client.ack(taken, output="worker-2").succeeded
    assert client.get_message(message.id).output == "worker-2"


def test_extension_is_disabled_for_tests(client: Client, queue: str) -> None:
    message, heartbeat = hold(client, queue, visibility_timeout=0.3), Heartbeat()
    with LeaseExtender(LeaseExtenderConfig(enabled=False)).attach(message, heartbeat):

        def given_back() -> bool:
            heartbeat.beat()
            return client.get_message(message.id).status == "pending"

        until(given_back, timeout=LONG)


def test_a_users_mock_message_tracks_extension_calls() -> None:
    msg, heartbeat = Mock(), Heartbeat()
    with LeaseExtender(LeaseExtenderConfig(interval=0, extension=180)).attach(msg, heartbeat):
        heartbeat.beat()
        heartbeat.beat()
    assert [call.args for call in msg.extend_visibility.call_args_list] == [(180,), (180,)]


# --- timeout calibration


@pytest.mark.parametrize("interval", [150, 151, 300])
def test_an_interval_that_is_not_below_half_of_the_extension_is_refused(interval: float, api: Api, queue: str) -> None:
    problem = api.call("PUT", f"/queues/{queue}", {"extension": 300, "beat_interval": interval}, expect=422)
    assert "beat_interval < extension / 2 must hold" in str(problem)


def test_the_example_for_ten_minutes_of_processing_fits(api: Api, queue: str) -> None:
    configured = api.put_queue(queue, visibility_timeout=1800, extension=300, beat_interval=60)
    assert (configured["visibility_timeout"], configured["extension"], configured["beat_interval"]) == (1800, 300, 60)
    assert configured["warnings"] == []


def test_an_extension_longer_than_the_visibility_timeout_is_a_warning(api: Api, queue: str) -> None:
    configured = api.put_queue(queue, visibility_timeout=60, extension=300)
    assert [warning for warning in configured["warnings"] if "extension" in warning]
