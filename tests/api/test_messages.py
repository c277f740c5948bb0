"""Messages: send, read, list, history."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from harness.api import Api, Json
from harness.problems import assert_problem

BODIES: list[Json] = [
    None,
    True,
    0,
    -0.0,
    2**63 - 1,
    -(2**63),
    2**64,
    10**300,
    1.5,
    0.1 + 0.2,
    1e-300,
    1.7976931348623157e308,
    5e-324,
    "",
    'Grüße 🎧 \u2028 \x01 \x7f "quoted" \\u0000 NaN Infinity',
    "\U0010ffff\ufffd\ufeff",
    [],
    {},
    [[[[[]]]]],
    {"": {"a": [1, 2.5, None, {"deep": ["x", False]}]}, "ключ": "значение"},
    "NaN",
    "x" * 262_000,
]


def shape_of(value: Json) -> str:
    """Tell apart what `==` does not: 1, 1.0, True."""
    return json.dumps(value, ensure_ascii=False)


@pytest.fixture
def one_of_each_state(api: Api, queue: str) -> Iterator[dict[str, str]]:
    """Messages in every state that a message can be brought to, by state."""
    failed, completed, leased = api.send(queue, "failed", "completed", "leased")
    leases = {lease["message"]["id"]: lease["receipt"] for lease in api.claim(queue, max_messages=3)}
    api.nack(leases[failed], retryable=False)
    api.ack(leases[completed])
    (scheduled,) = api.send(queue, "scheduled", delay=3600)
    (pending,) = api.send(queue, "pending")
    yield {"failed": failed, "completed": completed, "in_progress": leased, "scheduled": scheduled, "pending": pending}
    api.release(leases[leased])


def test_one_message_and_a_thousand_are_sent_in_one_call_in_order(api: Api, queue: str) -> None:
    (alone,) = api.send(queue, "alone")
    ids = api.send(queue, *range(1000))
    assert [int(each) for each in ids] == sorted({int(each) for each in ids})
    assert int(alone) < int(ids[0])
    listed = api.call("GET", f"/queues/{queue}/messages", params={"limit": 1000, "cursor": alone})
    assert [item["id"] for item in listed["items"]] == ids
    assert [item["body"] for item in listed["items"]] == list(range(1000))


@pytest.mark.parametrize("count", [0, 1001])
def test_no_message_or_more_than_a_thousand_are_refused(api: Api, queue: str, count: int) -> None:
    answer = api.client.post(f"/queues/{queue}/messages", json={"messages": [{"body": 1}] * count})
    problem = assert_problem(answer, 422, "invalid-request")
    assert [error["field"] for error in problem["errors"]] == ["messages"]


def test_a_call_with_one_bad_message_stores_none(api: Api, queue: str) -> None:
    messages = [{"body": number} for number in range(50)] + [{"body": 1, "priority": 40_000}]
    problem = assert_problem(api.client.post(f"/queues/{queue}/messages", json={"messages": messages}), 422, "invalid-request")
    assert [error["field"] for error in problem["errors"]] == ["messages.50.priority"]
    assert api.call("GET", f"/queues/{queue}/messages")["items"] == []


@pytest.mark.parametrize("body", BODIES, ids=lambda body: shape_of(body)[:24])
def test_a_body_comes_back_as_it_was_sent_to_worker_and_operator(api: Api, queue: str, body: Json) -> None:
    (message_id,) = api.send(queue, body)
    lease = api.claim_one(queue)
    assert shape_of(lease["message"]["body"]) == shape_of(body)
    assert shape_of(api.message(message_id)["body"]) == shape_of(body)
    api.ack(lease["receipt"], output=body if len(shape_of(body)) < 200_000 else None)
    if len(shape_of(body)) < 200_000:
        assert shape_of(api.message(message_id)["output"]) == shape_of(body)


def test_every_field_of_a_message_comes_back(api: Api, queue: str) -> None:
    sent = {
        "headers": {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "Ünï": "çødé\n"},
        "priority": -32768,
        "fairness_key": "tenant/ä",
        "work_type": "transcode",
        "task_id": "task 7",
        "max_attempts": 1_000_000,
    }
    (message_id,) = api.send(queue, {"n": 1}, **sent)
    leased = api.claim_one(queue)["message"]
    read = api.message(message_id)
    for shown in (leased, read):
        assert {field: shown[field] for field in sent} == sent
        assert (shown["id"], shown["queue"], shown["attempt_count"], shown["progress"], shown["detail"]) == (
            message_id,
            queue,
            0,
            None,
            None,
        )


def test_what_is_left_out_has_its_default(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, 1)
    read = api.message(message_id)
    expected = {
        "status": "pending", "headers": {}, "priority": 0, "fairness_key": "", "work_type": None, "task_id": None, "generation": 0,
        "attempt_count": 0, "max_attempts": 3, "failed_count": 0, "expired_count": 0, "released_count": 0, "unconfirmed_count": 0,
        "output": None, "error": None, "finished_at": None, "progress": None, "detail": None,
    }  # fmt: skip
    assert {field: read[field] for field in expected} == expected


@pytest.mark.scar(38)
def test_ids_are_strings_beyond_32_bits_too(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, 1)
    assert isinstance(message_id, str)
    assert str(int(message_id)) == message_id
    for absent in (str(2**31), str(2**63 - 1), str(2**63), "9" * 30):
        assert_problem(api.client.get(f"/messages/{absent}"), 404, "message-not-found")
        assert_problem(api.client.get(f"/messages/{absent}/checkpoints"), 404, "message-not-found")


def test_moments_are_rfc_3339_in_utc(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, 1, delay=100)
    read = api.message(message_id)
    created, available = (datetime.fromisoformat(read[field]) for field in ("created_at", "available_at"))
    assert created.tzinfo == UTC
    assert read["created_at"].endswith("Z")
    assert available - created == timedelta(seconds=100)


def test_a_delayed_message_is_scheduled_and_not_leased(api: Api, queue: str) -> None:
    answer = api.call("POST", f"/queues/{queue}/messages", {"messages": [{"body": 1, "delay": 60}, {"body": 2}]}, expect=201)
    assert [sent["status"] for sent in answer["messages"]] == ["scheduled", "pending"]
    assert [lease["message"]["body"] for lease in api.claim(queue, max_messages=10)] == [2]


def test_messages_are_listed_by_state_each_in_its_own(api: Api, queue: str, one_of_each_state: dict[str, str]) -> None:
    for state, message_id in one_of_each_state.items():
        items = api.call("GET", f"/queues/{queue}/messages", params={"status": state})["items"]
        assert [(item["id"], item["status"]) for item in items] == [(message_id, state)]
    assert api.call("GET", f"/queues/{queue}/messages", params={"status": "cancelled"})["items"] == []
    everything = api.call("GET", f"/queues/{queue}/messages")
    assert [item["id"] for item in everything["items"]] == sorted(one_of_each_state.values(), key=int)
    assert everything["next_cursor"] is None


def test_a_listed_message_is_the_message_as_read(api: Api, queue: str, one_of_each_state: dict[str, str]) -> None:
    for item in api.call("GET", f"/queues/{queue}/messages")["items"]:
        assert item == api.message(item["id"])
    assert len(one_of_each_state) == 5


@pytest.mark.parametrize("limit", [1, 3, 4, 7, 8])
@pytest.mark.parametrize("status", [None, "pending"])
def test_pages_hold_every_message_once_and_the_last_says_so(api: Api, queue: str, status: str | None, limit: int) -> None:
    ids = api.send(queue, *range(7))
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        params = {"limit": limit, "cursor": cursor} | ({"status": status} if status else {})
        page = api.call("GET", f"/queues/{queue}/messages", params=params)
        assert 0 < len(page["items"]) <= limit
        seen += [item["id"] for item in page["items"]]
        cursor = page["next_cursor"]
    assert seen == ids


@pytest.mark.rule(2)
@pytest.mark.scar(5)
def test_no_read_shows_a_receipt(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, 1)
    lease = api.claim_one(queue)
    api.nack(lease["receipt"], error="once")
    receipts = [lease["receipt"], api.claim_one(queue)["receipt"]]
    for path in (
        f"/messages/{message_id}",
        f"/messages/{message_id}/checkpoints",
        f"/queues/{queue}/messages",
        "/leases",
        f"/queues/{queue}",
    ):
        text = api.client.get(path).text
        assert "receipt" not in text
        assert not [receipt for receipt in receipts if receipt in text]


def test_the_history_tells_what_ended_each_attempt_newest_first(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, 1, max_attempts=2)
    assert api.checkpoints(message_id) == []
    api.nack(api.claim_one(queue, "first")["receipt"], error="disk full")
    api.nack(api.claim_one(queue, "second")["receipt"], error="disk still full")
    newest, oldest = api.checkpoints(message_id)
    assert (oldest["kind"], oldest["reason"], oldest["generation"]) == ("error_boundary", "nacked", 1)
    assert (newest["kind"], newest["reason"], newest["generation"]) == ("error_boundary", "nacked", 2)
    assert oldest["facts"] | {"error": "disk full", "worker_id": "first", "retry_count": 1, "will_retry": True} == oldest["facts"]
    assert newest["facts"] | {"error": "disk still full", "worker_id": "second", "will_retry": False} == newest["facts"]


@pytest.mark.parametrize(
    "path", ["/messages/abc", "/messages/-1", "/messages/1.5", "/messages/%D9%A3", f"/messages/{'9' * 31}", "/messages/1%00"]
)
def test_what_is_no_id_is_refused(api: Api, path: str) -> None:
    for each in (path, f"{path}/checkpoints"):
        problem = assert_problem(api.client.get(each), 422, "invalid-request")
        assert [error["field"] for error in problem["errors"]] == ["path.message_id"]
