"""What operators do to a queue: pause, resume, purge, redrive."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import anyio
import anyio.to_thread
import asyncpg
import pytest
from harness.api import Api, Json
from harness.metrics import value
from harness.postgres import Databases, execute, number, waiting_for_a_lock
from harness.problems import assert_problem
from harness.server import Server
from harness.wait import until

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

RARELY = 30
"""A sweep interval, in seconds, that none of these tests lasts: whoever is served before that was woken."""


@pytest.fixture
def dead_letters(api: Api, queue: str) -> Iterator[str]:
    """A dead-letter queue, named as that of the test's queue."""
    name = f"{queue}.dead"
    api.put_queue(name)
    api.put_queue(queue, dead_letter_queue=name)
    yield name
    api.client.delete(f"/queues/{name}", params={"force": True})


@pytest.fixture(scope="module")
def replicas(postgres: Databases) -> Iterator[tuple[Server, Server]]:
    """Two servers on one database, whose parked claims are served because they are woken, not because they poll."""
    url = postgres.create()
    with Server(url, sweep_interval=RARELY) as one, Server(url, sweep_interval=RARELY) as other:
        yield one, other


def pause(api: Api, queue: str) -> Json:
    return api.call("POST", f"/queues/{queue}/pause")


def resume(api: Api, queue: str) -> Json:
    return api.call("POST", f"/queues/{queue}/resume")


def purge(api: Api, queue: str, *statuses: str) -> Json:
    return api.call("POST", f"/queues/{queue}/purge", {"statuses": statuses} if statuses else None)


def redrive(api: Api, queue: str, **options: Json) -> Json:
    return api.call("POST", f"/queues/{queue}/redrive", options or None)


def messages(api: Api, queue: str) -> list[str]:
    return [item["id"] for item in api.call("GET", f"/queues/{queue}/messages", params={"limit": 1000})["items"]]


def fill(url: str, queue: str, count: int, source: str | None = None, status: str = "pending") -> None:
    """Store messages that were never leased, as dead letters if they have a source."""
    execute(
        url,
        "insert into message (shard, queue_id, body, priority, status, fairness_key, source_queue, finished_at) "
        "select shard, id, '0', 0, $3, '', $4, case when $3 in ('completed', 'failed', 'cancelled') then now() end "
        "from queue cross join generate_series(1, $2::int) where name = $1",
        queue,
        count,
        status,
        source,
    )


def bury(url: str, dead_letters: str, source: str, *message_ids: str) -> None:
    """Move messages to a dead-letter queue as the last nack does."""
    execute(
        url,
        "update message set queue_id = (select id from queue where name = $1), source_queue = $2, status = 'pending', finished_at = null, "
        "ended_by = 'dead_lettered', reason = 'nacked', attempts_before = attempt_count where id = any($3)",
        dead_letters,
        source,
        [int(each) for each in message_ids],
    )


def parked_on(server: Server) -> int:
    return int(value(server.api, "leasebeat_parked_claims"))


def all_states(api: Api, url: str, queue: str) -> dict[str, str]:
    """Make one message in each state, and return their ids by state."""
    names = ("in_progress", "completed", "failed", "cancelled", "pending")
    ids = dict(zip(names, api.send(queue, *names), strict=True)) | {"scheduled": api.send(queue, "scheduled", delay=500)[0]}
    receipts = {lease["message"]["body"]: lease["receipt"] for lease in api.claim(queue, max_messages=4)}
    api.ack(receipts["completed"])
    api.nack(receipts["failed"], retryable=False)
    api.release(receipts["cancelled"])
    execute(url, "update message set status = 'cancelled', finished_at = now() where id = $1", int(ids["cancelled"]))
    assert {status: api.message(each)["status"] for status, each in ids.items()} == {status: status for status in ids}
    return ids


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
        first = call(api, queue)
        assert first["paused"] is paused
        assert first == api.call("GET", f"/queues/{queue}") == call(api, queue)


def test_pausing_changes_nothing_else(api: Api, dead_letters: str, queue: str) -> None:
    before = api.put_queue(queue, dead_letter_queue=dead_letters, max_attempts=7, weights={"a": 2}, backoff={"initial": 3})
    changed = {"paused": True, "updated_at": pause(api, queue)["updated_at"]}
    assert api.call("GET", f"/queues/{queue}") == before | changed


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
    assert purge(api, "default") == {"purged": 2500, "more": False}
    assert number(database_url, "select count(*) from message where body::text = '1'") == 3000


async def test_a_purge_waits_for_nobody_and_leaves_what_is_in_other_hands(api: Api, queue: str, sql: Connection) -> None:
    taken, free = api.send(queue, "taken", "free")
    async with sql.transaction():
        await sql.execute("select from message where id = $1 for update", int(taken))
        assert purge(api, queue) == {"purged": 1, "more": False}
    assert messages(api, queue) == [taken]
    assert_problem(api.client.get(f"/messages/{free}"), 404, "message-not-found")


@pytest.mark.scar(22)
@pytest.mark.parametrize("verb", ["purge", "redrive"])
def test_a_call_whose_client_has_gone_ends_after_the_batch_in_hand(
    start_server: Callable[..., Server], database_url: str, verb: str
) -> None:
    server = start_server()
    server.api.put_queue("dead")
    fill(database_url, "dead", 20_000, source="default")
    execute(database_url, "create function slow() returns trigger as 'begin perform pg_sleep(0.2); return null; end' language plpgsql")
    execute(database_url, "create trigger slow before update or delete on message for each statement execute function slow()")
    body = json.dumps({}).encode()
    head = f"POST /queues/dead/{verb} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"

    def left() -> int:
        return number(database_url, "select count(*) from message join queue on queue.id = message.queue_id where queue.name = 'dead'")

    def at_rest() -> bool:
        before = left()
        time.sleep(1)
        return left() == before

    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head.encode() + body)
        until(lambda: left() < 20_000)
    until(at_rest)
    assert left() > 10_000


# --- redrive ----------------------------------------------------------------------------------------------------------


@pytest.mark.scar(51)
def test_a_redriven_message_has_a_fresh_budget_and_all_else_as_it_was(
    api: Api, queue: str, dead_letters: str, shared_database: str
) -> None:
    facts: Json = {"headers": {"a": "b"}, "priority": 7, "fairness_key": "tenant", "work_type": "w", "task_id": "t", "max_attempts": 2}
    (message_id,) = api.send(queue, {"file": "a.wav"}, **facts)
    for worker in ("one", "two"):
        receipt = api.claim_one(queue, worker)["receipt"]
        api.beat(receipt, progress=5, detail={"step": worker})
        api.nack(receipt, error=f"said {worker}")
    bury(shared_database, dead_letters, queue, message_id)
    execute(shared_database, "update message set unconfirmed_count = 20, failed_workers = '{one,two}' where id = $1", int(message_id))
    before, history = api.message(message_id), api.checkpoints(message_id)
    assert (before["queue"], before["attempt_count"], before["source_queue"], len(history)) == (dead_letters, 2, queue, 2)
    assert redrive(api, dead_letters) == {"redriven": 1, "more": False}
    after = api.message(message_id)
    fresh = {"queue": queue, "attempt_count": 0, "source_queue": None, "reason": None, "available_at": after["available_at"]}
    assert after == before | fresh
    assert after["available_at"] > before["available_at"]
    assert api.checkpoints(message_id) == history
    assert number(shared_database, f"select unconfirmed_before + attempts_before from message where id = {message_id}") == 20
    lease = api.claim_one(queue)
    assert (lease["attempt"], lease["generation"], lease["message"]["detail"]) == (1, 3, {"step": "two"})
    assert [result["status"] for result in api.nack(lease["receipt"], error="again")] == ["requeued"]


@pytest.mark.scar(51)
@pytest.mark.rule(9)
@pytest.mark.parametrize("cause", ["nack", "not retryable", "expiry"])
def test_a_message_that_was_given_up_can_be_sent_back_and_completed(api: Api, queue: str, dead_letters: str, cause: str) -> None:
    api.put_queue(queue, dead_letter_queue=dead_letters, max_attempts=1)
    (message_id,) = api.send(queue, "work", priority=3)
    receipt = api.claim_one(queue, visibility_timeout=0.5 if cause == "expiry" else 300)["receipt"]
    if cause != "expiry":
        assert [result["status"] for result in api.nack(receipt, retryable=cause == "nack", delay=0)] == ["dead_lettered"]
    until(lambda: api.message(message_id)["queue"] == dead_letters)
    assert api.message(message_id)["source_queue"] == queue
    assert redrive(api, dead_letters) == {"redriven": 1, "more": False}
    message = api.message(message_id)
    assert (message["queue"], message["status"], message["attempt_count"], message["priority"]) == (queue, "pending", 0, 3)
    assert [result["status"] for result in api.ack(api.claim_one(queue)["receipt"])] == ["acked"]


@pytest.mark.scar(51)
def test_dead_letters_that_wait_or_failed_are_sent_back_and_no_others(
    api: Api, queue: str, dead_letters: str, shared_database: str
) -> None:
    ids = all_states(api, shared_database, dead_letters)
    execute(shared_database, "update message set source_queue = $2 where id = any($1)", [int(each) for each in ids.values()], queue)
    assert redrive(api, dead_letters) == {"redriven": 3, "more": False}
    moved = [ids[status] for status in ("scheduled", "pending", "failed")]
    assert messages(api, queue) == sorted(moved, key=int)
    assert {api.message(each)["status"] for each in moved} == {"pending"}
    stayed = {status: each for status, each in ids.items() if each not in moved}
    assert {status: api.message(each)["status"] for status, each in stayed.items()} == {status: status for status in stayed}
    assert len(api.claim(queue, max_messages=10)) == 3


@pytest.mark.scar(51)
def test_each_goes_to_where_it_came_from_and_one_whose_queue_is_gone_stays(api: Api, queue: str, shared_database: str) -> None:
    dead = f"{queue}.all-dead"
    for each in (dead, f"{queue}.1", f"{queue}.2"):
        api.put_queue(each)
    fill(shared_database, dead, 1500, source=f"{queue}.gone")
    fill(shared_database, dead, 2, source=f"{queue}.1")
    fill(shared_database, dead, 3, source=f"{queue}.2")
    assert redrive(api, dead) == {"redriven": 5, "more": False}
    assert [len(messages(api, f"{queue}.{each}")) for each in (1, 2)] == [2, 3]
    fill(shared_database, dead, 1, source=f"{queue}.1")
    assert redrive(api, dead, limit=1) == {"redriven": 1, "more": False}
    api.put_queue(f"{queue}.gone")
    assert redrive(api, dead) == {"redriven": 1500, "more": False}
    for each in (dead, f"{queue}.1", f"{queue}.2", f"{queue}.gone"):
        api.call("DELETE", f"/queues/{each}", params={"force": True}, expect=204)


def test_failed_messages_that_came_from_nowhere_else_are_tried_again_here(api: Api, queue: str, shared_database: str) -> None:
    ids = all_states(api, shared_database, queue)
    before = api.message(ids["pending"])
    assert redrive(api, queue) == {"redriven": 1, "more": False}
    failed = api.message(ids["failed"])
    assert (failed["status"], failed["attempt_count"], failed["finished_at"], failed["queue"]) == ("pending", 0, None, queue)
    assert api.message(ids["pending"]) == before
    assert api.message(ids["scheduled"])["status"] == "scheduled"
    assert len(api.claim(queue, max_messages=10)) == 2


def test_all_that_wait_go_to_another_queue_if_one_is_named(api: Api, queue: str, dead_letters: str, shared_database: str) -> None:
    ids = all_states(api, shared_database, dead_letters)
    fill(shared_database, dead_letters, 1, source=f"{queue}.gone")
    assert redrive(api, dead_letters, to=queue) == {"redriven": 4, "more": False}
    assert len(messages(api, queue)) == 4
    assert {status for status, each in ids.items() if api.message(each)["queue"] == queue} == {"pending", "scheduled", "failed"}


def test_a_queue_is_not_redriven_to_itself(api: Api, queue: str, shared_database: str) -> None:
    fill(shared_database, queue, 1, status="failed")
    problem = assert_problem(api.client.post(f"/queues/{queue}/redrive", json={"to": queue}), 422, "invalid-request")
    assert [error["field"] for error in problem["errors"]] == ["to"]
    assert api.claim(queue) == []


@pytest.mark.parametrize("limit", [1, 999, 1000, 1001, 2500])
def test_a_limit_is_kept_to_the_message_and_the_oldest_come_first(
    api: Api, queue: str, dead_letters: str, shared_database: str, limit: int
) -> None:
    for status in ("pending", "failed", "scheduled"):
        fill(shared_database, dead_letters, 700, source=queue, status=status)
    there = min(limit, 2100)
    assert redrive(api, dead_letters, limit=limit) == {"redriven": there, "more": False}
    moved = f"select {{}} from message join queue on queue.id = message.queue_id where queue.name = '{queue}'"
    assert number(shared_database, moved.format("count(*)")) == there
    oldest = f"(select id from message join queue on queue.id = message.queue_id where queue.name = '{dead_letters}' order by 1 limit 1)"
    left = number(shared_database, moved.format("max(message.id)"))
    assert there == 2100 or left < number(shared_database, oldest.replace("select id", "select message.id"))


@pytest.mark.scar(51)
def test_two_redrives_at_once_send_each_message_once(api: Api, queue: str, dead_letters: str, shared_database: str) -> None:
    fill(shared_database, dead_letters, 5000, source=queue)
    with ThreadPoolExecutor(3) as pool:
        counts = [each["redriven"] for each in pool.map(lambda _: redrive(api, dead_letters), range(3))]
    counts.append(redrive(api, dead_letters)["redriven"])
    assert sum(counts) == 5000
    assert messages(api, dead_letters) == []


async def test_a_redrive_waits_for_nobody_and_leaves_what_is_in_other_hands(
    api: Api, queue: str, dead_letters: str, shared_database: str, sql: Connection
) -> None:
    await anyio.to_thread.run_sync(fill, shared_database, dead_letters, 3, queue)
    taken = messages(api, dead_letters)[1]
    async with sql.transaction():
        await sql.execute("select from message where id = $1 for update", int(taken))
        assert redrive(api, dead_letters) == {"redriven": 2, "more": False}
    assert messages(api, dead_letters) == [taken]


async def test_a_message_that_is_leased_under_a_redrive_stays_with_its_holder(
    start_server: Callable[..., Server], database_url: str
) -> None:
    """The message is picked as ready, and leased before it can be locked: what decides is the row as locked."""
    api = start_server().api
    api.put_queue("dead")
    await anyio.to_thread.run_sync(fill, database_url, "dead", 1, "default")
    connection = await asyncpg.connect(database_url)
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("select from queue where name = 'default' for update")
    with ThreadPoolExecutor(1) as pool:
        redriving = pool.submit(redrive, api, "dead")
        await waiting_for_a_lock(connection, "with seen as")
        lease = api.claim_one("dead")
        await transaction.rollback()
        assert redriving.result() == {"redriven": 0, "more": False}
    await connection.close()
    assert api.message(lease["message"]["id"])["queue"] == "dead"
    assert [result["status"] for result in api.ack(lease["receipt"])] == ["acked"]


async def test_no_message_is_sent_to_a_queue_that_is_being_deleted(
    api: Api, queue: str, dead_letters: str, shared_database: str, sql: Connection
) -> None:
    await anyio.to_thread.run_sync(fill, shared_database, dead_letters, 2, f"{queue}.doomed")
    api.put_queue(f"{queue}.doomed")
    transaction = sql.transaction()
    await transaction.start()
    await sql.execute("delete from queue where name = $1", f"{queue}.doomed")
    with ThreadPoolExecutor(1) as pool:
        redriving = pool.submit(redrive, api, dead_letters)
        await waiting_for_a_lock(sql, "with seen as")
        await transaction.commit()
        assert redriving.result() == {"redriven": 0, "more": False}
    assert len(messages(api, dead_letters)) == 2


@pytest.mark.scar(20)
@pytest.mark.rule(11)
@pytest.mark.parametrize("place", ["the same replica", "another replica"])
def test_a_redrive_wakes_a_parked_claim(replicas: tuple[Server, Server], place: str) -> None:
    waiter = replicas[0]
    api = replicas[0 if place == "the same replica" else 1].api
    queue = f"redriven.{place.replace(' ', '-')}"
    api.put_queue(queue)
    api.send(queue, "work")
    api.nack(api.claim_one(queue)["receipt"], retryable=False)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waiter.api.claim, queue, wait=RARELY - 10)
        until(lambda: parked_on(waiter) == 1)
        redrive(api, queue)
        assert [lease["message"]["body"] for lease in waiting.result()] == ["work"]
