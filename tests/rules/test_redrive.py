"""Redrive: dead letters go back with a fresh budget, and all else as it was."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import anyio
import anyio.to_thread
import asyncpg
import pytest
from harness.api import Api, Json
from harness.holding import holding, waiting_for_a_lock
from harness.operating import RARELY, all_states, bury, fill, messages, parked_on, redrive
from harness.postgres import execute, number
from harness.problems import assert_problem
from harness.server import Server
from harness.wait import until

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


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
async def test_a_message_that_is_sent_on_as_its_queue_is_deleted_stays(start_server: Callable[..., Server], database_url: str) -> None:
    """The deleted queue's messages are removed while the redrive of one of them is not committed yet."""
    api = start_server().api
    api.put_queue("dead")
    kept, _ = api.send("dead", "kept", "doomed")
    async with holding(
        database_url, "update message set queue_id = (select id from queue where name = 'default') where id = $1", int(kept)
    ) as sql:
        api.call("DELETE", "/queues/dead", params={"force": True}, expect=204)
        await waiting_for_a_lock(sql, "with gone as")
        await sql.execute("commit")
        async with asyncio.timeout(60):
            while await sql.fetchval("select count(*) from deleted_queue"):  # noqa: ASYNC110 - nothing tells when it is through
                await asyncio.sleep(0.05)
        assert [row["id"] for row in await sql.fetch("select id from message")] == [int(kept)]
    assert api.claim_one("default")["message"]["id"] == kept


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


@pytest.mark.parametrize("left_alone", [False, True])
async def test_a_redrive_decides_when_it_has_the_message_in_hand(
    api: Api, queue: str, dead_letters: str, shared_database: str, left_alone: bool
) -> None:
    await anyio.to_thread.run_sync(fill, shared_database, dead_letters, 3, queue)
    first, taken, last = messages(api, dead_letters)
    async with holding(shared_database, "select from message where id = $1 for update", int(taken)) as sql:
        with ThreadPoolExecutor(1) as pool:
            redriving = pool.submit(redrive, api, dead_letters)
            await waiting_for_a_lock(sql, "with seen as")
            if not left_alone:
                await sql.execute("update message set status = 'cancelled', finished_at = now() where id = $1", int(taken))
            await sql.execute("commit")
            assert redriving.result() == {"redriven": 3 if left_alone else 2, "more": False}
    assert messages(api, queue) == ([first, taken, last] if left_alone else [first, last])


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
