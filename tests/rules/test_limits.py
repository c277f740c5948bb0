"""Limits: never more leases than `max_in_flight`; cancelled messages are over at once, whoever holds them."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import asyncpg
import pytest
from harness.api import Api
from harness.holding import Connection, holding, until_somebody_waits, waiting_for_a_lock
from harness.metrics import value
from harness.operating import RARELY
from harness.problems import assert_problem
from harness.server import Server
from harness.wait import until

LONG = 40


@pytest.mark.scar(48)
def test_a_claim_gets_no_more_than_the_limit_leaves(api: Api, queue: str) -> None:
    api.put_queue(queue, max_in_flight=3)
    api.send(queue, *range(10))
    assert len(api.claim(queue, max_messages=2)) == 2
    assert len(api.claim(queue, max_messages=10)) == 1
    assert api.claim(queue) == []


@pytest.mark.scar(48)
async def test_the_limit_holds_under_any_race(start_server: Callable[..., Server], database_url: str) -> None:
    """Many callers at two servers, leases that end in every way; the database is asked all the while how many there are."""
    apis = [start_server().api for _ in range(2)]
    apis[0].put_queue("few", max_in_flight=5, visibility_timeout=0.2, extension=0.2, beat_interval=0, max_attempts=1_000_000)
    apis[0].send("few", *range(300))
    done = [0] * 12
    over = threading.Event()

    def work(n: int) -> None:
        api = apis[n % 2]
        while not over.is_set():
            for k, lease in enumerate(api.claim("few", f"worker-{n}", max_messages=1 + n % 3, wait=0.1)):
                verb = (api.ack, api.nack, api.release, api.beat)[(n + k + done[n]) % 4]
                verb(lease["receipt"])
                done[n] += 1

    connection = await asyncpg.connect(database_url)
    most, began = 0, time.monotonic()
    with ThreadPoolExecutor(12) as pool:
        working = [pool.submit(work, n) for n in range(12)]
        while time.monotonic() < began + 5 or ((sum(done) <= 50 or most < 5) and time.monotonic() < began + 60):
            most = max(most, await connection.fetchval("select count(*) from lease"))
        over.set()
        for each in working:
            each.result()
    await connection.close()
    assert sum(done) > 50
    assert most == 5


@pytest.mark.scar(48)
@pytest.mark.parametrize("end", ["ack", "nack", "release", "run out", "cancel", "give up"])
@pytest.mark.rule(11)
def test_a_place_that_becomes_free_wakes_a_parked_claim(start_server: Callable[..., Server], end: str) -> None:
    one, two = (start_server(sweep_interval=RARELY).api for _ in range(2))
    one.put_queue("one", max_in_flight=1)
    one.send("one", "first", priority=1)
    one.send("one", "second")
    lease = one.claim_one("one", visibility_timeout=1 if end == "run out" else 300)
    with ThreadPoolExecutor(1) as pool:
        parked = pool.submit(two.claim_one, "one", wait=LONG)
        until(lambda: value(two, "leasebeat_parked_claims") == 1 or parked.done())
        match end:
            case "ack":
                one.ack(lease["receipt"])
            case "nack":
                one.nack(lease["receipt"], delay=1000)
            case "release":
                one.release(lease["receipt"])
            case "cancel":
                one.call("POST", f"/messages/{lease['message']['id']}/cancel", {})
            case "give up":
                one.nack(lease["receipt"], retryable=False)
        assert parked.result()["message"]["body"] == ("first" if end in {"release", "run out"} else "second")


@pytest.mark.scar(48)
def test_a_limit_that_is_set_later_holds_from_then_on(api: Api, queue: str) -> None:
    api.send(queue, *range(10))
    held = api.claim(queue, max_messages=4)
    api.put_queue(queue, max_in_flight=5)
    assert len(api.claim(queue, max_messages=10)) == 1
    api.put_queue(queue, max_in_flight=2)
    api.ack(held[0]["receipt"])
    assert api.claim(queue) == []
    api.put_queue(queue)
    assert len(api.claim(queue, max_messages=10)) == 5


@pytest.mark.scar(48)
@pytest.mark.parametrize(
    ("change", "granted"), [("max_in_flight = 2", 2), ("paused = true", 0), ("visibility_timeout = 77", 10)], ids=["limit", "pause", "time"]
)
async def test_a_claim_that_is_under_way_heeds_what_the_queue_has_become(
    api: Api, queue: str, shared_database: str, change: str, granted: int
) -> None:
    """The claim has read the queue and picked its messages before the change is committed."""
    api.send(queue, *range(10))
    async with holding(shared_database, f"update queue set {change} where name = $1", queue) as sql:
        with ThreadPoolExecutor(1) as pool:
            claiming = pool.submit(api.claim, queue, max_messages=10)
            await waiting_for_a_lock(sql, "with recursive offer")
            await sql.execute("commit")
            assert len(claiming.result()) == granted


_LEASE = """
insert into lease (shard, message_id, queue_id, generation, granted_at, expires_at, check_at, deadline, worker_id)
select 0, message.id, queue_id, 1, now(), now(), now(), now(), 'w' from message where id = $1
"""


@pytest.mark.scar(48)
@pytest.mark.parametrize("verb", ["put", "pause"])
async def test_a_limit_and_a_pause_are_answered_after_the_claims_that_do_not_know_them(
    api: Api, queue: str, shared_database: str, verb: str
) -> None:
    """The claim is held up as it grants its first lease, by another that is not committed. It is through before the change is."""

    def change() -> int | None:
        """Return how many leases there are afterwards, None if the machine stood still for as long as a change waits."""
        method, path, body = ("PUT", "", {"max_in_flight": 1}) if verb == "put" else ("POST", "/pause", {})
        answer = api.client.request(method, f"/queues/{queue}{path}", json=body)
        assert answer.status_code in {200, 503}, answer.text
        return len(api.call("GET", "/leases", params={"queue": queue})["items"]) if answer.status_code == 200 else None

    first, *_ = api.send(queue, *range(10))
    found: int | None = None
    held: list[str] = []
    while found is None:
        if held:
            api.release(*held)
        async with holding(shared_database, _LEASE, int(first)) as sql:
            with ThreadPoolExecutor(2) as pool:
                claiming = pool.submit(api.claim, queue, max_messages=10)
                await waiting_for_a_lock(sql, "with recursive offer")
                changing = pool.submit(change)
                await until_somebody_waits(sql, 2)
                await sql.execute("rollback")
                found, held = changing.result(), [lease["receipt"] for lease in claiming.result()]
        assert len(held) == 10
    assert found == 10
    assert api.claim(queue) == []


async def test_a_claim_that_finds_nothing_writes_nothing(api: Api, queue: str, sql: Connection) -> None:
    """Else every parked claim would cost a commit each time it looks."""
    lock = "select xmax::text from queue where name = $1"
    assert api.claim(queue) == []
    assert await sql.fetchval(lock, queue) == "0"
    api.put_queue(f"{queue}.other", max_in_flight=3)
    api.send(queue, "work")
    assert len(api.claim(queue)) == 1
    assert await sql.fetchval(lock, queue) != "0"


async def test_a_claim_that_is_under_way_as_its_queue_is_deleted_leaves_no_lease(api: Api, queue: str, shared_database: str) -> None:
    (message_id,) = api.send(queue, "work")
    async with holding(shared_database, "select from queue where name = $1 for update", queue) as sql:
        with ThreadPoolExecutor(1) as pool:
            claiming = pool.submit(api.client.post, f"/queues/{queue}/leases", json={"worker_id": "w"})
            await waiting_for_a_lock(sql, "with recursive offer")
            await sql.execute("delete from queue where name = $1", queue)
            await sql.execute("commit")
            assert_problem(claiming.result(), 404, "queue-not-found")
        assert await sql.fetchval("select count(*) from lease where message_id = $1", int(message_id)) == 0
        assert await sql.fetchval("delete from message where id = $1 returning generation", int(message_id)) == 0


def test_a_cancelled_message_is_delivered_no_more(api: Api, queue: str) -> None:
    pending, scheduled = api.send(queue, "pending") + api.send(queue, "scheduled", delay=0.3)
    for message_id in (pending, scheduled):
        message = api.call("POST", f"/messages/{message_id}/cancel", {})
        assert (message["id"], message["status"]) == (message_id, "cancelled")
        assert message["finished_at"]
    time.sleep(0.5)
    assert api.claim(queue) == []
    assert api.call("POST", f"/messages/{pending}/cancel", {})["status"] == "cancelled"


@pytest.mark.rule(2, 6)
def test_the_holder_of_a_cancelled_message_hears_of_it_in_every_call(api: Api, queue: str) -> None:
    ids = api.send(queue, *range(4))
    leases = api.claim(queue, max_messages=4)
    api.beat(leases[0]["receipt"], progress=5)
    for message_id in ids:
        assert api.call("POST", f"/messages/{message_id}/cancel", {})["leased_at"] is None
    verbs = (api.beat, api.ack, api.nack, api.release)
    assert [verb(lease["receipt"])[0]["status"] for verb, lease in zip(verbs, leases, strict=True)] == ["cancelled"] * 4
    assert {api.message(message_id)["status"] for message_id in ids} == {"cancelled"}
    assert api.message(ids[0])["progress"] == 5
    # The work was done, only in vain: what it brought is kept.
    assert [api.checkpoints(message_id)[0]["kind"] for message_id in ids[1:3]] == ["late_report"] * 2


@pytest.mark.rule(6)
def test_what_is_finished_cannot_be_cancelled(api: Api, queue: str) -> None:
    done, failed = api.send(queue, "done", "failed")
    api.ack(api.claim_one(queue)["receipt"])
    api.nack(api.claim_one(queue)["receipt"], retryable=False)
    for message_id, status in ((done, "completed"), (failed, "failed")):
        assert api.call("POST", f"/messages/{message_id}/cancel", {}, expect=409)["code"] == "message-finished"
        assert api.message(message_id)["status"] == status


@pytest.mark.parametrize("message_id", ["0", "999999999999999999", "9" * 30, "9" * 40, "abc", "-1", "%00", "1.0"])
def test_a_message_that_is_not_there_cannot_be_cancelled(api: Api, message_id: str) -> None:
    assert api.call("POST", f"/messages/{message_id}/cancel", {}, expect=404)["code"] == "message-not-found"


@pytest.mark.rule(6, 12)
def test_cancels_that_race_acks_leave_each_message_in_one_final_state(start_server: Callable[..., Server]) -> None:
    apis = [start_server().api for _ in range(2)]

    def race() -> bool:
        """Return whether it was one: whoever stands still meanwhile wins none of it."""
        ids = apis[0].send("default", *range(200))
        leases = {lease["message"]["id"]: lease["receipt"] for lease in apis[0].claim("default", max_messages=200)}
        with ThreadPoolExecutor(4) as acking, ThreadPoolExecutor(4) as cancelling:
            acked = acking.map(lambda message_id: apis[0].ack(leases[message_id])[0]["status"], ids)
            cancelled = cancelling.map(
                lambda message_id: apis[1].client.post(f"/messages/{message_id}/cancel", json={}).status_code, reversed(ids)
            )
        answers = dict(zip(ids, acked, strict=True))
        refused = dict(zip(reversed(ids), cancelled, strict=True))
        for message_id in ids:
            expected = {("acked", 409): "completed", ("cancelled", 200): "cancelled"}
            assert apis[0].message(message_id)["status"] == expected[answers[message_id], refused[message_id]]
        return set(answers.values()) == {"acked", "cancelled"}

    until(race)


@pytest.mark.scar(49)
def test_claims_in_vain_do_not_cost_a_key_its_turn(api: Api, queue: str) -> None:
    api.put_queue(queue, max_in_flight=1, weights={"b": 5})
    for key in ("a", "b"):
        api.send(queue, *[key] * 30, fairness_key=key)
    taken = []
    for _ in range(36):
        lease = api.claim_one(queue)
        taken.append(lease["message"]["body"])
        assert api.claim(queue) == []  # the queue is full
        api.ack(lease["receipt"])
    assert (taken.count("a"), taken.count("b")) == (6, 30)
