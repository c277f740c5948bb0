"""What operators do to a queue: pause, resume, purge."""

import asyncio
import json
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import asyncpg
import pytest
from harness.api import Api, without_figures
from harness.holding import holding, other_falls_to_a_deadlock, waiting_for_a_lock
from harness.operating import RARELY, all_states, fill, messages, parked_on, pause, purge, resume
from harness.postgres import execute, number
from harness.problems import assert_problem
from harness.server import Server
from harness.wait import until

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


# --- pause and resume -------------------------------------------------------------------------------------------------


def test_a_paused_queue_grants_nothing_and_all_else_goes_on(api: Api, queue: str) -> None:
    api.send(queue, *range(4))
    beaten, acked, nacked = (api.claim_one(queue)["receipt"] for _ in range(3))
    expiring = api.claim_one(queue, visibility_timeout=0.5)["message"]["id"]
    assert pause(api, queue)["paused"] is True
    (sent,) = api.send(queue, "later")
    assert [result["status"] for result in (*api.beat(beaten), *api.ack(acked), *api.nack(nacked))] == ["extended", "acked", "requeued"]
    until(lambda: api.message(expiring)["status"] == "pending")
    assert api.claim(queue, max_messages=10) == []
    assert resume(api, queue)["paused"] is False
    assert len(api.claim(queue, max_messages=10)) == 3
    assert api.message(sent)["status"] == "in_progress"


def test_pausing_and_resuming_answer_the_queue_and_may_be_repeated(api: Api, queue: str) -> None:
    for call, paused in ((pause, True), (resume, False)):
        first, read, again = map(without_figures, [call(api, queue), api.call("GET", f"/queues/{queue}"), call(api, queue)])
        assert first["paused"] is paused
        assert first == read == again


def test_pausing_changes_nothing_else(api: Api, dead_letters: str, queue: str) -> None:
    before = without_figures(api.put_queue(queue, dead_letter_queue=dead_letters, max_attempts=7, weights={"a": 2}, backoff={"initial": 3}))
    changed = {"paused": True, "updated_at": pause(api, queue)["updated_at"]}
    assert without_figures(api.call("GET", f"/queues/{queue}")) == before | changed


@pytest.mark.scar(20)
@pytest.mark.rule(11)
@pytest.mark.parametrize("way", ["resume", "put", "max_in_flight"])
@pytest.mark.parametrize("place", ["the same replica", "another replica"])
def test_a_claim_that_the_configuration_held_back_wakes_when_it_no_longer_does(
    replicas: tuple[Server, Server], way: str, place: str
) -> None:
    waiter = replicas[0]
    api = replicas[0 if place == "the same replica" else 1].api
    queue = f"{way}.{place.replace(' ', '-')}"
    api.put_queue(queue, paused=way != "max_in_flight", max_in_flight=1 if way == "max_in_flight" else None)
    api.send(queue, "held", "work")
    if way == "max_in_flight":
        waiter.api.claim_one(queue)
    assert waiter.api.claim(queue) == []
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waiter.api.claim, queue, wait=RARELY - 10)
        until(lambda: parked_on(waiter) == 1)
        match way:
            case "resume":
                resume(api, queue)
            case "put":
                api.put_queue(queue, paused=False)
            case "max_in_flight":
                api.put_queue(queue, max_in_flight=2)
        assert len(waiting.result()) == 1


# --- purge ------------------------------------------------------------------------------------------------------------


def test_a_purge_removes_what_waits_with_its_history_and_nothing_else(api: Api, queue: str, shared_database: str) -> None:
    ids = all_states(api, shared_database, queue)
    for status in ("pending", "in_progress"):
        execute(
            shared_database,
            "insert into checkpoint (shard, message_id, generation, kind, facts) values (0, $1, 1, 'nacked', '{}')",
            int(ids[status]),
        )
    assert purge(api, queue) == {"purged": 2, "more": False}
    left = [ids[status] for status in ids if status not in ("pending", "scheduled")]
    assert messages(api, queue) == sorted(left, key=int)
    for status in ("pending", "scheduled"):
        assert_problem(api.client.get(f"/messages/{ids[status]}"), 404, "message-not-found")
    assert number(shared_database, f"select count(*) from checkpoint where message_id = {ids['pending']}") == 0
    assert number(shared_database, f"select count(*) from checkpoint where message_id = {ids['in_progress']}") == 1
    assert purge(api, queue) == {"purged": 0, "more": False}


@pytest.mark.parametrize("status", ["scheduled", "pending", "completed", "failed", "cancelled"])
def test_a_purge_removes_the_states_asked_for(api: Api, queue: str, shared_database: str, status: str) -> None:
    ids = all_states(api, shared_database, queue)
    assert purge(api, queue, status, status) == {"purged": 1, "more": False}
    assert messages(api, queue) == sorted((each for name, each in ids.items() if name != status), key=int)


def test_leased_messages_cannot_even_be_asked_for(api: Api, queue: str) -> None:
    api.send(queue, "work")
    receipt = api.claim_one(queue)["receipt"]
    answer = api.client.post(f"/queues/{queue}/purge", json={"statuses": ["in_progress"]})
    assert [error["field"] for error in assert_problem(answer, 422, "invalid-request")["errors"]] == ["statuses.0"]
    assert purge(api, queue, "scheduled", "pending", "completed", "failed", "cancelled") == {"purged": 0, "more": False}
    assert [result["status"] for result in api.ack(receipt)] == ["acked"]


def test_a_purge_goes_through_any_number_and_leaves_other_queues_alone(
    api: Api, queue: str, dead_letters: str, shared_database: str
) -> None:
    fill(shared_database, queue, 1500)
    fill(shared_database, queue, 1500, status="scheduled")
    fill(shared_database, dead_letters, 3, source=queue)
    assert purge(api, queue) == {"purged": 3000, "more": False}
    assert messages(api, queue) == []
    assert len(messages(api, dead_letters)) == 3
    assert purge(api, dead_letters) == {"purged": 3, "more": False}


def test_a_purge_ends_however_fast_messages_come_in(start_server: Callable[..., Server], database_url: str) -> None:
    api = start_server().api
    fill(database_url, "default", 2500)
    execute(
        database_url,
        "create function refill() returns trigger language plpgsql as $$ begin "
        "insert into message (shard, queue_id, body, priority, status, fairness_key) "
        "select 0, id, '1', 0, 'pending', '' from queue cross join generate_series(1, 1000) where name = 'default'; return null; end $$",
    )
    execute(database_url, "create trigger refill after delete on message for each statement execute function refill()")
    purged = api.call("POST", "/queues/default/purge")["purged"]  # all, unless the machine stood still for as long as it goes on
    assert purged == 2500 - number(database_url, "select count(*) from message where body::text = '0'")
    assert number(database_url, "select count(*) from message where body::text = '1'") == 1000 * -(-purged // 1000)


@pytest.mark.parametrize("left_alone", [False, True])
async def test_a_purge_decides_when_it_has_the_message_in_hand(api: Api, queue: str, shared_database: str, left_alone: bool) -> None:
    _, taken, _ = api.send(queue, "first", "taken", "last")
    async with holding(shared_database, "select from message where id = $1 for update", int(taken)) as sql:
        with ThreadPoolExecutor(1) as pool:
            purging = pool.submit(purge, api, queue)
            await waiting_for_a_lock(sql, "with seen as")
            if not left_alone:
                await sql.execute("update message set status = 'cancelled', finished_at = now() where id = $1", int(taken))
            await sql.execute("commit")
            assert purging.result() == {"purged": 3 if left_alone else 2, "more": False}
    assert messages(api, queue) == ([] if left_alone else [taken])


@pytest.mark.rule(12)
async def test_a_call_that_falls_to_a_deadlock_is_carried_out_all_the_same(
    api: Api, queue: str, shared_database: str, sql: Connection
) -> None:
    """Another session locks the same messages in the other order, and Postgres ends the service's statement for it."""
    deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"
    fell, before = False, 0
    while not fell:
        first, second = (int(each) for each in api.send(queue, "first", "second"))
        before = await sql.fetchval(deadlocks)
        async with holding(shared_database, "select from message where id = $1 for update", second) as other:
            with ThreadPoolExecutor(1) as pool:
                purging = pool.submit(purge, api, queue)
                await waiting_for_a_lock(other, "with seen as")
                fell = await other_falls_to_a_deadlock(other, "select from message where id = $1 for update", first)
                await other.execute("commit")
                assert purging.result() == {"purged": 2, "more": False}
    async with asyncio.timeout(60):
        while await sql.fetchval(deadlocks) == before:  # noqa: ASYNC110 - statistics come late
            await asyncio.sleep(0.1)


@pytest.mark.scar(22)
@pytest.mark.parametrize("verb", ["purge", "redrive"])
async def test_a_call_whose_client_has_gone_ends_after_the_batch_in_hand(
    start_server: Callable[..., Server], database_url: str, verb: str
) -> None:
    server = start_server()
    server.api.put_queue("dead")
    await asyncio.to_thread(fill, database_url, "dead", 30_000, source="default")
    await asyncio.to_thread(
        execute,
        database_url,
        "create function hold_back() returns trigger language plpgsql as "
        "$$ begin perform pg_advisory_xact_lock(1); return coalesce(new, old); end $$",
    )
    row_by_row = "create trigger hold_back before update or delete on message for each row execute function hold_back()"
    await asyncio.to_thread(execute, database_url, row_by_row)
    body = json.dumps({}).encode()
    head = f"POST /queues/dead/{verb} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"

    def left() -> int:
        return number(database_url, "select count(*) from message join queue on queue.id = message.queue_id where queue.name = 'dead'")

    def at_rest() -> bool:
        before = left()
        time.sleep(1)
        return left() == before

    async with holding(database_url, "select pg_advisory_xact_lock(1)") as sql:
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(head.encode() + body)
            await waiting_for_a_lock(sql, "with seen as")
        assert server.api.client.get("/healthz").status_code == 200  # by now the server has heard that the client is gone
    await asyncio.to_thread(until, at_rest)
    assert await asyncio.to_thread(left) >= 29_000
