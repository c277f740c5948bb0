"""`Idempotency-Key`: a send that is repeated stores nothing and is answered as it was the first time."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import asyncpg
import httpx
import pytest
from harness.api import Api, Json
from harness.holding import holding, until_somebody_waits
from harness.metrics import value
from harness.postgres import execute, number
from harness.problems import assert_problem
from harness.server import Server

COUNT = "select count(*) from message"


def post(api: Api, queue: str, key: str | bytes, *messages: Json) -> httpx.Response:
    key = key.encode() if isinstance(key, str) else key
    return api.client.post(f"/queues/{queue}/messages", json={"messages": messages}, headers=[(b"Idempotency-Key", key)])


def send(api: Api, queue: str, key: str, *messages: Json) -> list[Json]:
    answer = post(api, queue, key, *messages)
    assert answer.status_code == 201, answer.text
    return list(answer.json()["messages"])


def bodies(api: Api, queue: str) -> list[Json]:
    return [item["body"] for item in api.call("GET", f"/queues/{queue}/messages")["items"]]


def test_a_repeated_request_gets_the_first_answer_again_and_stores_nothing(api: Api, queue: str) -> None:
    messages = [{"body": 1}, {"body": 2, "delay": 3600}, {"body": 3}]
    first = send(api, queue, "key", *messages)
    assert [(each["status"], each["duplicate"]) for each in first] == [("pending", False), ("scheduled", False), ("pending", False)]
    assert send(api, queue, "key", *messages) == first
    assert bodies(api, queue) == [1, 2, 3]
    for lease in api.claim(queue, max_messages=2):
        api.ack(lease["receipt"])
    assert send(api, queue, "key", *messages) == first


def test_the_first_answer_holds_when_its_messages_are_no_longer_kept(api: Api, queue: str, shared_database: str) -> None:
    (theirs,) = api.send(queue, "theirs", dedup_key="d")
    messages = [{"body": 1, "dedup_key": "d"}, {"body": 2, "dedup_key": "e"}, {"body": 3}]
    first = send(api, queue, "key", *messages)
    execute(shared_database, "delete from message where id = any($1)", [int(theirs), *(int(each["id"]) for each in first)])
    api.send(queue, "successor", dedup_key="d")
    api.send(queue, "successor", dedup_key="e")
    assert send(api, queue, "key", *messages) == first
    assert bodies(api, queue) == ["successor", "successor"]


def test_duplicates_stay_duplicates_in_a_repeated_request_and_show_their_message_as_it_is(api: Api, queue: str) -> None:
    (known,) = api.send(queue, "known", dedup_key="d")
    messages = [{"body": 1, "dedup_key": "e"}, {"body": 2, "dedup_key": "d"}, {"body": 3, "dedup_key": "e"}, {"body": 4}]
    first = send(api, queue, "key", *messages)
    assert [each["duplicate"] for each in first] == [False, True, True, False]
    assert (first[1]["id"], first[2]["id"]) == (known, first[0]["id"])
    assert send(api, queue, "key", *messages) == first
    api.ack(api.claim_one(queue)["receipt"])
    first[1]["status"] = "completed"
    assert send(api, queue, "key", *messages) == first
    assert bodies(api, queue) == ["known", 1, 4]


def test_a_key_used_again_for_another_body_is_refused(api: Api, queue: str) -> None:
    first = send(api, queue, "key", {"body": 1})
    assert_problem(post(api, queue, "key", {"body": 2}), 422, "idempotency-key-reused")
    spaced = api.client.post(
        f"/queues/{queue}/messages",
        content=b'{"messages": [{"body":1}]}',
        headers={"Idempotency-Key": "key", "content-type": "application/json"},
    )
    assert_problem(spaced, 422, "idempotency-key-reused")  # byte for byte
    assert bodies(api, queue) == [1]
    assert send(api, queue, "key", {"body": 1}) == first


def test_keys_that_differ_and_requests_without_a_key_are_each_stored(api: Api, queue: str) -> None:
    for key in ("key", "Key", "key-2"):
        send(api, queue, key, {"body": key})
    api.send(queue, "key", "key")
    assert bodies(api, queue) == ["key", "Key", "key-2", "key", "key"]


def test_queues_do_not_share_keys_nor_does_a_queue_with_its_predecessor(api: Api, queue: str) -> None:
    api.put_queue(f"{queue}-2")
    ids = {send(api, each, "key", {"body": 1})[0]["id"] for each in (queue, f"{queue}-2")}
    api.call("DELETE", f"/queues/{queue}-2?force=true", expect=204)
    assert_problem(post(api, f"{queue}-2", "key", {"body": 1}), 404, "queue-not-found")
    api.put_queue(f"{queue}-2")
    ids |= {each["id"] for each in send(api, f"{queue}-2", "key", {"body": 1})}
    assert len(ids) == 3
    api.call("DELETE", f"/queues/{queue}-2?force=true", expect=204)


def test_a_request_that_was_refused_does_not_use_up_its_key(api: Api, queue: str) -> None:
    assert_problem(post(api, queue, "key", {"body": 1}, {"body": 1, "priority": 40_000}), 422, "invalid-request")
    assert_problem(post(api, f"{queue}-missing", "key", {"body": 1}), 404, "queue-not-found")
    (sent,) = send(api, queue, "key", {"body": 2})
    assert api.message(sent["id"])["body"] == 2


def test_a_key_that_has_been_forgotten_stores_again(api: Api, queue: str, shared_database: str) -> None:
    first = send(api, queue, "key", {"body": 1})
    execute(shared_database, "delete from send_request where queue_id = (select id from queue where name = $1)", queue)
    assert send(api, queue, "key", {"body": 1}) != first
    assert bodies(api, queue) == [1, 1]


@pytest.mark.rule(13)
@pytest.mark.parametrize("key", ["", "x" * 201, b"gr\xc3\xbcn", b"a\tb", b"\xff"])
def test_a_bad_key_is_refused_by_name(api: Api, queue: str, key: str | bytes) -> None:
    problem = assert_problem(post(api, queue, key, {"body": 1}), 422, "invalid-request")
    assert [error["field"] for error in problem["errors"]] == ["header.Idempotency-Key"]
    assert bodies(api, queue) == []


@pytest.mark.parametrize("key", ["~", "x" * 200, 'a "b" \\c'])
def test_every_printable_ascii_character_may_be_in_a_key(api: Api, queue: str, key: str) -> None:
    assert send(api, queue, key, {"body": 1}) == send(api, queue, key, {"body": 1})


def test_repeated_requests_are_not_counted_as_sent(start_server: Callable[..., Server]) -> None:
    api = start_server().api
    for _ in range(3):
        send(api, "default", "key", {"body": 1}, {"body": 2})
    assert value(api, "leasebeat_sends_total") == 2


def test_one_key_sent_to_two_servers_at_once_is_stored_once(start_server: Callable[..., Server], database_url: str) -> None:
    apis = [start_server().api, start_server().api]
    messages = [{"body": index, "dedup_key": f"d{index}"} if index % 2 else {"body": index} for index in range(5)]
    with ThreadPoolExecutor(40) as pool:
        for round_ in range(5):
            answers = list(pool.map(lambda n, key=f"k{round_}": send(apis[n % 2], "default", key, *messages), range(40)))
            assert all(answer == answers[0] for answer in answers)
    assert number(database_url, COUNT) == 5 * 3 + 2


def test_one_key_sent_with_two_bodies_at_once_is_stored_once(start_server: Callable[..., Server], database_url: str) -> None:
    apis = [start_server().api, start_server().api]
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda n: (n // 2 % 2, post(apis[n % 2], "default", "key", {"body": n // 2 % 2})), range(40)))
    (stored,) = bodies(apis[0], "default")
    for body, answer in answers:
        if body == stored:
            assert answer.json()["messages"] == answers[[body for body, _ in answers].index(stored)][1].json()["messages"]
        else:
            assert_problem(answer, 422, "idempotency-key-reused")
    assert number(database_url, "select count(*) from send_request") == 1


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_key_that_another_replica_is_storing_is_waited_for(
    start_server: Callable[..., Server], database_url: str, end: str
) -> None:
    """Theirs is another body, so that its answer differs from every other."""
    api = start_server().api
    theirs = "insert into send_request (shard, queue_id, key, digest, message_ids) values (0, 1, 'key', 'theirs', '{1}')"
    async with holding(database_url, theirs) as other:
        call = asyncio.create_task(asyncio.to_thread(post, api, "default", "key", {"body": 1}))
        await until_somebody_waits(other)
        await other.execute(end)
        answer = await call
    assert answer.status_code == (422 if end == "commit" else 201)
    assert bodies(api, "default") == ([] if end == "commit" else [1])


@pytest.mark.rule(10)
async def test_requests_with_keys_that_share_a_statement_survive_a_bad_one(start_server: Callable[..., Server], database_url: str) -> None:
    api = start_server().api
    sql = await asyncpg.connect(database_url)
    await sql.execute("create function refuse() returns trigger language plpgsql as $$ begin raise exception 'refused'; end $$")
    poison = "when (new.body #>> '{}' = 'poison')"
    await sql.execute(f"create trigger refuse before insert on message for each row {poison} execute function refuse()")
    # Each key comes twice, so that halving parts some repeats from their first.
    calls = [(f"key-{n}", "poison" if n == 7 else f"fine {n}") for n in range(15)] * 2
    with ThreadPoolExecutor(len(calls) + 1) as pool:
        async with holding(database_url, "select from queue for update") as other:
            run = asyncio.get_running_loop().run_in_executor
            held_up = run(pool, api.send, "default", "held up")
            await until_somebody_waits(other)
            posts = [run(pool, post, api, "default", key, {"body": "fine", "dedup_key": key}, {"body": body}) for key, body in calls]
            await asyncio.sleep(0.3)
        answers = await asyncio.gather(*posts)
        await held_up
    assert [answer.status_code for answer in answers] == [500 if body == "poison" else 201 for _, body in calls]
    assert [answer.json().get("messages") for answer in answers[:15]] == [answer.json().get("messages") for answer in answers[15:]]
    assert await sql.fetchval(COUNT) == 1 + 14 * 2
    await sql.execute("drop trigger refuse on message")
    await sql.close()
    assert [each["duplicate"] for each in send(api, "default", "key-7", {"body": "fine", "dedup_key": "key-7"}, {"body": "poison"})] == [
        False,
        False,
    ]


@pytest.mark.rule(7)
def test_a_crash_leaves_no_key_without_its_messages_nor_messages_without_their_key(
    start_server: Callable[..., Server], database_url: str
) -> None:
    """They are stored by one statement, so whatever was under way when the process died is there as a whole or not at all."""
    server = start_server()
    first = send(server.api, "default", "first", {"body": 1}, {"body": 2})

    def send_until_it_dies(thread: int) -> None:
        for each in range(10_000):
            try:
                send(server.api, "default", f"{thread}-{each}", {"body": 1}, {"body": 2})
            except httpx.TransportError:
                return

    with ThreadPoolExecutor(8) as pool:
        threads = [pool.submit(send_until_it_dies, thread) for thread in range(8)]
        while number(database_url, "select count(*) from send_request") < 200:
            pass
        server.kill()
        for thread in threads:
            thread.result()
    orphans = "select count(*) from message where id not in (select unnest(message_ids) from send_request)"
    assert number(database_url, orphans) == 0
    missing = "select count(*) from (select unnest(message_ids) as id from send_request) as answered left join message using (id)"
    assert number(database_url, f"{missing} where message.id is null") == 0
    again = start_server().api
    before = number(database_url, COUNT)
    assert send(again, "default", "first", {"body": 1}, {"body": 2}) == first
    assert number(database_url, COUNT) == before
