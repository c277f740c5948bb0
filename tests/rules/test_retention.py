"""Finished messages leave with their history when their queue's retention is over, and nobody notices."""

import asyncio
from collections.abc import Callable

import pytest
from harness.api import Api, Json
from harness.holding import until_somebody_waits
from harness.postgres import execute, number
from harness.removals import LARGEST, removals_held
from harness.server import Server
from harness.wait import until

LEFT_S = 60


def finish(api: Api, queue: str) -> dict[str, str]:
    """Bring one message into each final state that a worker can, and leave one unfinished; return their ids by state."""
    completed, failed, retried, pending = api.send(queue, *range(4))
    receipts = {lease["message"]["id"]: lease["receipt"] for lease in api.claim(queue, max_messages=3)}
    api.nack(receipts[retried])
    api.ack(receipts[completed])
    api.nack(receipts[failed], retryable=False)
    return {"completed": completed, "failed": failed, "retried": retried, "pending": pending}


def status(api: Api, message_id: str) -> str | None:
    answer = api.client.get(f"/messages/{message_id}")
    found: Json = answer.json()
    return found["status"] if answer.status_code == 200 else None


def test_finished_messages_leave_with_their_history_after_their_queues_retention(
    start_server: Callable[..., Server], database_url: str
) -> None:
    api = start_server().api
    api.put_queue("short", retention=1)
    api.put_queue("long", retention=3600)
    short, long = finish(api, "short"), finish(api, "long")
    until(lambda: {status(api, short[name]) for name in ("completed", "failed")} == {None}, LEFT_S, 0.1)
    assert (status(api, short["retried"]), status(api, short["pending"])) == ("pending", "pending")
    assert len(api.checkpoints(short["retried"])) == 1
    assert number(database_url, f"select count(*) from checkpoint where message_id = {short['failed']}") == 0
    assert {name: status(api, each) for name, each in long.items()} == {
        "completed": "completed",
        "failed": "failed",
        "retried": "pending",
        "pending": "pending",
    }
    assert len(api.checkpoints(long["failed"])) == 1
    # A change of the retention holds for what is finished already.
    api.put_queue("long", retention=1)
    until(lambda: {status(api, long[name]) for name in ("completed", "failed")} == {None}, LEFT_S, 0.1)


@pytest.mark.rule(6)
def test_an_ack_of_what_is_gone_is_unknown(start_server: Callable[..., Server]) -> None:
    api = start_server().api
    api.put_queue("short", retention=1)
    (message_id,) = api.send("short", 1)
    receipt = api.claim_one("short")["receipt"]
    assert api.ack(receipt)[0]["status"] == "acked"
    until(lambda: status(api, message_id) is None, LEFT_S, 0.1)
    assert api.ack(receipt)[0]["status"] == "unknown"


async def test_a_great_many_leave_while_claims_and_beats_go_on(start_server: Callable[..., Server], database_url: str) -> None:
    """By and by, and also while a statement that removes some of them stands still."""
    await asyncio.to_thread(
        execute,
        database_url,
        "insert into message (shard, queue_id, body, priority, fairness_key, status, finished_at) "
        "select 0, id, '1', 0, '', case n % 3 when 0 then 'completed' when 1 then 'failed' else 'cancelled' end, now() - interval '8 days' "
        "from queue, generate_series(1, 50000) n",
    )

    def work(api: Api) -> None:
        api.send("default", "work")
        receipt = api.claim_one("default")["receipt"]
        assert api.beat(receipt)[0]["status"] == "extended"
        assert api.ack(receipt)[0]["status"] == "acked"

    async with removals_held(database_url) as sql:
        api = start_server().api
        await until_somebody_waits(sql)
        work(api)
    async with asyncio.timeout(LEFT_S):
        while await asyncio.to_thread(number, database_url, "select count(*) from message where finished_at < now() - interval '7 days'"):
            work(api)
    assert await asyncio.to_thread(number, database_url, LARGEST) <= 1000
    assert await asyncio.to_thread(number, database_url, "select count(*) from message where status <> 'completed'") == 0


def test_send_requests_are_forgotten_after_a_day(start_server: Callable[..., Server], database_url: str) -> None:
    execute(
        database_url,
        "insert into send_request (shard, queue_id, key, digest, message_ids, created_at) "
        "select 0, 1, n::text, '', '{}', now() - interval '1 hour' * case when n <= 2500 then 24.1 else 23.9 end "
        "from generate_series(1, 2510) n",
    )
    start_server()
    until(lambda: number(database_url, "select count(*) from send_request") == 10, LEFT_S, 0.1)
    assert number(database_url, "select min(key::int) from send_request") == 2501
