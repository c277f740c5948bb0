"""Attempts, backoff, and what becomes of messages that are given up."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import asyncpg
import pytest
from harness.api import Api, Json
from harness.holding import holding, waiting_for_a_lock
from harness.operating import RARELY, redrive
from harness.server import Server
from harness.wait import until

LONG = 40


def fail(api: Api, queue: str, **options: Json) -> str:
    """Lease one message, nack it, and return the answer's word."""
    return str(api.nack(api.claim_one(queue, wait=LONG)["receipt"], **options)[0]["status"])


def run_out(api: Api, queue: str, worker_id: str = "worker") -> None:
    api.claim_one(queue, worker_id, wait=LONG, visibility_timeout=0.05)


async def wait_of(sql: "asyncpg.Connection[asyncpg.Record]", message_id: str) -> float:
    """Return how long the message waits from its last change on, in seconds, as the database has it."""
    return float(
        await sql.fetchval(
            "select extract(epoch from available_at - (select max(created_at) from checkpoint where message_id = $1)) "
            "from message where id = $1",
            int(message_id),
        )
    )


@pytest.mark.rule(9)
async def test_backoff_grows_by_its_factor_up_to_its_maximum(api: Api, queue: str, sql: "asyncpg.Connection[asyncpg.Record]") -> None:
    api.put_queue(queue, max_attempts=10, backoff={"initial": 100, "factor": 3, "max": 1000, "jitter": False})
    (message_id,) = api.send(queue, "work")
    for wait in (100, 300, 900, 1000, 1000):
        assert fail(api, queue) == "requeued"
        assert api.message(message_id)["status"] == "scheduled"
        assert await wait_of(sql, message_id) == pytest.approx(wait)
        await sql.execute("update message set available_at = now() where id = $1", int(message_id))


@pytest.mark.rule(9)
async def test_jitter_takes_a_random_part_of_the_wait(api: Api, queue: str, sql: "asyncpg.Connection[asyncpg.Record]") -> None:
    api.put_queue(queue, backoff={"initial": 1000, "factor": 1, "max": 1000})
    ids = api.send(queue, *range(100))
    api.nack(*(lease["receipt"] for lease in api.claim(queue, max_messages=100)))
    waits = sorted([await wait_of(sql, message_id) for message_id in ids])
    assert waits[0] >= 0
    assert waits[-1] <= 1000
    # The chance that a hundred random parts all miss a tenth is below 1 in 30,000.
    assert waits[0] < 100
    assert waits[-1] > 900


@pytest.mark.rule(9)
async def test_an_expiry_backs_off_like_a_nack(api: Api, queue: str, sql: "asyncpg.Connection[asyncpg.Record]") -> None:
    api.put_queue(queue, backoff={"initial": 500, "factor": 2, "max": 900, "jitter": False})
    (message_id,) = api.send(queue, "work")
    run_out(api, queue)
    until(lambda: api.message(message_id)["status"] == "scheduled")
    assert await wait_of(sql, message_id) == pytest.approx(500)


@pytest.mark.rule(8, 9)
def test_a_message_comes_back_when_its_backoff_is_over(api: Api, queue: str) -> None:
    api.put_queue(queue, backoff={"initial": 2, "jitter": False})
    api.send(queue, "work")
    began = time.monotonic()
    fail(api, queue)
    assert api.claim_one(queue, wait=LONG)["attempt"] == 2
    assert time.monotonic() - began >= 2


@pytest.mark.rule(9)
async def test_a_nack_with_a_delay_of_its_own_waits_that_long(api: Api, queue: str, sql: "asyncpg.Connection[asyncpg.Record]") -> None:
    api.put_queue(queue, backoff={"initial": 500, "jitter": False}, max_attempts=10)
    (message_id,) = api.send(queue, "work")
    fail(api, queue, delay=40)
    assert await wait_of(sql, message_id) == pytest.approx(40)
    await sql.execute("update message set available_at = now() where id = $1", int(message_id))
    fail(api, queue, delay=0)
    assert api.message(message_id)["status"] == "pending"


@pytest.mark.scar(34)
@pytest.mark.rule(10)
async def test_a_backoff_of_many_attempts_stays_at_its_maximum(api: Api, queue: str, sql: "asyncpg.Connection[asyncpg.Record]") -> None:
    api.put_queue(queue, max_attempts=1_000_000, backoff={"initial": 31_536_000, "factor": 10, "max": 31_536_000, "jitter": False})
    (message_id,) = api.send(queue, "work")
    await sql.execute("update message set attempt_count = 999000 where id = $1", int(message_id))
    assert fail(api, queue) == "requeued"
    assert await wait_of(sql, message_id) == pytest.approx(31_536_000)


@pytest.mark.rule(9)
def test_the_message_s_own_limit_of_attempts_goes_before_the_queue_s(api: Api, queue: str) -> None:
    api.put_queue(queue, max_attempts=1)
    api.send(queue, "work", max_attempts=2)
    assert [fail(api, queue), fail(api, queue)] == ["requeued", "failed"]


@pytest.mark.rule(9)
def test_each_cause_has_its_counter(api: Api, queue: str) -> None:
    api.put_queue(queue, max_attempts=10)
    (message_id,) = api.send(queue, "work")
    for _ in range(2):
        fail(api, queue)
    run_out(api, queue)
    api.release(api.claim_one(queue, wait=LONG)["receipt"])
    api.claim_one(queue, wait=LONG, confirm_within=0.05)
    api.claim_one(queue, wait=LONG)
    message = api.message(message_id)
    counters = ("attempt_count", "failed_count", "expired_count", "released_count", "unconfirmed_count")
    assert [message[name] for name in counters] == [3, 2, 1, 1, 1]


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ({"error": "no"}, "nacked"),
        ({"error": "no", "retryable": False}, "not_retryable"),
    ],
)
def test_a_failed_message_tells_its_reason(api: Api, queue: str, end: Json, reason: str) -> None:
    (message_id,) = api.send(queue, "work", max_attempts=1)
    assert api.message(message_id)["reason"] is None
    assert fail(api, queue, **end) == "failed"
    message = api.message(message_id)
    assert (message["reason"], message["error"], message["failed_workers"]) == (reason, "no", ["worker"])


@pytest.mark.scar(30)
@pytest.mark.rule(9)
def test_a_message_that_kills_its_workers_is_given_up_with_their_names(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, "poison", max_attempts=3)
    for n in range(3):
        run_out(api, queue, f"victim-{n}")
    message = until(lambda: (found := api.message(message_id))["status"] == "failed" and found)
    assert (message["reason"], message["failed_workers"]) == ("lease_expired", ["victim-0", "victim-1", "victim-2"])
    assert message["error"] == "Max retries exceeded"


@pytest.mark.scar(37)
def test_a_message_remembers_its_last_twenty_failed_workers(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, "work", max_attempts=1000)
    for n in range(25):
        api.nack(api.claim_one(queue, f"worker-{n}")["receipt"])
    assert api.message(message_id)["failed_workers"] == [f"worker-{n}" for n in range(5, 25)]


def test_a_late_ack_clears_the_reason(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, "work", max_attempts=1)
    receipt = api.claim_one(queue, visibility_timeout=0.05)["receipt"]
    until(lambda: api.message(message_id)["status"] == "failed")
    assert api.ack(receipt)[0]["status"] == "acked"
    assert (api.message(message_id)["status"], api.message(message_id)["reason"]) == ("completed", None)


@pytest.fixture
def graves(api: Api, queue: str) -> Iterator[str]:
    """A dead-letter queue for `queue`, which gives messages up at their second attempt."""
    name = f"{queue}-dead"
    api.put_queue(name, max_attempts=2)
    api.put_queue(queue, max_attempts=2, dead_letter_queue=name)
    yield name
    api.client.delete(f"/queues/{name}", params={"force": True})


OPTIONS = {"priority": 7, "fairness_key": "tenant", "headers": {"lang": "en"}, "work_type": "type", "task_id": "task", "dedup_key": "key"}


def test_a_message_that_is_given_up_moves_to_the_dead_letter_queue(api: Api, queue: str, graves: str) -> None:
    (message_id,) = api.send(queue, {"n": 1}, **OPTIONS)
    receipts = []
    for word in ("requeued", "dead_lettered"):
        receipts.append(api.claim_one(queue)["receipt"])
        assert api.nack(receipts[-1], error="broken")[0]["status"] == word
    message = api.message(message_id)
    assert (message["queue"], message["status"], message["source_queue"], message["reason"]) == (graves, "pending", queue, "nacked")
    assert {name: message[name] for name in OPTIONS} == OPTIONS
    assert (message["body"], message["error"], message["attempt_count"], message["failed_count"]) == ({"n": 1}, "broken", 2, 2)
    assert [each["reason"] for each in api.checkpoints(message_id)] == ["nacked", "nacked"]
    assert api.claim(queue) == []
    # Repeated, the nack answers as it did; beaten for, the lease is over.
    assert api.nack(receipts[-1])[0]["status"] == "dead_lettered"
    assert api.beat(receipts[-1])[0]["status"] == "settled"
    lease = api.claim_one(graves)
    assert (lease["message"]["id"], lease["message"]["source_queue"], lease["attempt"]) == (message_id, queue, 1)


@pytest.mark.scar(30)
def test_a_message_whose_workers_die_moves_there_too(api: Api, queue: str, graves: str) -> None:
    (message_id,) = api.send(queue, "poison")
    for n in range(2):
        run_out(api, queue, f"victim-{n}")
    message = until(lambda: (found := api.message(message_id))["queue"] == graves and found)
    assert (message["status"], message["reason"], message["source_queue"]) == ("pending", "lease_expired", queue)
    assert message["failed_workers"] == ["victim-0", "victim-1"]


def test_a_dead_letter_wakes_who_waits_at_its_queue(start_server: Callable[..., Server]) -> None:
    one, two = (start_server(sweep_interval=RARELY).api for _ in range(2))
    one.put_queue("dead")
    one.put_queue("work", max_attempts=1, dead_letter_queue="dead")
    one.send("work", 1)
    one.claim_one("work", visibility_timeout=1)
    assert two.claim_one("dead", wait=LONG)["message"]["source_queue"] == "work"


def test_a_dead_letter_has_attempts_of_its_own(api: Api, queue: str, graves: str) -> None:
    (message_id,) = api.send(queue, "work")
    fail(api, queue)
    fail(api, queue)
    assert fail(api, graves) == "requeued"
    assert fail(api, graves) == "failed"
    message = api.message(message_id)
    assert (message["status"], message["attempt_count"], message["failed_count"], message["source_queue"]) == ("failed", 4, 4, queue)


def test_a_late_ack_of_a_dead_letter_completes_it(api: Api, queue: str, graves: str) -> None:
    (message_id,) = api.send(queue, "work", max_attempts=1)
    receipt = api.claim_one(queue, visibility_timeout=0.05)["receipt"]
    until(lambda: api.message(message_id)["queue"] == graves)
    assert api.beat(receipt)[0]["status"] == "expired"
    assert api.ack(receipt, output="done")[0] == {"receipt": receipt, "status": "acked", "late": True}
    assert api.message(message_id)["status"] == "completed"
    assert api.claim(graves) == []


def test_without_its_dead_letter_queue_a_message_fails_in_place(api: Api, queue: str, graves: str) -> None:
    (message_id,) = api.send(queue, "work", max_attempts=1)
    api.call("DELETE", f"/queues/{graves}?force=true", expect=204)
    assert fail(api, queue) == "failed"
    assert (api.message(message_id)["queue"], api.message(message_id)["status"]) == (queue, "failed")


@pytest.mark.scar(51)
def test_a_redriven_message_has_a_fresh_budget_and_all_else(api: Api, queue: str, graves: str) -> None:
    (message_id,) = api.send(queue, {"n": 1}, **OPTIONS)
    fail(api, queue)
    fail(api, queue)
    assert api.call("POST", f"/queues/{graves}/redrive", {}) == {"redriven": 1, "more": False}
    message = api.message(message_id)
    assert (message["queue"], message["status"], message["attempt_count"], message["failed_count"]) == (queue, "pending", 0, 2)
    assert {name: message[name] for name in OPTIONS} == OPTIONS
    assert (message["source_queue"], message["reason"], message["failed_workers"]) == (None, None, ["worker", "worker"])
    assert len(api.checkpoints(message_id)) == 2
    assert [fail(api, queue), fail(api, queue)] == ["requeued", "dead_lettered"]


@pytest.mark.parametrize("kept", [True, False])
async def test_a_message_that_is_given_up_waits_for_what_becomes_of_its_dead_letter_queue(
    api: Api, queue: str, graves: str, shared_database: str, kept: bool
) -> None:
    (message_id,) = api.send(queue, "work", max_attempts=1)
    receipt = api.claim_one(queue)["receipt"]
    async with holding(shared_database, "select from queue where name = $1 for update", graves) as sql:
        with ThreadPoolExecutor(1) as pool:
            nacking = pool.submit(api.nack, receipt)
            await waiting_for_a_lock(sql, "with asked as")
            if not kept:
                await sql.execute("delete from queue where name = $1", graves)
            await sql.execute("commit")
            assert [result["status"] for result in nacking.result()] == ["dead_lettered" if kept else "failed"]
    assert api.message(message_id)["queue"] == (graves if kept else queue)


@pytest.mark.parametrize("buried", [True, False])
def test_a_nack_that_gave_a_message_up_answers_the_same_again_after_a_redrive(api: Api, queue: str, graves: str, buried: bool) -> None:
    api.put_queue(queue, max_attempts=1, dead_letter_queue=graves if buried else None)
    api.send(queue, "work")
    receipt = api.claim_one(queue)["receipt"]
    word = "dead_lettered" if buried else "failed"
    assert [api.nack(receipt)[0]["status"] for _ in range(2)] == [word] * 2
    assert redrive(api, graves if buried else queue) == {"redriven": 1, "more": False}
    assert api.nack(receipt)[0]["status"] == word
    assert api.ack(receipt)[0]["status"] == "settled"
