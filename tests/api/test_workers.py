"""The registry as operators use it: who is alive, draining, deleting."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from urllib.parse import quote

import pytest
from harness.api import Api, Json
from harness.figures import ONCE, counting_takes
from harness.holding import holding
from harness.metrics import value
from harness.postgres import RunOut, execute
from harness.problems import assert_problem
from harness.server import Server
from harness.wait import until

from app.store.chores import ALL_SHARDS, Chore

ODD_NAMES = [
    "a/b",
    "/",
    "a//b/",
    "node-7/drain",
    "drain",
    "two words",
    " ",
    "größe-✓-東京",
    "%2F",
    "a?b=c#d",
    "..",
    "a/../b",
    "x" * 200,
    "\"quoted'",
    "new\nline",
]


def path(worker_id: str) -> str:
    """Spell a worker's path, with each character that means something in a path as what it is in a name."""
    return f"/workers/{quote(worker_id, safe='').replace('.', '%2E')}"


def registered(api: Api, worker_id: str) -> Json:
    """Wait until the registry shows a worker, and return it."""

    def look() -> Json:
        answer = api.client.get(path(worker_id))
        return answer.json() if answer.status_code == 200 else None

    return until(look)


def drain(api: Api, worker_id: str, **body: Json) -> Json:
    registered(api, worker_id)
    return api.call("POST", f"{path(worker_id)}/drain", body)


def claim(api: Api, queue: str, worker_id: str, **options: Json) -> Json:
    return api.call("POST", f"/queues/{queue}/leases", {"worker_id": worker_id, **options})


def beat(api: Api, receipt: str, worker_id: str | None = None) -> Json:
    body: Json = {"leases": [{"receipt": receipt}]}
    return api.call("POST", "/beat", body if worker_id is None else body | {"worker_id": worker_id})


# --- who is alive -----------------------------------------------------------------------------------------------------


def test_a_worker_appears_by_claiming_even_in_vain(api: Api, queue: str) -> None:
    claim(api, queue, f"{queue}-w", host="node-3", version="1.4.0")
    worker = registered(api, f"{queue}-w")
    assert worker == {
        "worker_id": f"{queue}-w",
        "host": "node-3",
        "version": "1.4.0",
        "first_seen_at": worker["last_seen_at"],
        "last_seen_at": worker["last_seen_at"],
        "silent_for": worker["silent_for"],
        "stale": False,
        "draining": False,
        "held_leases": 0,
        "leases": [],
    }
    assert 0 <= worker["silent_for"] < 60
    assert datetime.fromisoformat(worker["first_seen_at"]).utcoffset() is not None


@pytest.mark.rule(13)
def test_a_worker_does_not_appear_by_a_claim_on_a_queue_that_there_is_not(api: Api, queue: str) -> None:
    assert_problem(api.client.post(f"/queues/{queue}-mistyped/leases", json={"worker_id": f"{queue}-lost"}), 404, "queue-not-found")
    claim(api, queue, f"{queue}-w")
    registered(api, f"{queue}-w")
    assert api.client.get(path(f"{queue}-lost")).status_code == 404, "signs are written in the order in which they come"


def test_a_worker_appears_by_beating_under_its_name(api: Api, queue: str) -> None:
    api.send(queue, "work")
    receipt = api.claim_one(queue, f"{queue}-claimer")["receipt"]
    beat(api, receipt, f"{queue}-beater")
    assert registered(api, f"{queue}-beater")["host"] is None


def test_a_worker_keeps_its_first_moment_and_what_it_once_said_of_itself(api: Api, queue: str) -> None:
    claim(api, queue, f"{queue}-w", host="node-3", version="1.4.0")
    first = registered(api, f"{queue}-w")
    claim(api, queue, f"{queue}-w")
    claim(api, queue, f"{queue}-w", version="1.5.0")
    second = until(lambda: (now := registered(api, f"{queue}-w"))["version"] == "1.5.0" and now)
    assert second["host"] == "node-3"
    assert second["first_seen_at"] == first["first_seen_at"] == first["last_seen_at"] < second["last_seen_at"]


def test_a_worker_is_stale_after_two_minutes_without_a_sign(api: Api, queue: str, shared_database: str) -> None:
    for age in (110, 121):
        worker_id = f"{queue}-{age}"
        claim(api, queue, worker_id)
        registered(api, worker_id)
        execute(shared_database, "update worker set last_seen_at = now() - make_interval(secs => $2) where worker_id = $1", worker_id, age)
        worker = registered(api, worker_id)
        assert age <= worker["silent_for"] < age + 60
        assert worker["stale"] is (worker["silent_for"] > 120)


def test_a_worker_is_shown_with_the_leases_that_it_holds_in_any_queue(api: Api, queue: str) -> None:
    api.put_queue(f"{queue}-too")
    ids = [*api.send(queue, 1, 2), *api.send(f"{queue}-too", 3), *api.send(queue, 4)]
    for name, number in ((f"{queue}-too", 1), (queue, 2)):
        claim(api, name, f"{queue}-w", max_messages=number)
    claim(api, queue, f"{queue}-other")
    worker = registered(api, f"{queue}-w")
    assert worker["held_leases"] == 3
    assert [(lease["message_id"], lease["queue"]) for lease in worker["leases"]] == [
        (ids[0], queue),
        (ids[1], queue),
        (ids[2], f"{queue}-too"),
    ]
    assert not any("receipt" in lease for lease in worker["leases"])
    api.client.delete(f"/queues/{queue}-too", params={"force": True})


def test_of_more_than_a_thousand_leases_a_thousand_are_shown_and_all_are_counted_and_released(api: Api, queue: str) -> None:
    api.send(queue, *range(1000))
    api.send(queue, *range(5))
    for _ in range(2):
        claim(api, queue, f"{queue}-w", max_messages=1000)
    worker = registered(api, f"{queue}-w")
    assert (worker["held_leases"], len(worker["leases"])) == (1005, 1000)
    api.call("DELETE", path(f"{queue}-w"), expect=204)
    assert sum(len(claim(api, queue, f"{queue}-next", max_messages=1000)["leases"]) for _ in range(2)) == 1005


@pytest.mark.scar(47)
async def test_a_list_shows_how_many_leases_each_worker_held_when_they_were_last_counted(
    start_server: Callable[..., Server], database_url: str
) -> None:
    def listed() -> tuple[str | None, dict[str, int]]:
        page = api.call("GET", "/workers")
        return page["as_of"], {item["worker_id"]: item["held_leases"] for item in page["items"]}

    await asyncio.to_thread(counting_takes, database_url, ONCE)
    nobody_can_count = "select pg_advisory_xact_lock($1, $2)"
    async with holding(database_url, nobody_can_count, Chore.COUNT.value, ALL_SHARDS) as sql:
        api = start_server().api
        api.put_queue("too")
        api.send("default", 1, 2)
        api.send("too", 3, 4)
        receipt = claim(api, "default", "busy", max_messages=2)["leases"][0]["receipt"]
        for queue, worker_id in (("too", "busy"), ("too", "other"), ("too", "idle")):
            claim(api, queue, worker_id)
        registered(api, "idle")
        assert listed() == (None, {"busy": 0, "idle": 0, "other": 0})

        await sql.execute("commit")
        until(lambda: listed()[0])
        counted = listed()
        assert counted[1] == {"busy": 3, "idle": 0, "other": 1}
        api.ack(receipt)
        assert listed() == counted
        assert drain(api, "busy")["held_leases"] == 3
        assert registered(api, "busy")["held_leases"] == 2


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_pages_hold_every_worker_once_by_name(start_server: Callable[..., Server], limit: int) -> None:
    api = start_server().api
    names = ["B", "a", "a/b", "b", "ä"]
    for name in names:
        claim(api, "default", name)
    for name in names:
        registered(api, name)
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = api.call("GET", "/workers", params={"limit": limit, "cursor": cursor})
        assert 0 < len(page["items"]) <= limit
        seen += [item["worker_id"] for item in page["items"]]
        cursor = page["next_cursor"]
    assert seen == names


def test_a_replica_that_hears_of_a_worker_alone_shows_it_to_the_others(start_server: Callable[..., Server]) -> None:
    one, other = (start_server().api for _ in range(2))
    claim(one, "default", "w", host="node-3")
    assert registered(other, "w")["host"] == "node-3"


@pytest.mark.parametrize("worker_id", ODD_NAMES)
def test_a_worker_of_any_name_is_found_drained_and_deleted(api: Api, queue: str, worker_id: str) -> None:
    api.send(queue, "work")
    claim(api, queue, worker_id)
    worker = registered(api, worker_id)
    assert (worker["worker_id"], worker["held_leases"]) == (worker_id, 1)
    assert drain(api, worker_id)["worker_id"] == worker_id
    assert claim(api, queue, worker_id)["drain"] is True
    api.call("DELETE", path(worker_id), expect=204)
    assert_problem(api.client.get(path(worker_id)), 404, "worker-not-found")


@pytest.mark.parametrize("worker_id", ["nobody", "no/body", "nobody/drain", "x" * 201])
def test_an_unknown_worker_is_a_404(api: Api, worker_id: str) -> None:
    asked = [
        api.client.get(path(worker_id)),
        api.client.delete(path(worker_id)),
        api.client.post(f"{path(worker_id)}/drain", json={}),
    ]
    for answer in asked if len(worker_id) <= 200 else asked[2:]:
        assert_problem(answer, 404, "worker-not-found")


@pytest.mark.rule(13)
def test_what_cannot_be_a_workers_name_is_refused(api: Api) -> None:
    for bad in ("a\0b", "x" * 201):
        for answer in (api.client.get(path(bad)), api.client.delete(path(bad))):
            problem = assert_problem(answer, 422, "invalid-request")
            assert [error["field"] for error in problem["errors"]] == ["path.worker_id"]
    assert_problem(api.client.post(f"{path(chr(0))}/drain", json={}), 404, "worker-not-found")
    assert_problem(api.client.get("/workers", params={"cursor": "a\0b"}), 422, "invalid-request")


# --- draining ---------------------------------------------------------------------------------------------------------


def test_a_draining_worker_gets_no_new_lease_is_told_so_and_may_finish(api: Api, queue: str) -> None:
    api.send(queue, *range(3))
    before = claim(api, queue, f"{queue}-w")
    receipt = before["leases"][0]["receipt"]
    assert before["drain"] is beat(api, receipt, f"{queue}-w")["drain"] is False
    assert drain(api, f"{queue}-w")["draining"] is True

    refused = claim(api, queue, f"{queue}-w", wait=30)
    assert (refused["leases"], refused["drain"]) == ([], True)
    told = beat(api, receipt, f"{queue}-w")
    assert (told["results"][0]["status"], told["drain"]) == ("held", True)
    assert beat(api, receipt)["drain"] is False
    assert api.ack(receipt)[0]["status"] == "acked"
    other = claim(api, queue, f"{queue}-other")
    assert (len(other["leases"]), other["drain"]) == (1, False)

    assert drain(api, f"{queue}-w", draining=False)["draining"] is False
    again = claim(api, queue, f"{queue}-w")
    assert (len(again["leases"]), again["drain"]) == (1, False)


def test_every_replica_tells_a_draining_worker_and_stops_when_that_is_undone(start_server: Callable[..., Server]) -> None:
    one, other = (start_server().api for _ in range(2))
    claim(other, "default", "w")
    drain(one, "w")
    until(lambda: claim(other, "default", "w")["drain"])
    one.send("default", "work")
    assert claim(other, "default", "w")["leases"] == []
    drain(one, "w", draining=False)
    lease = until(lambda: claim(other, "default", "w")["leases"])[0]
    assert beat(other, lease["receipt"], "w")["drain"] is False


def test_a_replica_that_starts_later_knows_who_is_draining(start_server: Callable[..., Server]) -> None:
    one = start_server().api
    claim(one, "default", "w")
    drain(one, "w")
    later = start_server().api
    until(lambda: claim(later, "default", "w")["drain"])


def test_parked_claims_of_a_worker_that_is_drained_are_sent_home_on_every_replica_and_others_wait_on(
    start_server: Callable[..., Server],
) -> None:
    servers = [start_server() for _ in range(2)]
    one = servers[0].api
    with ThreadPoolExecutor(4) as pool:
        leaving = [pool.submit(claim, server.api, "default", "w", wait=50) for server in servers]
        staying = [pool.submit(claim, server.api, "default", "other", wait=50) for server in servers]
        until(lambda: all(value(server.api, "leasebeat_parked_claims") == 2 for server in servers))
        drain(one, "w")
        for answer in leaving:
            assert {**answer.result(60), "waited": 0} == {"leases": [], "drain": True, "waited": 0}
        assert not any(answer.done() for answer in staying)
        one.send("default", 1, 2)
        assert [(len(answer.result(60)["leases"]), answer.result()["drain"]) for answer in staying] == [(1, False)] * 2


@pytest.mark.scar(19)
@pytest.mark.rule(14)
def test_a_draining_worker_that_repeats_a_claim_gets_the_leases_of_the_lost_answer_and_no_more(api: Api, queue: str) -> None:
    api.send(queue, *range(3))
    first = claim(api, queue, f"{queue}-w", claim_id="call-1")
    drain(api, f"{queue}-w")
    again = claim(api, queue, f"{queue}-w", claim_id="call-1")
    assert [lease["receipt"] for lease in again["leases"]] == [first["leases"][0]["receipt"]]
    assert again["drain"] is True
    assert claim(api, queue, f"{queue}-w", claim_id="call-2")["leases"] == []


@pytest.mark.rule(13)
@pytest.mark.parametrize("body", [{"draining": 1}, {"draining": None}, {"drain": True}, [], "true"])
def test_a_bad_order_to_drain_is_refused_and_changes_nothing(api: Api, queue: str, body: Json) -> None:
    claim(api, queue, f"{queue}-w")
    registered(api, f"{queue}-w")
    assert_problem(api.client.post(f"{path(f'{queue}-w')}/drain", json=body), 422, "invalid-request")
    assert registered(api, f"{queue}-w")["draining"] is False


def test_a_worker_is_drained_and_deleted_also_in_the_moment_after_its_first_sign(api: Api, queue: str) -> None:
    for n in range(20):
        worker_id = f"{queue}-{n}"
        claim(api, queue, worker_id)
        assert api.call("POST", f"{path(worker_id)}/drain", {})["draining"] is True
        claim(api, queue, f"{worker_id}-too")
        api.call("DELETE", path(f"{worker_id}-too"), expect=204)
        assert_problem(api.client.get(path(f"{worker_id}-too")), 404, "worker-not-found")


# --- deleting ---------------------------------------------------------------------------------------------------------


@pytest.mark.rule(9)
def test_deleting_a_worker_releases_what_it_holds_uncounted_and_nothing_else(api: Api, queue: str) -> None:
    ids = api.send(queue, *range(3))
    mine = claim(api, queue, f"{queue}-w", max_messages=2)["leases"]
    others = claim(api, queue, f"{queue}-other")["leases"]
    registered(api, f"{queue}-w")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(claim, api, queue, f"{queue}-next", wait=50, max_messages=2)
        until(lambda: value(api, "leasebeat_parked_claims") == 1)
        api.call("DELETE", path(f"{queue}-w"), expect=204)
        taken = waiting.result(60)["leases"]
    assert {lease["message"]["id"] for lease in taken} <= set(ids[:2])
    for message_id in ids[:2]:
        message = api.message(message_id)
        assert (message["released_count"], message["attempt_count"], message["expired_count"]) == (1, 0, 0)
    assert [beat["status"] for beat in api.beat(*(lease["receipt"] for lease in mine))] in (["lost", "lost"], ["lost", "settled"])
    assert api.beat(others[0]["receipt"])[0]["status"] == "extended"
    assert api.message(ids[2])["released_count"] == 0
    assert_problem(api.client.get(path(f"{queue}-w")), 404, "worker-not-found")
    assert_problem(api.client.delete(path(f"{queue}-w")), 404, "worker-not-found")


def test_a_deleted_worker_does_not_get_its_leases_back_by_a_claim_that_is_still_parked(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, "work")
    claim(api, queue, f"{queue}-w")
    registered(api, f"{queue}-w")
    with ThreadPoolExecutor(1) as pool:
        dead = pool.submit(claim, api, queue, f"{queue}-w", wait=50)
        until(lambda: value(api, "leasebeat_parked_claims") == 1)
        api.call("DELETE", path(f"{queue}-w"), expect=204)
        assert dead.result(60)["leases"] == []
    assert claim(api, queue, f"{queue}-next")["leases"][0]["message"]["id"] == message_id


def test_a_deleted_worker_does_not_get_them_back_through_another_replica_either(start_server: Callable[..., Server]) -> None:
    one, other = (start_server().api for _ in range(2))
    one.send("default", *range(8))
    for n in range(8):
        claim(one, "default", f"w{n}")
        registered(other, f"w{n}")
    with ThreadPoolExecutor(8) as pool:
        dead = [pool.submit(claim, other, "default", f"w{n}", wait=50) for n in range(8)]
        until(lambda: value(other, "leasebeat_parked_claims") == 8)
        one.call("POST", "/queues/default/pause")  # lest one of them gets what another has given back
        for n in range(8):
            one.call("DELETE", path(f"w{n}"), expect=204)
        assert [each.result(60)["leases"] for each in dead] == [[]] * 8


def test_a_worker_is_known_to_the_other_replicas_soon_after_its_first_sign(start_server: Callable[..., Server]) -> None:
    """At once, not a second later when the registry is written next. A busy machine delays some of them, a slow service all."""
    one, other = (start_server().api for _ in range(2))

    def known_after(worker_id: str) -> float:
        claim(one, "default", worker_id)
        began = time.monotonic()
        registered(other, worker_id)
        return time.monotonic() - began

    known_after("first")
    assert any(known_after(f"w{n}") < 0.5 for n in range(20))


def test_a_worker_that_holds_leases_is_deleted_even_if_the_registry_does_not_know_it(api: Api, queue: str, shared_database: str) -> None:
    (message_id,) = api.send(queue, "work")
    claim(api, queue, f"{queue}-w")
    registered(api, f"{queue}-w")
    execute(shared_database, "delete from worker where worker_id = $1", f"{queue}-w")
    api.call("DELETE", path(f"{queue}-w"), expect=204)
    assert api.message(message_id)["released_count"] == 1
    assert_problem(api.client.delete(path(f"{queue}-w")), 404, "worker-not-found")


def test_a_deleted_worker_that_lives_comes_back_at_its_next_sign_and_is_not_draining(start_server: Callable[..., Server]) -> None:
    one, other = (start_server().api for _ in range(2))
    for api in (one, other):
        claim(api, "default", "w")
    drain(one, "w")
    until(lambda: claim(other, "default", "w")["drain"])
    one.call("DELETE", "/workers/w", expect=204)
    until(lambda: not claim(other, "default", "w")["drain"])
    assert registered(one, "w")["draining"] is False


@pytest.mark.scar(2)
@pytest.mark.rule(2, 8)
def test_a_worker_that_comes_back_under_its_name_does_not_keep_its_predecessors_leases_alive(api: Api, queue: str, expire: RunOut) -> None:
    api.put_queue(queue, beat_interval=0)
    first, _ = api.send(queue, "first", "second")
    predecessor = claim(api, queue, f"{queue}-w")["leases"][0]
    successor = claim(api, queue, f"{queue}-w", host="elsewhere")["leases"][0]
    expire(first)

    def beat_until_redelivered() -> Json:
        assert beat(api, successor["receipt"], f"{queue}-w")["results"][0]["status"] == "extended"
        return claim(api, queue, f"{queue}-other")["leases"]

    (redelivered,) = until(beat_until_redelivered)
    assert (redelivered["message"]["id"], redelivered["generation"], redelivered["attempt"]) == (first, 2, 2)
    assert beat(api, predecessor["receipt"], f"{queue}-w")["results"][0]["status"] == "lost"
    assert beat(api, successor["receipt"], f"{queue}-w")["results"][0]["status"] == "extended"
