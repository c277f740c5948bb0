"""The message lease extender: the tests that it lists, under their names, and its table of errors, with real leases for its fake messages.

What it says of adapters, tools and loops is tested with them.
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.api import Api, Json
from harness.postgres import RunOut
from harness.server import Server
from harness.wait import until
from sdk.relay import Relay
from sdk.running import until_extended

from leasebeat import BeatResult, Client, Heartbeat, HeldMessage, Lease, LeaseExtender, LeaseExtenderConfig

LONG = 60
LOGGER = "leasebeat._lease_extender"


class Message(HeldMessage):
    """A leased message that remembers the service's word on each extension."""

    def __init__(self, client: Client, lease: Lease) -> None:
        super().__init__(client, lease)
        self.answers: list[str] = []

    @property
    def extend_visibility_calls(self) -> int:
        return len(self.answers)

    def extend_visibility(self, seconds: float | None = None) -> BeatResult:
        self.answers.append("none")
        result = super().extend_visibility(seconds)
        self.answers[-1] = result.status
        return result


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


Create = Callable[..., Message]


@pytest.fixture
def create_test_message(client: Client, queue: str) -> Create:
    """Lease a message of a queue where each beat extends."""
    client.put_queue(queue, beat_interval=0)

    def create(*, visibility_timeout: float = 300) -> Message:
        client.send(queue, "work")
        (lease,) = client.claim(queue, worker_id="worker-1", visibility_timeout=visibility_timeout)
        return Message(client, lease)

    return create


def held(api: Api, queue: str) -> Json:
    (only,) = api.call("GET", "/leases", params={"queue": queue})["items"]
    return only


# --- unit tests


def test_lease_extender_extends_on_beat(create_test_message: Create) -> None:
    msg, heartbeat = create_test_message(), Heartbeat()
    with LeaseExtender(LeaseExtenderConfig(interval=0.0)).attach(msg, heartbeat):
        heartbeat.beat()
        heartbeat.beat()
        heartbeat.beat()
    assert msg.answers == ["extended", "extended", "extended"]


def test_lease_extender_rate_limits(create_test_message: Create) -> None:
    msg, heartbeat = create_test_message(), Heartbeat()
    with LeaseExtender(LeaseExtenderConfig(interval=1.0)).attach(msg, heartbeat):
        began = time.monotonic()
        heartbeat.beat()  # extends
        heartbeat.beat()  # skipped
        heartbeat.beat()  # skipped
        in_time = time.monotonic() - began < 1.0
        assert msg.answers == ["extended"] or not in_time
        time.sleep(1.1)
        heartbeat.beat()  # extends
    assert msg.answers == ["extended", "extended"] or not in_time


def test_lease_extender_disabled(create_test_message: Create, api: Api, queue: str) -> None:
    msg, heartbeat = create_test_message(), Heartbeat()
    with LeaseExtender(LeaseExtenderConfig(enabled=False)).attach(msg, heartbeat):
        heartbeat.beat()
    assert msg.answers == []
    assert held(api, queue)["last_beat_at"] is None


def test_heartbeat_callback_chaining(create_test_message: Create) -> None:
    calls: list[str] = []
    heartbeat = Heartbeat()
    heartbeat.on_beat = lambda: calls.append("original")
    msg = create_test_message()
    with LeaseExtender(LeaseExtenderConfig(interval=0.0)).attach(msg, heartbeat):
        heartbeat.beat()
    assert calls == ["original"]
    assert msg.answers == ["extended"]


# --- integration tests


@pytest.mark.scar(12)
def test_stuck_worker_lease_expires(create_test_message: Create, client: Client, queue: str) -> None:
    msg, heartbeat = create_test_message(visibility_timeout=1), Heartbeat()
    with LeaseExtender(LeaseExtenderConfig(interval=0.1)).attach(msg, heartbeat):
        (taken,) = client.claim(queue, worker_id="healthy", wait=50)  # no beats meanwhile
    assert msg.answers == []
    assert (taken.message.id, taken.generation) == (msg.id, 2)


def test_a_worker_that_beats_keeps_its_lease(create_test_message: Create, client: Client, api: Api, queue: str) -> None:
    client.put_queue(queue, visibility_timeout=60, extension=60, beat_interval=0.1)
    msg, heartbeat = create_test_message(visibility_timeout=60), Heartbeat()
    began = time.monotonic()
    with LeaseExtender(LeaseExtenderConfig(interval=0.3)).attach(msg, heartbeat):
        until_extended(client, queue, 4, beat=heartbeat.beat)
        assert held(api, queue)["generation"] == 1
    assert msg.extend_visibility_calls <= (time.monotonic() - began) / 0.3 + 1
    assert msg.ack().late is False


# --- what extensions do to a lease


@pytest.mark.scar(6)
def test_twenty_threads_that_beat_at_once_make_one_extension(create_test_message: Create, client: Client, queue: str) -> None:
    client.put_queue(queue, beat_interval=60)
    msg, heartbeat = create_test_message(), Heartbeat()
    together = threading.Barrier(20)

    def beat(_: int) -> None:
        together.wait()
        heartbeat.beat()

    with LeaseExtender(LeaseExtenderConfig(interval=60.0)).attach(msg, heartbeat), ThreadPoolExecutor(20) as pool:
        list(pool.map(beat, range(20)))
    assert msg.answers == ["extended"]


@pytest.mark.scar(6)
def test_twenty_extenders_of_one_lease_make_one_extension(create_test_message: Create, client: Client, queue: str) -> None:
    """Each in a thread and with a clock of its own, so it is the service that lets only one through."""
    client.put_queue(queue, beat_interval=60)
    msg = create_test_message()
    copies = [Message(client, msg.lease) for _ in range(20)]
    together = threading.Barrier(20)

    def beat(copy: Message) -> None:
        heartbeat = Heartbeat()
        with LeaseExtender(LeaseExtenderConfig(interval=0.0)).attach(copy, heartbeat):
            together.wait()
            heartbeat.beat()

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(beat, copies))
    assert sorted(answer for copy in copies for answer in copy.answers) == ["extended"] + ["held"] * 19


@pytest.mark.scar(7)
def test_an_extension_never_shortens_a_lease(create_test_message: Create, api: Api, queue: str) -> None:
    msg, heartbeat = create_test_message(visibility_timeout=1800), Heartbeat()
    before = held(api, queue)["expires_at"]
    with LeaseExtender(LeaseExtenderConfig(interval=0.0, extension=300)).attach(msg, heartbeat):
        heartbeat.beat()
    assert msg.answers == ["extended"]
    assert held(api, queue)["expires_at"] == before


# --- errors, and what is logged


def test_an_extension_is_logged_for_debugging(create_test_message: Create, caplog: pytest.LogCaptureFixture) -> None:
    msg, heartbeat = create_test_message(), Heartbeat()
    with caplog.at_level(logging.DEBUG, logger=LOGGER), LeaseExtender().attach(msg, heartbeat):
        heartbeat.beat()
    assert (LOGGER, logging.DEBUG, f"Extended visibility for message {msg.id} by 300 seconds") in caplog.record_tuples


@pytest.mark.scar(9)
def test_an_expired_receipt_is_a_warning_and_processing_continues(
    create_test_message: Create, run_out: RunOut, caplog: pytest.LogCaptureFixture
) -> None:
    msg, heartbeat = create_test_message(), Heartbeat()
    told: list[str] = []
    extender = LeaseExtender(LeaseExtenderConfig(interval=0.0), on_lost=lambda: told.append("lost"))
    run_out(msg.id)
    with caplog.at_level(logging.WARNING, logger=LOGGER), extender.attach(msg, heartbeat):
        for _ in range(50):
            heartbeat.beat()
    warning = (LOGGER, logging.WARNING, f"Lease extension failed for message {msg.id}: receipt handle expired")
    assert caplog.record_tuples == [warning]
    assert msg.extend_visibility_calls == 1
    assert told == ["lost"]


@pytest.mark.scar(9)
def test_a_network_error_is_logged_and_this_extension_skipped(
    start_server: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    """The service is killed and comes back: fifty beats meanwhile make few calls, and a later one extends."""
    server = start_server()
    with Relay(server.port) as relay, Client(relay.url) as client:
        client.put_queue("default", beat_interval=0)
        client.send("default", "work")
        (lease,) = client.claim("default", worker_id="worker-1")
        msg, heartbeat = Message(client, lease), Heartbeat()
        extender = LeaseExtender(LeaseExtenderConfig(interval=0.0))

        def extended() -> bool:
            heartbeat.beat()
            return msg.answers[-1] == "extended"

        with caplog.at_level(logging.ERROR, logger=LOGGER), extender.attach(msg, heartbeat):
            server.kill()
            began = time.monotonic()
            for _ in range(50):
                heartbeat.beat()
            assert msg.extend_visibility_calls <= 2 + (time.monotonic() - began) / 0.1
            assert set(caplog.messages) == {f"Lease extension failed for message {msg.id}"}
            assert not extender.lost.is_set()
            relay.cut(start_server().port)
            until(extended, timeout=LONG)


def test_a_callback_that_fails_does_not_keep_the_lease_from_being_extended(
    create_test_message: Create, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise OSError("disk full")

    msg, heartbeat = create_test_message(), Heartbeat()
    heartbeat.on_beat = fail
    with LeaseExtender(LeaseExtenderConfig(interval=0.0)).attach(msg, heartbeat):
        heartbeat.beat()
    assert msg.answers == ["extended"]
    assert re.search("Heartbeat callback .* failed", caplog.text)


# --- the heartbeat


def test_elapsed_counts_from_the_last_beat() -> None:
    heartbeat = Heartbeat()
    time.sleep(0.1)
    assert heartbeat.elapsed() >= 0.1
    before = time.monotonic()
    heartbeat.beat()
    assert heartbeat.elapsed() <= time.monotonic() - before
