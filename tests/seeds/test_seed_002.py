"""The short specification of the lease extender: its configuration, its comparison with a daemon thread, and its errors.

What it says of tools, loops and agent hooks is tested with them.
"""

import dataclasses
import threading
from collections.abc import Iterator

import pytest
from harness.api import Api
from harness.server import Server
from harness.wait import until
from sdk.running import until_extended

from leasebeat import Client, Heartbeat, HeldMessage, LeaseExtender, LeaseExtenderConfig
from leasebeat._heartbeat_thread import HeartbeatThread
from leasebeat._lease_manager import LeaseManager

LONG = 60


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


def test_lease_extender_config_has_these_fields_and_defaults() -> None:
    fields = {field.name: (field.type, field.default) for field in dataclasses.fields(LeaseExtenderConfig)}
    assert fields == {"interval": (float, 60.0), "extension": (int, 300), "enabled": (bool, True)}


@pytest.mark.parametrize("error", [None, OSError("disk full")])
def test_attach_detaches_at_the_end_of_the_block(error: Exception | None, client: Client, api: Api, queue: str) -> None:
    client.put_queue(queue, beat_interval=0)
    client.send(queue, "work")
    (lease,) = client.claim(queue, worker_id="worker-1")
    heartbeat, ended = Heartbeat(), False

    def last_beat() -> str:
        heartbeat.beat()
        (held,) = api.call("GET", "/leases", params={"queue": queue})["items"]
        return str(held["last_beat_at"])

    try:
        with LeaseExtender(LeaseExtenderConfig(interval=0)).attach(HeldMessage(client, lease), heartbeat):
            attached = [last_beat(), last_beat()]
            if error:
                raise error
    except OSError:
        ended = True
    assert ended is bool(error)
    assert attached[0] < attached[1] == last_beat()


def test_stuck_worker_behaviour_of_both_kinds(client: Client, api: Api, queue: str) -> None:
    """The daemon thread keeps extending for work that hangs; where only beats extend, that loses its lease."""
    client.put_queue(queue, visibility_timeout=60, extension=60, beat_interval=0.2)
    manager = LeaseManager(client, "daemon", queue=queue)
    client.send(queue, "of the daemon thread")
    kept = manager.acquire_lease(None)
    assert kept is not None
    thread = HeartbeatThread(manager, kept.work_item_id, interval_seconds=0.3)
    thread.start()
    try:
        client.send(queue, "of the heartbeat")
        (lost,) = client.claim(queue, worker_id="heartbeat", visibility_timeout=1)
        with LeaseExtender(LeaseExtenderConfig(interval=0.3)).attach(HeldMessage(client, lost), Heartbeat()):
            until(lambda: client.get_message(lost.message.id).status == "pending", timeout=LONG)
            until_extended(client, queue)
        (held,) = api.call("GET", "/leases", params={"queue": queue})["items"]
    finally:
        thread.stop()
    assert (held["message_id"], held["generation"]) == (kept.work_item_id, 1)
    assert client.get_message(lost.message.id).expired_count == 1


def test_thread_overhead_of_both_kinds(client: Client, queue: str) -> None:
    client.send(queue, "work")
    manager = LeaseManager(client, "worker-1", queue=queue)
    lease = manager.acquire_lease()
    assert lease is not None
    heartbeat = Heartbeat()
    before = set(threading.enumerate())
    with LeaseExtender().attach(HeldMessage(client, lease), heartbeat):
        heartbeat.beat()
        assert set(threading.enumerate()) <= before
    thread = HeartbeatThread(manager, lease.work_item_id)
    thread.start()
    assert len(set(threading.enumerate()) - before) == 1
    thread.stop(timeout=LONG)
    assert set(threading.enumerate()) <= before
