"""Parked claims: a lease starts when it is granted, reaches whoever waits, and is never lost on the way."""

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import asyncpg
import pytest
from harness.api import Api
from harness.server import Server
from harness.wait import until


@pytest.fixture
def parked(api: Api) -> Callable[[], int]:
    """Count the claims that are parked on the shared server."""

    def count() -> int:
        lines = api.client.get("/metrics").text.splitlines()
        return int(float(next(line.rpartition(" ")[2] for line in lines if line.startswith("leasebeat_parked_claims"))))

    return count


def abandon_claims(server: Server, queue: str, number: int, **options: float) -> list[socket.socket]:
    """Send claims on raw connections that never read the answer, and return the connections."""
    body = ('{"worker_id": "gone", "wait": 20' + "".join(f', "{name}": {value}' for name, value in options.items()) + "}").encode()
    head = f"POST /queues/{queue}/leases HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    connections = []
    for _ in range(number):
        connection = socket.create_connection(("127.0.0.1", server.port))
        connection.sendall(head.encode() + body)
        connections.append(connection)
    return connections


@pytest.mark.scar(18)
@pytest.mark.rule(1, 14)
def test_a_lease_starts_when_it_is_granted_not_when_it_was_asked_for(api: Api, queue: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        claims = [pool.submit(api.claim, queue, wait=1.6, visibility_timeout=1) for _ in range(2)]
        time.sleep(1.2)
        api.send(queue, "work")
        granted = [lease for claim in claims for lease in claim.result()]
    (lease,) = granted
    assert 0.95 < lease["expires_in"] <= 1
    assert api.beat(lease["receipt"])[0]["status"] == "extended"


@pytest.mark.scar(19)
@pytest.mark.rule(14)
def test_repeating_a_claim_returns_the_same_leases(api: Api, queue: str) -> None:
    api.send(queue, *range(5))
    first = api.claim(queue, max_messages=3, claim_id="call-1")
    again = api.claim(queue, max_messages=3, claim_id="call-1")
    assert [lease["receipt"] for lease in again] == [lease["receipt"] for lease in first]
    assert len(api.claim(queue, max_messages=3, claim_id="call-2")) == 2


@pytest.mark.scar(19)
@pytest.mark.rule(14)
def test_a_claim_that_is_repeated_while_it_is_parked_gets_one_set_of_leases(api: Api, queue: str) -> None:
    def claim(_: int) -> list[str]:
        return [lease["receipt"] for lease in api.claim(queue, wait=5, claim_id="same", max_messages=2)]

    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(claim, n) for n in range(4)]
        time.sleep(0.2)
        api.send(queue, 1, 2, 3)
        assert len({tuple(answer.result()) for answer in answers}) == 1
    assert len(api.claim(queue, max_messages=5)) == 1


@pytest.mark.scar(19)
@pytest.mark.rule(14)
def test_a_claim_repeated_on_another_replica_gets_the_same_leases(start_server: Callable[..., Server]) -> None:
    apis = [start_server().api for _ in range(2)]
    apis[0].send("default", *range(400))
    for n in range(50):
        with ThreadPoolExecutor(2) as pool:
            answers = [pool.submit(api.claim, "default", claim_id=f"call-{n}", max_messages=3) for api in apis]
            one, two = ([lease["receipt"] for lease in answer.result()] for answer in answers)
        assert one == two


@pytest.mark.rule(14)
def test_unconfirmed_leases_come_back_soon_and_confirmed_ones_last(api: Api, queue: str) -> None:
    api.send(queue, "unheard", "heard")
    unheard, heard = api.claim(queue, max_messages=2, confirm_within=0.3, visibility_timeout=60)
    assert 0 < unheard["expires_in"] <= 0.3
    (beat,) = api.beat(heard["receipt"])
    assert beat["expires_in"] > 59
    again = api.claim_one(queue, wait=3)
    assert (again["message"]["body"], again["attempt"], again["generation"]) == ("unheard", 1, 2)
    assert api.message(again["message"]["id"])["unconfirmed_count"] == 1


@pytest.mark.scar(20)
@pytest.mark.rule(11)
@pytest.mark.parametrize("way", ["send", "delayed send", "nack", "delayed nack", "release", "expiry", "unconfirmed"])
def test_a_parked_claim_wakes_for_every_way_into_pending(api: Api, queue: str, parked: Callable[[], int], way: str) -> None:
    receipt = ""
    if "send" not in way:
        api.send(queue, "work")
        options: dict[str, Any] = {"expiry": {"visibility_timeout": 0.4}, "unconfirmed": {"confirm_within": 0.4}}.get(way, {})
        receipt = api.claim_one(queue, **options)["receipt"]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(api.claim, queue, wait=10)
        until(lambda: parked() == 1)
        start = time.monotonic()
        match way:
            case "send":
                api.send(queue, "work")
            case "delayed send":
                api.send(queue, "work", delay=0.2)
            case "nack":
                api.nack(receipt)
            case "delayed nack":
                api.nack(receipt, delay=0.2)
            case "release":
                api.release(receipt)
        (lease,) = waiting.result()
    assert lease["message"]["body"] == "work"
    # The polling that is the safety net comes once a second; a wake-up is what comes sooner.
    assert time.monotonic() - start < 0.8


@pytest.mark.scar(20)
@pytest.mark.rule(11)
def test_a_claim_parked_on_one_replica_wakes_for_a_send_through_another(start_server: Callable[..., Server]) -> None:
    sender, waiter = (start_server(sweep_interval=30).api for _ in range(2))
    delays = []
    for _ in range(3):
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(waiter.claim, "default", wait=20)
            time.sleep(0.3)
            sender.send("default", "work")
            start = time.monotonic()
            assert len(waiting.result()) == 1
            delays.append(time.monotonic() - start)
    assert max(delays) < 2


@pytest.mark.scar(21)
@pytest.mark.rule(14)
def test_nothing_is_leased_to_a_client_that_has_gone(api: Api, server: Server, queue: str, parked: Callable[[], int]) -> None:
    for connection in abandon_claims(server, queue, 5):
        until(lambda: parked() >= 1)
        connection.close()
    until(lambda: parked() == 0)
    (message_id,) = api.send(queue, "work")
    assert api.message(message_id)["status"] == "pending"
    lease = api.claim_one(queue)
    assert (lease["generation"], lease["attempt"]) == (1, 1)


@pytest.mark.scar(21)
@pytest.mark.rule(14)
def test_a_lease_granted_to_a_client_that_is_just_leaving_is_released_uncounted(api: Api, server: Server, queue: str) -> None:
    """Close connections in the same moment as messages arrive: whichever comes first, every message ends up with a live claim."""
    for _ in range(20):
        leaving = abandon_claims(server, queue, 3)
        closer = threading.Thread(target=lambda gone: [connection.close() for connection in gone], args=(leaving,))
        time.sleep(0.02)
        closer.start()
        api.send(queue, "work")
        closer.join()
    taken: list[int] = []
    while len(taken) < 20:
        leases = api.claim(queue, wait=2, max_messages=20)
        taken += [lease["attempt"] for lease in leases]
        if not leases:
            break
    orphans = api.call("GET", f"/leases?queue={queue}&worker_id=gone")["items"]
    # An answer that was already on the wire when the client left cannot be called back: such a lease runs out instead.
    assert len(taken) + len(orphans) == 20
    assert set(taken) == {1}


@pytest.mark.scar(22)
@pytest.mark.rule(11)
def test_aborted_claims_leak_no_connection(start_server: Callable[..., Server]) -> None:
    server = start_server()
    api = server.api
    for _ in range(4):
        for connection in abandon_claims(server, "default", 50):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
    start = time.monotonic()
    api.send("default", "work")
    assert api.claim_one("default", wait=2)["message"]["body"] == "work"
    assert time.monotonic() - start < 2


@pytest.mark.scar(22)
async def test_aborted_claims_leave_no_open_transaction(server: Server, queue: str, sql: "asyncpg.Connection[asyncpg.Record]") -> None:
    for connection in abandon_claims(server, queue, 50):
        connection.close()
    idle = "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'"
    assert await sql.fetchval(idle) == 0


@pytest.mark.scar(23)
@pytest.mark.rule(11)
async def test_parked_claims_hold_no_database_connection(
    server: Server, queue: str, parked: Callable[[], int], sql: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    waiting = abandon_claims(server, queue, 200)
    until(lambda: parked() == 200)
    connections = await sql.fetchval("select count(*) from pg_stat_activity where datname = current_database()")
    assert connections < 20
    start = time.monotonic()
    server.api.send(queue, *range(200))
    assert time.monotonic() - start < 1
    until(lambda: parked() == 0)
    for connection in waiting:
        connection.close()


@pytest.mark.rule(11)
def test_a_stopping_service_answers_parked_claims_at_once(start_server: Callable[..., Server]) -> None:
    server = start_server()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.api.claim, "default", wait=40)
        time.sleep(0.3)
        start = time.monotonic()
        assert server.stop() == 0
        assert waiting.result() == []
    assert time.monotonic() - start < 5
