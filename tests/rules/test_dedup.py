"""`dedup_key`: while a message is kept that was sent to a queue with a key, no other is stored there under it."""

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.api import Api, Json
from harness.holding import holding, until_somebody_waits
from harness.metrics import value
from harness.postgres import execute, number
from harness.problems import assert_problem
from harness.server import Server

INSERT = """
insert into message (shard, queue_id, body, priority, fairness_key, status, dedup_queue_id, dedup_key)
select 0, id, '"theirs"', 0, '', 'pending', id, $1 from queue where name = 'default'
"""


def send(api: Api, queue: str, *messages: Json) -> list[Json]:
    return list(api.call("POST", f"/queues/{queue}/messages", {"messages": messages}, expect=201)["messages"])


def send_one(api: Api, queue: str, key: str, body: Json = None, **options: Json) -> Json:
    (sent,) = send(api, queue, {"body": body, "dedup_key": key, **options})
    return sent


def bodies(api: Api, queue: str) -> list[Json]:
    return [item["body"] for item in api.call("GET", f"/queues/{queue}/messages")["items"]]


def test_a_repeated_key_is_answered_with_the_first_message_and_nothing_is_stored(api: Api, queue: str) -> None:
    first = send_one(api, queue, "k", "first", delay=3600)
    assert (first["status"], first["duplicate"]) == ("scheduled", False)
    again = send_one(api, queue, "k", "second", priority=9)
    assert again == {"id": first["id"], "status": "scheduled", "duplicate": True}
    assert bodies(api, queue) == ["first"]
    kept = api.message(first["id"])
    assert (kept["dedup_key"], kept["priority"]) == ("k", 0)


def test_a_duplicate_shows_the_first_message_as_it_is_now_while_it_is_kept(api: Api, queue: str) -> None:
    first = send_one(api, queue, "k")["id"]
    lease = api.claim_one(queue)
    assert send_one(api, queue, "k") == {"id": first, "status": "in_progress", "duplicate": True}
    api.ack(lease["receipt"])
    assert send_one(api, queue, "k") == {"id": first, "status": "completed", "duplicate": True}
    assert api.claim(queue) == []


def test_once_the_message_is_removed_its_key_is_free(api: Api, queue: str, shared_database: str) -> None:
    first = send_one(api, queue, "k", "first")["id"]
    execute(shared_database, "delete from message where id = $1", int(first))
    second = send_one(api, queue, "k", "second")
    assert second["id"] != first
    assert not second["duplicate"]
    assert bodies(api, queue) == ["second"]


def test_a_message_that_has_been_moved_still_holds_its_key_where_it_was_sent_to(api: Api, queue: str, shared_database: str) -> None:
    first = send_one(api, queue, "k")["id"]
    api.put_queue(f"{queue}-dead")
    execute(
        shared_database,
        "update message set queue_id = (select id from queue where name = $2) where id = $1",
        int(first),
        f"{queue}-dead",
    )
    assert send_one(api, queue, "k")["id"] == first
    assert not send_one(api, f"{queue}-dead", "k")["duplicate"]
    api.call("DELETE", f"/queues/{queue}-dead?force=true", expect=204)


def test_queues_do_not_share_keys(api: Api, queue: str) -> None:
    api.put_queue(f"{queue}-2")
    first, other = send_one(api, queue, "k"), send_one(api, f"{queue}-2", "k")
    assert first["id"] != other["id"]
    assert not other["duplicate"]
    api.call("DELETE", f"/queues/{queue}-2?force=true", expect=204)


def test_a_queue_made_again_under_its_name_knows_no_key_of_its_predecessor(api: Api, queue: str) -> None:
    first = send_one(api, queue, "k")
    api.call("DELETE", f"/queues/{queue}?force=true", expect=204)
    assert_problem(api.client.post(f"/queues/{queue}/messages", json={"messages": [{"body": 1, "dedup_key": "k"}]}), 404, "queue-not-found")
    api.put_queue(queue)
    second = send_one(api, queue, "k")
    assert not second["duplicate"]
    assert second["id"] != first["id"]


def test_another_replica_that_remembers_the_old_queue_finds_the_new_one_also_for_nothing_but_duplicates(
    start_server: Callable[..., Server],
) -> None:
    one, two = start_server().api, start_server().api
    one.put_queue("q")
    old = send_one(two, "q", "k")["id"]
    one.call("DELETE", "/queues/q?force=true", expect=204)
    one.put_queue("q")
    new = send_one(one, "q", "k")["id"]
    assert new != old
    assert send_one(two, "q", "k") == {"id": new, "status": "pending", "duplicate": True}


def test_of_equal_keys_in_one_call_the_first_is_stored(api: Api, queue: str) -> None:
    sent = send(
        api,
        queue,
        {"body": 0, "dedup_key": "k", "delay": 60},
        {"body": 1},
        {"body": 2, "dedup_key": "k"},
        {"body": 3, "dedup_key": "l"},
        {"body": 4, "dedup_key": "k"},
    )
    assert [each["duplicate"] for each in sent] == [False, False, True, False, True]
    assert {sent[index]["id"] for index in (0, 2, 4)} == {sent[0]["id"]}
    assert [each["status"] for each in sent] == ["scheduled", "pending", "scheduled", "pending", "scheduled"]
    assert bodies(api, queue) == [0, 1, 3]


def test_keys_may_be_mixed_with_none_and_every_answer_is_for_its_message(api: Api, queue: str) -> None:
    known = {key: send_one(api, queue, key)["id"] for key in ("z", "a")}
    keys = ["m", None, "z", None, "b", "a", "m", None, "y"]
    sent = send(api, queue, *({"body": index, "dedup_key": key} for index, key in enumerate(keys)))
    assert [each["duplicate"] for each in sent] == [key in known or index == 6 for index, key in enumerate(keys)]
    assert (sent[2]["id"], sent[5]["id"], sent[6]["id"]) == (known["z"], known["a"], sent[0]["id"])
    new = [index for index, each in enumerate(sent) if not each["duplicate"]]
    assert [api.message(sent[index]["id"])["body"] for index in new] == new
    ids = [int(sent[index]["id"]) for index in new]
    assert ids == sorted(ids)  # a queue is first in, first out


def test_a_thousand_messages_sent_again_are_a_thousand_duplicates(api: Api, queue: str) -> None:
    messages = [{"body": index, "dedup_key": f"k{index}"} for index in range(1000)]
    first, again = send(api, queue, *messages), send(api, queue, *reversed(messages))
    assert [each["id"] for each in again] == [each["id"] for each in reversed(first)]
    assert {each["duplicate"] for each in again} == {True}


@pytest.mark.parametrize("key", ["", "x" * 201, "a\0b", 7])
def test_a_bad_key_is_refused_by_name(api: Api, queue: str, key: Json) -> None:
    answer = api.client.post(f"/queues/{queue}/messages", json={"messages": [{"body": 1}, {"body": 1, "dedup_key": key}]})
    problem = assert_problem(answer, 422, "invalid-request")
    assert [error["field"] for error in problem["errors"]] == ["messages.1.dedup_key"]
    assert bodies(api, queue) == []


def test_duplicates_are_not_counted_as_sent(start_server: Callable[..., Server]) -> None:
    api = start_server().api
    send(api, "default", {"body": 1, "dedup_key": "k"}, {"body": 2, "dedup_key": "k"}, {"body": 3})
    send_one(api, "default", "k")
    assert value(api, "leasebeat_sends_total") == 2


def test_fifty_threads_that_send_one_key_to_two_servers_store_one_message(start_server: Callable[..., Server], database_url: str) -> None:
    apis = [start_server().api, start_server().api]
    with ThreadPoolExecutor(50) as pool:
        for round_ in range(5):
            answers = list(pool.map(lambda n, key=f"k{round_}": send_one(apis[n % 2], "default", key, n), range(50)))
            assert len({answer["id"] for answer in answers}) == 1
            assert Counter(answer["duplicate"] for answer in answers) == {False: 1, True: 49}
    assert number(database_url, "select count(*) from message") == 5


@pytest.mark.rule(12)
@pytest.mark.scar(35, 42)
def test_batches_of_the_same_keys_in_any_order_on_two_servers_neither_fail_nor_deadlock(
    start_server: Callable[..., Server], database_url: str
) -> None:
    apis = [start_server().api, start_server().api]
    messages = [{"body": index, "dedup_key": f"k{index}"} for index in range(200)]
    calls = [(apis[n % 2], messages if n // 2 % 2 else messages[::-1]) for n in range(40)]
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda call: send(call[0], "default", *call[1]), calls))
    by_key: dict[str, set[str]] = {}
    for (_, sent), answer in zip(calls, answers, strict=True):
        for message, each in zip(sent, answer, strict=True):
            by_key.setdefault(str(message["dedup_key"]), set()).add(each["id"])
    assert {len(ids) for ids in by_key.values()} == {1}
    assert sum(not each["duplicate"] for answer in answers for each in answer) == 200
    assert number(database_url, "select count(*) from message") == 200
    assert number(database_url, "select deadlocks from pg_stat_database where datname = current_database()") == 0


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_key_that_another_replica_is_storing_is_waited_for(
    start_server: Callable[..., Server], database_url: str, end: str
) -> None:
    api = start_server().api
    async with holding(database_url, INSERT, "k") as other:
        theirs = await other.fetchval("select max(id) from message")
        call = asyncio.create_task(asyncio.to_thread(send, api, "default", {"body": "a"}, {"body": "b", "dedup_key": "k"}, {"body": "c"}))
        await until_somebody_waits(other)
        await other.execute(end)
        sent = await call
    assert [each["duplicate"] for each in sent] == [False, end == "commit", False]
    assert (sent[1]["id"] == str(theirs)) == (end == "commit")
    assert bodies(api, "default") == (["theirs", "a", "c"] if end == "commit" else ["a", "b", "c"])


async def test_calls_with_one_key_that_share_a_statement_store_one_message(start_server: Callable[..., Server], database_url: str) -> None:
    api = start_server().api
    calls = 30
    with ThreadPoolExecutor(calls) as pool:
        async with holding(database_url, "select from queue for update") as other:
            run = asyncio.get_running_loop().run_in_executor
            # The first is held up in its statement; the others come meanwhile and share the next.
            held_up = run(pool, api.send, "default", "held up")
            await until_somebody_waits(other)
            sends = [run(pool, lambda n=n: send_one(api, "default", "k", n, delay=60)) for n in range(calls - 1)]  # type: ignore[misc]
            await asyncio.sleep(0.3)
        answers = await asyncio.gather(*sends)
        await held_up
    assert len({answer["id"] for answer in answers}) == 1
    assert Counter(answer["duplicate"] for answer in answers) == {False: 1, True: calls - 2}
    assert {answer["status"] for answer in answers} == {"scheduled"}
    assert len(bodies(api, "default")) == 2
