"""While the database stalls, no more calls of one kind wait for it than are allowed, and they take no more connections than they need."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from harness.holding import holding
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
