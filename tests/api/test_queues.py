"""Queues: create, reconfigure, read, list, delete."""

import uuid
from collections.abc import Iterator

import pytest
from harness.api import Api, Json
from harness.problems import assert_problem

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
    "paused": False,
}
NOT_CONFIGURATION = {"name", "created_at", "updated_at", "warnings"}


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
    assert created["warnings"] == []
    assert configuration(created) == {field: DEFAULTS[field] for field in configuration(created)}
    assert {"visibility_timeout", "extension", "beat_interval", "max_lease", "max_attempts", "weights"} <= set(created)


def test_a_repeated_put_is_200_and_changes_nothing_but_its_moment(api: Api, name: str) -> None:
    first = api.call("PUT", f"/queues/{name}", {"max_attempts": 5}, expect=201)
    again = api.call("PUT", f"/queues/{name}", {"max_attempts": 5}, expect=200)
    assert configuration(again) == configuration(first)
    assert again["created_at"] == first["created_at"]
    assert again["updated_at"] > first["updated_at"]


def test_a_put_replaces_the_whole_configuration(api: Api, name: str) -> None:
    api.put_queue(name, max_attempts=9, weights={"a": 2}, visibility_timeout=900, progress_required=True)
    replaced = api.call("PUT", f"/queues/{name}", {"weights": {"b": 3}})
    assert configuration(replaced) == {field: DEFAULTS[field] for field in configuration(replaced)} | {"weights": {"b": 3}}


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
    }
    put = api.put_queue(name, **wanted)
    read = api.call("GET", f"/queues/{name}")
    assert read == put
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
    before = api.call("GET", f"/queues/{queue}")
    assert_problem(api.client.put(f"/queues/{queue}", json={"extension": 1}), 422, "invalid-queue-config")
    assert api.call("GET", f"/queues/{queue}") == before


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
    assert first["items"][0] == api.call("GET", f"/queues/{names[0]}")
    for each in names:
        api.call("DELETE", f"/queues/{each}", expect=204)


def test_the_last_page_of_queues_says_that_it_is_the_last(api: Api, queue: str) -> None:
    api.put_queue(f"{queue}.2")
    everything = api.call("GET", "/queues", params={"limit": 1000})
    assert everything["next_cursor"] is None
    exactly = api.call("GET", "/queues", params={"limit": len(everything["items"])})
    assert exactly["items"] == everything["items"]
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
def test_a_queue_with_messages_in_any_state_is_deleted_only_by_force(api: Api, queue: str, state: str) -> None:
    (message_id,) = api.send(queue, "work")
    lease = api.claim_one(queue) if state != "pending" else None
    if lease and state == "completed":
        api.ack(lease["receipt"])
    assert api.message(message_id)["status"] == state
    assert_problem(api.client.delete(f"/queues/{queue}"), 409, "queue-not-empty")
    assert api.message(message_id)["status"] == state
    api.call("DELETE", f"/queues/{queue}", params={"force": True}, expect=204)
    assert_problem(api.client.get(f"/messages/{message_id}"), 404, "message-not-found")
    assert api.call("GET", "/leases", params={"worker_id": "worker", "limit": 1000})["items"] == []
    if lease:
        assert [result["status"] for result in api.beat(lease["receipt"])] == ["unknown"]


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
        ("GET", "/leases?queue={}", None),
    ],
)
def test_a_mistyped_name_is_404_everywhere_and_never_a_silent_new_queue(
    api: Api, name: str, method: str, path: str, body: dict[str, object] | None
) -> None:
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
