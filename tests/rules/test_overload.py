"""While the database stalls, no more calls of one kind wait for it than are allowed, and they take no more connections than they need."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from harness.holding import holding, until_somebody_waits
from harness.metrics import value
from harness.postgres import Databases
from harness.problems import assert_problem
from harness.server import Server
from harness.wait import until

LIMIT = 2

_LOOKING_UP = (
    "select count(*) from pg_stat_activity "
    "where datname = current_database() and wait_event_type = 'Lock' and query like '%from queue where queue.name%'"
)


@pytest.fixture(scope="module")
def limited_database(postgres: Databases) -> str:
    return postgres.create()


@pytest.fixture(scope="module")
def limited(limited_database: str) -> Iterator[Server]:
    """A server where few calls may wait for the database."""
    with Server(limited_database, queue_limit=LIMIT) as running:
        yield running


def send(server: Server, queue: str) -> httpx.Response:
    return server.api.client.post(f"/queues/{queue}/messages", json={"messages": [{"body": 1}]})


def claim(server: Server, wait: float = 0) -> httpx.Response:
    return server.api.client.post("/queues/default/leases", json={"worker_id": "w", "wait": wait})


@pytest.mark.scar(43)
async def test_calls_that_look_a_queue_up_share_one_connection_and_are_refused_beyond_the_limit(
    limited: Server, limited_database: str
) -> None:
    """One statement is under way, and as many calls as are allowed wait for the next."""
    async with holding(limited_database, "lock table queue in access exclusive mode") as sql:
        with ThreadPoolExecutor(8) as pool:
            calls = [pool.submit(send, limited, "default") for _ in range(8)]
            until(lambda: sum(call.done() for call in calls) == 8 - 1 - LIMIT)
            refused = [call for call in calls if call.done()]
            assert await sql.fetchval(_LOOKING_UP) == 1
            await sql.execute("commit")
    for call in refused:
        assert_problem(call.result(), 503, "overloaded")
        assert call.result().headers["retry-after"] == "1"
    assert {call.result().status_code for call in calls if call not in refused} == {201}
    limited.api.call("POST", "/queues/default/purge", {"statuses": ["pending"]})


@pytest.mark.scar(43)
@pytest.mark.rule(11)
async def test_claims_that_do_not_wait_for_messages_are_refused_beyond_the_limit_and_parked_ones_are_not(
    limited: Server, limited_database: str
) -> None:
    with ThreadPoolExecutor(LIMIT + 2) as pool:
        async with holding(limited_database, "lock table lease in access exclusive mode"):
            impatient = []
            for number in range(LIMIT):
                impatient.append(pool.submit(claim, limited))
                until(lambda wanted=number + 1: value(limited.api, "leasebeat_parked_claims") == wanted)  # type: ignore[misc]
            refused = pool.submit(claim, limited)
            assert_problem(refused.result(timeout=60), 503, "overloaded")
            parked = pool.submit(claim, limited, 30)
            until(lambda: value(limited.api, "leasebeat_parked_claims") == LIMIT + 1)
        assert [call.result().json()["leases"] for call in impatient] == [[]] * LIMIT
        assert send(limited, "default").status_code == 201
        assert len(parked.result().json()["leases"]) == 1
    assert claim(limited).status_code == 200


LEAST_ROOM = 16 * 1024 * 1024
LARGE = 7 * 1024 * 1024
CONTENT = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def cramped(limited_database: str) -> Iterator[Server]:
    """A server where calls of one kind may hold the least that can be allowed: two large bodies."""
    with Server(limited_database, queue_bytes=LEAST_ROOM) as running:
        running.api.put_queue("cramped")
        yield running


def large(server: Server, path: str, body: str) -> httpx.Response:
    return server.api.client.post(path, content=body.encode() + b" " * LARGE, headers=CONTENT)


@pytest.mark.scar(43)
@pytest.mark.parametrize("verb", ["send", "claim", "beat", "ack", "nack", "release"])
async def test_what_waits_for_the_database_holds_no_more_bytes_than_are_allowed(cramped: Server, limited_database: str, verb: str) -> None:
    """Calls of other kinds go on: each has its own room. It is free again when they are answered."""
    api = cramped.api
    api.send("cramped", 1, 2)
    receipt, spare = (lease["receipt"] for lease in api.claim("cramped", max_messages=2))
    path, body = {
        "send": ("/queues/cramped/messages", '{"messages": [{"body": 3}]}'),
        "claim": ("/queues/cramped/leases", '{"worker_id": "w", "task_id": "none"}'),
    }.get(verb, (f"/{verb}", f'{{"leases": [{{"receipt": "{receipt}"}}]}}'))
    with ThreadPoolExecutor(4) as pool:
        async with holding(limited_database, "lock table message, lease in access exclusive mode") as sql:
            calls = [pool.submit(large, cramped, path, body) for _ in range(3)]
            until(lambda: sum(call.done() for call in calls) == 1)
            (refused,) = (call for call in calls if call.done())
            assert_problem(refused.result(), 503, "overloaded")
            assert refused.result().headers["retry-after"] == "1"
            beside = pool.submit(api.client.post, "/ack" if verb == "beat" else "/beat", json={"leases": [{"receipt": spare}]})
            await until_somebody_waits(sql, 2)
        assert {call.result().status_code for call in calls if call is not refused} == {201 if verb == "send" else 200}
        assert beside.result().status_code == 200
    assert large(cramped, path, body).status_code in (200, 201)


@pytest.mark.scar(43)
async def test_many_small_items_count_for_more_than_their_text(cramped: Server, limited_database: str) -> None:
    body = {"messages": [{"body": 1}] * 1000}
    with ThreadPoolExecutor(20) as pool:
        async with holding(limited_database, "lock table message in access exclusive mode"):
            calls = [pool.submit(cramped.api.client.post, "/queues/cramped/messages", json=body) for _ in range(20)]
            until(lambda: sum(call.done() for call in calls) == 20 - LEAST_ROOM // (1000 * 1024 + 15_000))
        assert {call.result().status_code for call in calls} == {201, 503}


def test_what_is_refused_for_another_reason_holds_nothing(cramped: Server) -> None:
    for _ in range(5):
        assert large(cramped, "/ack", '{"leases": []}').status_code == 422
        assert large(cramped, "/queues/nowhere/messages", '{"messages": [{"body": 1}]}').status_code == 404
    assert large(cramped, "/queues/cramped/messages", '{"messages": [{"body": 1}]}').status_code == 201
