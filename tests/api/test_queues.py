"""Queues: create, reconfigure, read, list, delete."""

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import asyncpg
import pytest
from harness.api import Api, Json, without_figures
from harness.holding import waiting_for_a_lock
from harness.postgres import execute, number
from harness.problems import assert_problem
from harness.server import Server
from harness.wait import until

# Design section 3.
DEFAULTS = {
    "visibility_timeout": 300,
    "extension": 300,
    "beat_interval": 60,
    "extension_enabled": True,
    "max_lease": 43200,
    "max_attempts": 3,
    "backoff": {"initial": 0, "factor": 2, "max": 900, "jitter": True},
    "dead_letter_queue": None,
    "weights": {},
    "max_in_flight": None,
    "progress_required": False,
    "retention": 604800,
    "adaptive": False,
    "adaptive_bounds": {"min": 10, "max": 3600},
    "paused": False,
    "derived": None,
}
NOT_CONFIGURATION = {"name", "created_at", "updated_at", "warnings", "figures"}


@pytest.fixture
def name(api: Api) -> Iterator[str]:
    """A name that no queue bears."""
    name = f"new-{uuid.uuid4().hex[:12]}"
    yield name
    api.client.delete(f"/queues/{name}", params={"force": True})


def configuration(queue: Json) -> Json:
    return {field: value for field, value in queue.items() if field not in NOT_CONFIGURATION}


def test_a_new_queue_is_201_and_has_the_documented_defaults(api: Api, name: str) -> None:
    created = api.call("PUT", f"/queues/{name}", {}, expect=201)
    assert created["name"] == name
    assert (created["warnings"], created["figures"]) == ([], None)
    assert configuration(created) == DEFAULTS


def test_a_repeated_put_is_200_and_changes_nothing_but_its_moment(api: Api, name: str) -> None:
    first = api.call("PUT", f"/queues/{name}", {"max_attempts": 5}, expect=201)
    again = api.call("PUT", f"/queues/{name}", {"max_attempts": 5}, expect=200)
    assert configuration(again) == configuration(first)
    assert again["created_at"] == first["created_at"]
    assert again["updated_at"] > first["updated_at"]


def test_a_put_replaces_the_whole_configuration(api: Api, name: str) -> None:
    api.put_queue(name, max_attempts=9, weights={"a": 2}, visibility_timeout=900, progress_required=True)
    api.put_queue(name, dead_letter_queue="default", backoff={"initial": 7}, max_in_flight=4, retention=60, adaptive=True)
    replaced = api.call("PUT", f"/queues/{name}", {"weights": {"b": 3}})
    assert configuration(replaced) == DEFAULTS | {"weights": {"b": 3}}


def test_what_was_put_is_read_back(api: Api, name: str) -> None:
    wanted = {
        "visibility_timeout": 30.5,
        "extension": 20,
        "beat_interval": 2.25,
        "extension_enabled": False,
        "max_lease": 600,
        "max_attempts": 7,
        "progress_required": True,
        "weights": {"": 2, "täglich 🎧": 1000},
        "backoff": {"initial": 0.5, "factor": 1.5, "max": 60, "jitter": False},
        "dead_letter_queue": "default",
        "max_in_flight": 10_000,
        "retention": 315_360_000,
        "adaptive": True,
        "adaptive_bounds": {"min": 0.01, "max": 31_536_000},
        "paused": True,
    }
    put = without_figures(api.put_queue(name, **wanted))
    read = without_figures(api.call("GET", f"/queues/{name}"))
    assert read == put
    assert read in map(without_figures, api.call("GET", "/queues", params={"limit": 1000})["items"])
    assert {field: read[field] for field in wanted} == wanted


@pytest.mark.parametrize(
    ("config", "numbers"),
    [
        ({"extension": 100, "beat_interval": 50}, ("50", "50")),
        ({"extension": 100, "beat_interval": 99.5}, ("99.5", "50")),
        ({"extension": 0.01}, ("60", "0.005")),
    ],
)
def test_a_beat_interval_of_half_the_extension_or_more_is_refused_with_the_rule(
    api: Api, name: str, config: dict[str, float], numbers: tuple[str, str]
) -> None:
    body = assert_problem(api.client.put(f"/queues/{name}", json=config), 422, "invalid-queue-config")
    assert "beat_interval < extension / 2" in body["detail"]
    assert f"beat_interval is {numbers[0]}, extension / 2 is {numbers[1]}." in body["detail"]
    assert_problem(api.client.get(f"/queues/{name}"), 404, "queue-not-found")


def test_the_widest_interval_that_the_rule_allows_is_accepted(api: Api, name: str) -> None:
    api.call("PUT", f"/queues/{name}", {"extension": 100, "beat_interval": 49.999}, expect=201)


def test_the_rule_does_not_hold_where_beats_never_extend(api: Api, name: str) -> None:
    api.call("PUT", f"/queues/{name}", {"extension": 1, "beat_interval": 60, "extension_enabled": False}, expect=201)


def test_a_refused_configuration_leaves_the_old_one(api: Api, queue: str) -> None:
    before = without_figures(api.call("GET", f"/queues/{queue}"))
    assert_problem(api.client.put(f"/queues/{queue}", json={"extension": 1}), 422, "invalid-queue-config")
    assert without_figures(api.call("GET", f"/queues/{queue}")) == before


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        (
            {"backoff": {"initial": 10.5, "max": 10}},
            "backoff.initial <= backoff.max must hold: backoff.initial is 10.5, backoff.max is 10.",
        ),
        ({"backoff": {"initial": 901}}, "backoff.initial <= backoff.max must hold: backoff.initial is 901, backoff.max is 900."),
        (
            {"adaptive_bounds": {"min": 61, "max": 60}},
            "adaptive_bounds.min <= adaptive_bounds.max must hold: adaptive_bounds.min is 61, adaptive_bounds.max is 60.",
        ),
    ],
)
def test_bounds_that_leave_nothing_between_them_are_refused_with_the_rule(api: Api, name: str, config: Json, rule: str) -> None:
    assert assert_problem(api.client.put(f"/queues/{name}", json=config), 422, "invalid-queue-config")["detail"] == rule
    assert_problem(api.client.get(f"/queues/{name}"), 404, "queue-not-found")


def test_bounds_may_meet(api: Api, name: str) -> None:
    api.call("PUT", f"/queues/{name}", {"backoff": {"initial": 5, "max": 5}, "adaptive_bounds": {"min": 60, "max": 60}}, expect=201)


def test_paused_is_left_as_it_is_unless_it_is_given(api: Api, name: str) -> None:
    assert api.put_queue(name, paused=True)["paused"] is True
    assert api.put_queue(name)["paused"] is True
    assert api.put_queue(name, paused=None)["paused"] is True
    assert api.put_queue(name, paused=False)["paused"] is False
    assert api.put_queue(name)["paused"] is False


def test_what_an_adaptive_queue_has_derived_is_shown_until_it_is_adaptive_no_more(api: Api, name: str, shared_database: str) -> None:
    assert api.put_queue(name, adaptive=True)["derived"] is None
    execute(shared_database, "update queue set derived_lease = 84, derived_samples = 1000 where name = $1", name)
    derived = {"visibility_timeout": 84, "beat_interval": 8.4, "sweep_interval": 16.8, "samples": 1000}
    assert api.call("GET", f"/queues/{name}")["derived"] == derived
    assert api.put_queue(name, adaptive=True, max_attempts=5)["derived"] == derived
    assert api.put_queue(name)["derived"] is None
    assert api.put_queue(name, adaptive=True)["derived"] is None


@pytest.mark.parametrize(("least", "most", "expected"), [(10, 60, 60), (100, 200, 100), (84, 84, 84), (10, 3600, 84)])
def test_what_was_derived_keeps_to_new_bounds_at_once(
    api: Api, name: str, shared_database: str, least: float, most: float, expected: float
) -> None:
    api.put_queue(name, adaptive=True)
    execute(shared_database, "update queue set derived_lease = 84, derived_samples = 1000 where name = $1", name)
    changed = api.put_queue(name, adaptive=True, adaptive_bounds={"min": least, "max": most})
    assert changed["derived"]["visibility_timeout"] == expected
    api.send(name, "work")
    assert api.claim_one(name)["expires_in"] == pytest.approx(expected, abs=1)


@pytest.mark.rule(13)
@pytest.mark.parametrize("config", [{"backoff": {"initial": 5e-324}}, {"backoff": {"initial": 0, "max": 9e-7}}, {"beat_interval": 1e-300}])
def test_a_time_too_short_to_be_counted_is_refused(api: Api, name: str, config: Json) -> None:
    assert_problem(api.client.put(f"/queues/{name}", json=config), 422, "invalid-request")
    assert_problem(api.client.get(f"/queues/{name}"), 404, "queue-not-found")


def test_the_shortest_backoff_is_a_microsecond(api: Api, name: str) -> None:
    api.put_queue(name, backoff={"initial": 1e-6, "max": 1e-6}, max_attempts=50)
    api.send(name, "work")
    for _ in range(20):
        assert api.nack(api.claim_one(name, wait=40)["receipt"])[0]["status"] == "requeued"


def refused(api: Api, name: str, dead_letter_queue: str) -> str:
    """Check that the queue cannot have that dead-letter queue, and return why."""
    answer = api.client.put(f"/queues/{name}", json={"dead_letter_queue": dead_letter_queue, "max_attempts": 99})
    return str(assert_problem(answer, 422, "invalid-queue-config")["detail"])


def test_a_dead_letter_queue_must_exist(api: Api, queue: str, name: str) -> None:
    before = without_figures(api.call("GET", f"/queues/{queue}"))
    for each in (queue, f"{name}.new"):
        assert f"There is no queue named '{name}'" in refused(api, each, name)
    assert without_figures(api.call("GET", f"/queues/{queue}")) == before
    assert_problem(api.client.get(f"/queues/{name}.new"), 404, "queue-not-found")


def test_a_queue_cannot_be_its_own_dead_letter_queue(api: Api, queue: str, name: str) -> None:
    for each in (queue, name):
        assert "the queue itself" in refused(api, each, each)
    assert api.call("GET", f"/queues/{queue}")["dead_letter_queue"] is None


def test_dead_letters_cannot_go_round_in_a_circle(api: Api, queue: str) -> None:
    chain = [queue, f"{queue}.1", f"{queue}.2"]
    for each, before in zip(chain[1:], chain, strict=False):
        assert api.put_queue(each, dead_letter_queue=before)["dead_letter_queue"] == before
    for each in chain[1:]:
        assert f"would come back from '{each}' to '{queue}'" in refused(api, queue, each)
    api.put_queue(chain[2], dead_letter_queue=queue)
    api.put_queue(queue, dead_letter_queue="default")
    for each in chain[:0:-1]:
        api.call("DELETE", f"/queues/{each}", expect=204)


def test_of_two_calls_that_would_close_a_circle_together_one_is_refused(api: Api, queue: str) -> None:
    other = f"{queue}.other"
    with ThreadPoolExecutor(2) as pool:
        for _ in range(20):
            for each in (queue, other):
                api.put_queue(each)
            pairs = [(queue, other), (other, queue)]
            puts = [pool.submit(api.client.put, f"/queues/{one}", json={"dead_letter_queue": two}) for one, two in pairs]
            assert sorted(put.result().status_code for put in puts) == [200, 422]
    api.call("DELETE", f"/queues/{other}", params={"force": True}, expect=204)


async def test_a_dead_letter_queue_that_is_being_deleted_is_no_longer_taken(
    api: Api, queue: str, sql: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    doomed = f"{queue}.doomed"
    api.put_queue(doomed)
    transaction = sql.transaction()
    await transaction.start()
    await sql.execute("delete from queue where name = $1", doomed)
    with ThreadPoolExecutor(1) as pool:
        refusal = pool.submit(refused, api, queue, doomed)
        await waiting_for_a_lock(sql, "for key share")
        await transaction.commit()
        assert "There is no queue named" in refusal.result()
    assert api.call("GET", f"/queues/{queue}")["dead_letter_queue"] is None


def test_a_dead_letter_queue_is_in_the_shard_of_those_it_serves(start_server: Callable[..., Server], database_url: str) -> None:
    api = start_server(shards=8).api
    shards = {}
    for each in range(40):
        api.put_queue(f"dead-{each}")
        shards[number(database_url, f"select shard from queue where name = 'dead-{each}'")] = f"dead-{each}"
    assert len(shards) == 8
    for shard, dead_letters in shards.items():
        api.call("PUT", f"/queues/for-{shard}", {"dead_letter_queue": dead_letters}, expect=201)
        assert number(database_url, f"select shard from queue where name = 'for-{shard}'") == shard
    here, elsewhere = shards[0], shards[1]
    before = without_figures(api.call("GET", f"/queues/{here}"))
    assert "is in another shard than" in refused(api, here, elsewhere)
    assert without_figures(api.call("GET", f"/queues/{here}")) == before
    problem = assert_problem(api.client.post(f"/queues/{here}/redrive", json={"to": elsewhere}), 422, "invalid-request")
    assert [error["field"] for error in problem["errors"]] == ["to"]


def test_a_dead_letter_queue_is_deleted_only_by_force_and_those_it_served_go_on_without(api: Api, queue: str) -> None:
    served = [f"{queue}.{each}" for each in range(4)]
    for each in served:
        api.put_queue(each, dead_letter_queue=queue)
    problem = assert_problem(api.client.delete(f"/queues/{queue}"), 409, "queue-in-use")
    assert all(each in problem["detail"] for each in served[:3])
    api.call("DELETE", f"/queues/{queue}", params={"force": True}, expect=204)
    for each in served:
        assert api.call("GET", f"/queues/{each}")["dead_letter_queue"] is None
        api.call("DELETE", f"/queues/{each}", expect=204)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"visibility_timeout": 300, "extension": 301}, "extension is longer than visibility_timeout"),
        ({"visibility_timeout": 299}, "beat_interval is more than a fifth of visibility_timeout"),
        ({"max_lease": 200, "visibility_timeout": 300}, "max_lease is shorter than visibility_timeout"),
    ],
)
def test_doubtful_times_come_back_as_warnings(api: Api, name: str, config: dict[str, float], words: str) -> None:
    warnings = api.put_queue(name, **config)["warnings"]
    assert [warning for warning in warnings if words in warning]
    assert api.call("GET", f"/queues/{name}")["warnings"] == warnings


def test_queues_are_listed_by_name_in_pages_that_end(api: Api, queue: str) -> None:
    names = sorted(f"{queue}.{number}" for number in range(5))
    for each in reversed(names):
        api.put_queue(each)
    first = api.call("GET", "/queues", params={"cursor": queue, "limit": 3})
    assert [item["name"] for item in first["items"]] == names[:3]
    assert first["next_cursor"] == names[2]
    rest = api.call("GET", "/queues", params={"cursor": first["next_cursor"], "limit": 2})
    assert [item["name"] for item in rest["items"]] == names[3:]
    assert without_figures(first["items"][0]) == without_figures(api.call("GET", f"/queues/{names[0]}"))
    for each in names:
        api.call("DELETE", f"/queues/{each}", expect=204)


def test_the_last_page_of_queues_says_that_it_is_the_last(api: Api, queue: str) -> None:
    api.put_queue(f"{queue}.2")
    everything = api.call("GET", "/queues", params={"limit": 1000})
    assert everything["next_cursor"] is None
    exactly = api.call("GET", "/queues", params={"limit": len(everything["items"])})
    assert [*map(without_figures, exactly["items"])] == [*map(without_figures, everything["items"])]
    assert exactly["next_cursor"] is None
    api.call("DELETE", f"/queues/{queue}.2", expect=204)


def test_default_always_exists_and_cannot_be_deleted(api: Api) -> None:
    assert api.call("GET", "/queues/default")["name"] == "default"
    for params in ({}, {"force": True}):
        assert_problem(api.client.delete("/queues/default", params=params), 409, "queue-protected")
    assert api.call("GET", "/queues/default")["name"] == "default"


def test_an_empty_queue_is_deleted(api: Api, queue: str) -> None:
    assert api.call("DELETE", f"/queues/{queue}", expect=204) is None
    assert_problem(api.client.get(f"/queues/{queue}"), 404, "queue-not-found")
    assert_problem(api.client.delete(f"/queues/{queue}"), 404, "queue-not-found")


@pytest.mark.parametrize("state", ["pending", "in_progress", "completed"])
def test_a_queue_with_messages_in_any_state_is_deleted_only_by_force(api: Api, queue: str, state: str, shared_database: str) -> None:
    (message_id,) = api.send(queue, "work")
    lease = api.claim_one(queue) if state != "pending" else None
    if lease and state == "completed":
        api.ack(lease["receipt"])
    assert api.message(message_id)["status"] == state
    assert_problem(api.client.delete(f"/queues/{queue}"), 409, "queue-not-empty")
    assert api.message(message_id)["status"] == state
    api.call("DELETE", f"/queues/{queue}", params={"force": True}, expect=204)
    assert_problem(api.client.get(f"/messages/{message_id}"), 404, "message-not-found")
    if lease:
        for verb in (api.beat, api.ack, api.nack, api.release):
            assert [result["status"] for result in verb(lease["receipt"])] == ["unknown"]
    # The lists show none without its queue, whether it is there or not.
    left = f"select (select count(*) from lease where message_id = {message_id}) + (select count(*) from message where id = {message_id})"
    until(lambda: number(shared_database, left) == 0)


def test_a_queue_made_again_under_its_old_name_is_empty_and_takes_messages_at_once(api: Api, queue: str) -> None:
    api.send(queue, "old")
    api.call("DELETE", f"/queues/{queue}", params={"force": True}, expect=204)
    api.put_queue(queue)
    assert api.claim(queue) == []
    api.send(queue, "new")
    assert api.claim_one(queue)["message"]["body"] == "new"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/queues/{}", None),
        ("DELETE", "/queues/{}", None),
        ("GET", "/queues/{}/messages", None),
        ("POST", "/queues/{}/messages", {"messages": [{"body": 1}]}),
        ("POST", "/queues/{}/leases", {"worker_id": "worker"}),
        ("POST", "/queues/{}/pause", None),
        ("POST", "/queues/{}/resume", None),
        ("POST", "/queues/{}/purge", None),
        ("POST", "/queues/{}/redrive", None),
        ("POST", "/queues/default/redrive", {"to": "{}"}),
        ("GET", "/leases?queue={}", None),
    ],
)
def test_a_mistyped_name_is_404_everywhere_and_never_a_silent_new_queue(
    api: Api, name: str, method: str, path: str, body: dict[str, object] | None
) -> None:
    body = {"to": name} if body == {"to": "{}"} else body
    problem = assert_problem(api.client.request(method, path.format(name), json=body), 404, "queue-not-found")
    assert repr(name) in problem["detail"]
    assert name not in [item["name"] for item in api.call("GET", "/queues", params={"limit": 1000})["items"]]


def test_names_are_of_letters_digits_dots_dashes_and_underscores(api: Api, name: str) -> None:
    for good in (name, f"{name}.A_b-9", f"{name}{'x' * (128 - len(name))}"):
        api.put_queue(good)
        assert api.call("GET", f"/queues/{good}")["name"] == good
        api.call("DELETE", f"/queues/{good}", expect=204)
    for bad in ("-a", ".a", "_a", "a b", "a%0A", "a%00", "%C3%A4", "x" * 129, "a@b", "a%3Ab"):
        problem = assert_problem(api.client.put(f"/queues/{bad}", json={}), 422, "invalid-request")
        assert [error["field"] for error in problem["errors"]] == ["path.queue"]
