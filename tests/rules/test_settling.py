"""Ack is final, attempts are honest, and a call that is repeated answers as it did."""

import time
from concurrent.futures import ThreadPoolExecutor

import asyncpg
import pytest
from harness.api import Api
from harness.holding import holding, waiting_for_a_lock
from harness.postgres import RunOut
from harness.wait import until


@pytest.mark.rule(6)
def test_an_ack_completes_the_message_for_good(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, "work")
    receipt = api.claim_one(queue)["receipt"]
    assert api.ack(receipt, output={"n": 1}) == [{"receipt": receipt, "status": "acked", "late": False}]
    message = api.message(message_id)
    assert (message["status"], message["output"], message["attempt_count"], message["error"]) == ("completed", {"n": 1}, 0, None)
    assert message["finished_at"] is not None
    assert api.claim(queue) == []


@pytest.mark.rule(6)
def test_a_repeated_ack_answers_the_same_and_keeps_the_first_result(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, "work")
    receipt = api.claim_one(queue)["receipt"]
    answers = [api.ack(receipt, output=n)[0] for n in (1, 2, 3)]
    assert answers == [{"receipt": receipt, "status": "acked", "late": False}] * 3
    assert api.message(message_id)["output"] == 1


@pytest.mark.rule(6)
def test_concurrent_acks_of_one_lease_are_all_answered_acked(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, "work")
    receipt = api.claim_one(queue)["receipt"]
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda n: api.ack(receipt, output=n)[0]["status"], range(10)))
    assert answers == ["acked"] * 10
    assert api.message(message_id)["status"] == "completed"


@pytest.mark.rule(6)
def test_a_late_ack_is_accepted_while_nobody_else_has_leased_the_message(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, "work")
    receipt = api.claim_one(queue, visibility_timeout=0.05)["receipt"]
    until(lambda: api.message(message_id)["status"] == "pending")
    assert api.ack(receipt, output="done") == [{"receipt": receipt, "status": "acked", "late": True}]
    assert api.ack(receipt) == [{"receipt": receipt, "status": "acked", "late": True}]
    message = api.message(message_id)
    assert (message["status"], message["output"], message["expired_count"]) == ("completed", "done", 1)
    assert api.claim(queue) == []


@pytest.mark.rule(3, 6)
def test_an_ack_of_a_lease_that_ran_out_and_is_not_reclaimed_is_late(api: Api, queue: str, run_out: RunOut) -> None:
    (message_id,) = api.send(queue, "work")
    receipt = api.claim_one(queue)["receipt"]
    run_out(message_id)
    assert api.ack(receipt) == [{"receipt": receipt, "status": "acked", "late": True}]
    assert api.message(message_id)["expired_count"] == 0


@pytest.mark.rule(6)
def test_a_late_ack_is_accepted_even_after_the_message_was_given_up_for_running_out(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, "work", max_attempts=1)
    receipt = api.claim_one(queue, visibility_timeout=0.05)["receipt"]
    until(lambda: api.message(message_id)["status"] == "failed")
    assert api.ack(receipt, output="done")[0] == {"receipt": receipt, "status": "acked", "late": True}
    assert api.message(message_id)["status"] == "completed"


@pytest.mark.rule(6)
def test_a_nack_after_the_ack_changes_nothing(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, "work")
    receipt = api.claim_one(queue)["receipt"]
    api.ack(receipt, output=1)
    before = api.message(message_id)
    assert api.nack(receipt)[0]["status"] == "settled"
    assert api.release(receipt)[0]["status"] == "settled"
    assert api.message(message_id) == before


@pytest.mark.rule(9)
def test_a_nack_counts_an_attempt_and_the_last_one_gives_the_message_up(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, "work", max_attempts=2)
    first = api.claim_one(queue)
    assert first["attempt"] == 1
    assert api.nack(first["receipt"], error="once")[0]["status"] == "requeued"
    second = api.claim_one(queue)
    assert (second["attempt"], second["message"]["attempt_count"]) == (2, 1)
    assert api.nack(second["receipt"], error="twice")[0]["status"] == "failed"
    message = api.message(message_id)
    assert (message["status"], message["error"], message["attempt_count"], message["failed_count"]) == ("failed", "twice", 2, 2)
    assert [(each["kind"], each["facts"]["will_retry"]) for each in api.checkpoints(message_id)] == [
        ("error_boundary", False),
        ("error_boundary", True),
    ]


@pytest.mark.rule(9)
def test_a_nack_that_is_not_retryable_gives_the_message_up_at_once(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, "work")
    assert api.nack(api.claim_one(queue)["receipt"], error="never", retryable=False)[0]["status"] == "failed"
    assert api.message(message_id)["status"] == "failed"


@pytest.mark.rule(9)
def test_a_nack_with_a_delay_waits_it_out(api: Api, queue: str) -> None:
    long_id, short_id = api.send(queue, "long", "short")
    long, short = (lease["receipt"] for lease in api.claim(queue, max_messages=2))
    api.nack(long, delay=60)
    assert api.message(long_id)["status"] == "scheduled"
    assert api.claim(queue) == []
    start = time.monotonic()
    api.nack(short, delay=0.3)
    again = api.claim_one(queue, wait=40)
    assert time.monotonic() - start >= 0.3
    assert (again["message"]["id"], again["attempt"]) == (short_id, 2)
    assert api.message(long_id)["status"] == "scheduled"


@pytest.mark.rule(9)
def test_repeated_nacks_and_releases_answer_the_same_and_count_once(api: Api, queue: str) -> None:
    nacked_id, released_id, failed_id = api.send(queue, 1, 2, 3)
    nacked, released, failed = (lease["receipt"] for lease in api.claim(queue, max_messages=3))
    assert [api.nack(nacked, delay=60)[0]["status"] for _ in range(3)] == ["requeued"] * 3
    assert [api.release(released)[0]["status"] for _ in range(3)] == ["released"] * 3
    assert [api.nack(failed, retryable=False)[0]["status"] for _ in range(3)] == ["failed"] * 3
    assert api.message(nacked_id)["attempt_count"] == 1
    assert api.message(failed_id)["attempt_count"] == 1
    assert api.message(released_id)["released_count"] == 1


@pytest.mark.scar(32)
@pytest.mark.rule(9)
def test_a_release_is_not_an_attempt(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, "work", max_attempts=1)
    for _ in range(3):
        lease = api.claim_one(queue)
        assert lease["attempt"] == 1
        assert api.release(lease["receipt"])[0]["status"] == "released"
    message = api.message(message_id)
    assert (message["status"], message["attempt_count"], message["released_count"]) == ("pending", 0, 3)


@pytest.mark.scar(30)
@pytest.mark.rule(9)
def test_workers_that_die_without_a_word_use_up_the_attempts(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, "poison", max_attempts=2)
    for attempt in (1, 2):
        assert api.claim_one(queue, f"victim-{attempt}", visibility_timeout=0.05, wait=40)["attempt"] == attempt
    message = until(lambda: (found := api.message(message_id))["status"] == "failed" and found)
    assert (message["attempt_count"], message["expired_count"], message["error"]) == (2, 2, "Max retries exceeded")
    history = api.checkpoints(message_id)
    assert [(each["kind"], each["facts"]["worker_id"], each["facts"]["will_retry"]) for each in history] == [
        ("error_boundary", "victim-2", False),
        ("error_boundary", "victim-1", True),
    ]


@pytest.mark.scar(31)
@pytest.mark.rule(9, 14)
def test_an_unconfirmed_delivery_is_not_an_attempt_but_has_a_cap_of_its_own(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, "work", max_attempts=1)
    for _ in range(20):
        api.claim_one(queue, confirm_within=0.01, wait=40)
    message = until(lambda: (found := api.message(message_id))["status"] == "failed" and found)
    assert (message["attempt_count"], message["unconfirmed_count"], message["error"]) == (0, 20, "Never confirmed")


@pytest.mark.scar(34)
@pytest.mark.rule(10)
async def test_counters_saturate(api: Api, queue: str, sql: "asyncpg.Connection[asyncpg.Record]") -> None:
    most = 2**31 - 1
    ids = api.send(queue, 1, 2, 3, max_attempts=5)
    await sql.execute(
        "update message set attempt_count = $1, nacked_count = $1, expired_count = $1, released_count = $1, unconfirmed_count = $1 "
        "where id = any($2)",
        most,
        [int(each) for each in ids],
    )
    nacked, released = (lease["receipt"] for lease in api.claim(queue, max_messages=2))
    api.claim_one(queue, visibility_timeout=0.05)
    assert api.nack(nacked)[0]["status"] == "failed"
    assert api.release(released)[0]["status"] == "released"
    until(lambda: api.message(ids[2])["status"] == "failed")
    assert [api.message(each)["attempt_count"] for each in ids] == [most] * 3
    assert api.message(ids[1])["released_count"] == most
    assert api.message(ids[2])["expired_count"] == most


async def test_a_message_that_is_being_removed_leaves_no_late_report_behind(api: Api, queue: str, shared_database: str) -> None:
    (message_id,) = api.send(queue, "work")
    receipt = api.claim_one(queue)["receipt"]
    api.call("POST", f"/messages/{message_id}/cancel", {})
    with ThreadPoolExecutor(1) as pool:
        async with holding(shared_database, "delete from message where id = $1", int(message_id)) as sql:
            late = pool.submit(api.ack, receipt)
            await waiting_for_a_lock(sql, "late_report")
            await sql.execute("commit; begin")
        assert late.result()[0]["status"] == "cancelled"
    connection = await asyncpg.connect(shared_database)
    assert await connection.fetchval("select count(*) from checkpoint where message_id = $1", int(message_id)) == 0
    await connection.close()
