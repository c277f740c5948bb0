"""Requests and answers, without a network: the wire is exactly what the service's models say."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from sdk.scripted_service import beat_result, lease, message

import leasebeat
from leasebeat import Ack, Beat, Nack, NewMessage
from leasebeat._call import Call, Reply, finish
from leasebeat._calls import leases, messages, platform, queues

MOMENT = datetime(2026, 12, 1, 12, tzinfo=UTC)


def reply(payload: object, status: int = 200, *, sent_at: float = 100.0, answered_at: float = 101.0) -> Reply:
    return Reply(status=status, body=json.dumps(payload).encode(), retry_after=None, sent_at=sent_at, answered_at=answered_at)


def sent(call: Call[Any]) -> Any:
    return json.loads(call.content or b"null")


# --- requests


def test_put_queue_sends_only_what_is_given() -> None:
    call = queues.put_queue("reports", visibility_timeout=30, weights={"a": 2}, progress_required=False)
    assert (call.method, call.path) == ("PUT", "/queues/reports")
    assert sent(call) == {"visibility_timeout": 30, "weights": {"a": 2}, "progress_required": False}


def test_send_always_has_a_body_and_leaves_out_defaults() -> None:
    assert sent(messages.send("q", None)) == {"messages": [{"body": None}]}
    assert sent(messages.send("q", [1], priority=0, headers={"lang": "en"})) == {
        "messages": [{"body": [1], "priority": 0, "headers": {"lang": "en"}}]
    }


def test_send_many_keeps_the_order() -> None:
    call = messages.send_many("q", [NewMessage(1, delay=5), NewMessage(2, fairness_key="a", work_type="w", task_id="t", max_attempts=9)])
    assert sent(call)["messages"] == [
        {"body": 1, "delay": 5},
        {"body": 2, "fairness_key": "a", "work_type": "w", "task_id": "t", "max_attempts": 9},
    ]


def test_only_sending_is_not_repeatable() -> None:
    calls: list[Call[Any]] = [
        queues.put_queue("q"),
        queues.get_queue("q"),
        queues.list_queues(),
        queues.delete_queue("q"),
        messages.get_message("1"),
        messages.list_messages("q"),
        messages.list_checkpoints("1"),
        leases.claim("q", worker_id="w"),
        leases.beat("r"),
        leases.ack("r"),
        leases.nack("r"),
        leases.release("r"),
        leases.list_leases(),
        platform.healthz(),
        platform.readyz(),
    ]
    assert all(call.repeatable for call in calls)
    assert not messages.send("q", 1).repeatable
    assert not messages.send_many("q", [NewMessage(1)]).repeatable


def test_each_claim_has_a_name_of_its_own() -> None:
    first, second = leases.claim("q", worker_id="w"), leases.claim("q", worker_id="w")
    assert len(sent(first)["claim_id"]) == 32
    assert sent(first)["claim_id"] != sent(second)["claim_id"]
    assert sent(leases.claim("q", worker_id="w", claim_id="mine"))["claim_id"] == "mine"


def test_claim_sends_what_is_given() -> None:
    call = leases.claim("q", worker_id="w", max_messages=3, visibility_timeout=9.5, wait=20, claim_id="c", confirm_within=2)
    assert (call.path, call.wait) == ("/queues/q/leases", 20)
    assert sent(call) == {"worker_id": "w", "max_messages": 3, "visibility_timeout": 9.5, "wait": 20, "claim_id": "c", "confirm_within": 2}


def test_settling_sends_receipts_of_leases_and_receipts_alike() -> None:
    (held,) = finish(leases.claim("q", worker_id="w"), reply({"leases": [lease("r-1")]}))
    assert sent(leases.beat_many([Beat(held, 3, {"step": 1}), Beat("r-2")], worker_id="w")) == {
        "worker_id": "w",
        "leases": [{"receipt": "r-1", "progress": 3, "detail": {"step": 1}}, {"receipt": "r-2"}],
    }
    assert sent(leases.ack_many([Ack(held, 0), Ack("r-2")])) == {"leases": [{"receipt": "r-1", "output": 0}, {"receipt": "r-2"}]}
    assert sent(leases.nack_many([Nack(held, "disk full", 2.5, retryable=False)])) == {
        "leases": [{"receipt": "r-1", "error": "disk full", "delay": 2.5, "retryable": False}]
    }
    assert sent(leases.release_many([held, "r-2"])) == {"leases": [{"receipt": "r-1"}, {"receipt": "r-2"}]}


def test_queries_name_only_what_is_given() -> None:
    assert messages.list_messages("q", status="failed", cursor="9", limit=5).query == {"status": "failed", "cursor": "9", "limit": "5"}
    assert leases.list_leases(queue="q", overdue=False).query == {"queue": "q", "overdue": "false"}
    assert queues.list_queues(cursor="a", limit=5).query == {"cursor": "a", "limit": "5"}
    assert queues.list_queues().query == {}
    assert queues.delete_queue("q", force=True).query == {"force": "true"}
    assert queues.delete_queue("q").query == {}


@pytest.mark.parametrize(("name", "path"), [("a/b", "/queues/a%2Fb"), ("a?b", "/queues/a%3Fb"), ("é", "/queues/%C3%A9")])
def test_a_name_stays_one_part_of_the_path(name: str, path: str) -> None:
    assert queues.get_queue(name).path == path


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_that_would_change_the_path_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        queues.delete_queue(name)


@pytest.mark.parametrize("body", [float("nan"), float("inf"), object(), {1, 2}])
def test_what_has_no_json_form_is_refused_before_it_is_sent(body: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        messages.send("q", body)


# --- answers


def test_a_lease_is_typed_and_counts_from_the_moment_of_sending() -> None:
    (held,) = finish(leases.claim("q", worker_id="w"), reply({"leases": [lease(expires_in=30.0)]}, sent_at=100.0, answered_at=104.0))
    assert held.valid_until == 130.0
    assert (held.generation, held.attempt, held.expires_at) == (1, 1, MOMENT)
    assert (held.message.id, held.message.body, held.message.created_at) == ("42", {"file": "a.wav"}, MOMENT)


@pytest.mark.scar(18)
def test_a_parked_claim_counts_from_its_grant() -> None:
    claimed = finish(
        leases.claim("q", worker_id="w", wait=20),
        reply({"waited": 15.0, "leases": [lease(expires_in=3.0)]}, sent_at=100.0, answered_at=115.5),
    )
    assert claimed[0].valid_until == 118.0


def test_a_wait_longer_than_the_call_is_not_believed() -> None:
    claimed = finish(
        leases.claim("q", worker_id="w", wait=20),
        reply({"waited": 500.0, "leases": [lease(expires_in=3.0)]}, sent_at=100.0, answered_at=115.0),
    )
    assert claimed[0].valid_until == 118.0


def test_a_beat_result_counts_from_the_moment_of_sending() -> None:
    result = finish(leases.beat("r"), reply({"results": [beat_result(expires_in=60.0)]}, sent_at=100.0, answered_at=109.0))
    assert (result.status, result.valid_until, result.refused) == ("extended", 160.0, False)


def test_what_a_newer_service_adds_is_ignored() -> None:
    result = finish(leases.ack("r"), reply({"results": [{"receipt": "r", "status": "acked", "late": True, "novelty": 1}], "drain": True}))
    assert result.late


def test_a_queue_keeps_its_warnings() -> None:
    payload = {
        "name": "q",
        "visibility_timeout": 300.0,
        "extension": 300.0,
        "beat_interval": 60.0,
        "extension_enabled": True,
        "max_lease": 43200.0,
        "max_attempts": 3,
        "progress_required": False,
        "weights": {"a": 2},
        "created_at": "2026-12-01T12:00:00Z",
        "updated_at": "2026-12-01T12:00:00Z",
        "warnings": ["mind the interval"],
    }
    page = finish(queues.list_queues(), reply({"items": [payload], "next_cursor": "q"}))
    assert page.next_cursor == "q"
    assert (page.items[0].warnings, page.items[0].weights, page.items[0].created_at) == (("mind the interval",), {"a": 2}, MOMENT)


REFUSALS = {
    "expired": leasebeat.LeaseExpiredError,
    "lost": leasebeat.LeaseConflictError,
    "settled": leasebeat.LeaseSettledError,
    "cancelled": leasebeat.LeaseCancelledError,
    "unknown": leasebeat.UnknownLeaseError,
}


@pytest.mark.parametrize(("status", "error"), REFUSALS.items())
def test_a_call_for_one_lease_raises_why_it_was_refused(status: str, error: type[leasebeat.LeaseLostError]) -> None:
    (held,) = finish(leases.claim("q", worker_id="w"), reply({"leases": [lease("r-1")]}))
    calls: list[Call[Any]] = [leases.beat(held), leases.ack(held), leases.nack(held), leases.release(held)]
    for call in calls:
        with pytest.raises(error) as caught:
            finish(call, reply({"results": [{"receipt": "r-1", "status": status}]}))
        assert (caught.value.status, caught.value.message_id) == (status, "42")


@pytest.mark.parametrize("status", REFUSALS)
def test_a_call_for_many_returns_refusals(status: str) -> None:
    good, bad = finish(
        leases.ack_many([Ack("r-1"), Ack("r-2")]),
        reply({"results": [{"receipt": "r-1", "status": "acked", "late": False}, {"receipt": "r-2", "status": status, "late": False}]}),
    )
    assert (good.refused, bad.refused) == (False, True)
    good.raise_if_refused()
    with pytest.raises(REFUSALS[status]):
        bad.raise_if_refused()


@pytest.mark.parametrize(("status", "code"), [("error", "row-refused"), ("novelty", None)])
def test_a_verdict_that_is_neither_success_nor_refusal_is_a_server_error(status: str, code: str | None) -> None:
    (held,) = finish(leases.claim("q", worker_id="w"), reply({"leases": [lease("r-1")]}))
    answer = reply({"results": [{"receipt": "r-1", "status": status}]})
    single: list[Call[Any]] = [leases.beat(held), leases.ack(held), leases.nack(held), leases.release(held)]
    for call in single:
        with pytest.raises(leasebeat.ServerError, match="the lease of message 42") as caught:
            finish(call, answer)
        assert (caught.value.status, caught.value.code) == (500, code)
    many: list[Call[Any]] = [leases.beat_many([Beat(held)]), leases.ack_many([Ack(held)]), leases.release_many([held])]
    for call in many:
        (verdict,) = finish(call, answer)
        assert (verdict.succeeded, verdict.refused) == (False, False)
        with pytest.raises(leasebeat.ServerError):
            verdict.raise_if_refused()


def test_a_receipt_handle_that_expired_is_one_that_ran_out_or_was_taken_over() -> None:
    caught = {status for status, error in REFUSALS.items() if issubclass(error, leasebeat.ReceiptHandleExpiredError)}
    assert caught == {"expired", "lost", "unknown"}


def test_receipts_never_show() -> None:
    (held,) = finish(leases.claim("q", worker_id="w"), reply({"leases": [lease("secret-1")]}))
    beaten = finish(leases.beat(held), reply({"results": [beat_result("secret-1")]}))
    shown = [held, beaten, Beat("secret-1"), Ack("secret-1"), Nack("secret-1"), leases.beat(held), leases.release("secret-1")]
    assert "secret-1" not in repr(shown)
    with pytest.raises(leasebeat.LeaseExpiredError) as caught:
        finish(leases.ack(held), reply({"results": [{"receipt": "secret-1", "status": "expired", "late": False}]}))
    assert "secret-1" not in f"{caught.value} {caught.value!r}"


# --- errors

PROBLEMS = [
    (404, "queue-not-found", leasebeat.NotFoundError),
    (404, "message-not-found", leasebeat.NotFoundError),
    (409, "queue-not-empty", leasebeat.ConflictError),
    (409, "queue-protected", leasebeat.ConflictError),
    (422, "invalid-request", leasebeat.InvalidRequestError),
    (413, "body-too-large", leasebeat.InvalidRequestError),
    (415, "unsupported-media-type", leasebeat.InvalidRequestError),
    (503, "overloaded", leasebeat.UnavailableError),
    (503, "database-unavailable", leasebeat.UnavailableError),
    (500, "internal", leasebeat.ServerError),
    (418, "teapot", leasebeat.ApiError),
]


@pytest.mark.parametrize(("status", "code", "error"), PROBLEMS)
def test_a_problem_becomes_its_exception(status: int, code: str, error: type[leasebeat.ApiError]) -> None:
    with pytest.raises(leasebeat.ApiError) as caught:
        finish(queues.get_queue("q"), reply({"code": code, "status": status, "detail": "what happened", "request_id": "r-1"}, status))
    assert type(caught.value) is error
    assert (caught.value.status, caught.value.code, caught.value.detail, caught.value.request_id) == (status, code, "what happened", "r-1")
    assert str(caught.value) == f"{status} {code} what happened (request r-1)"


def test_an_invalid_request_names_its_fields() -> None:
    payload = {"code": "invalid-request", "detail": "no", "errors": [{"field": "messages.0.delay", "message": "must be at least 0"}]}
    with pytest.raises(leasebeat.InvalidRequestError, match=r"messages\.0\.delay: must be at least 0") as caught:
        finish(messages.send("q", 1, delay=-1), reply(payload, 422))
    assert [(error.field, error.message) for error in caught.value.errors] == [("messages.0.delay", "must be at least 0")]


@pytest.mark.parametrize("body", [b"<html>Bad gateway</html>", b"", b"[]", b"null"])
def test_an_answer_from_something_else_still_has_its_status(body: bytes) -> None:
    answer = Reply(status=502, body=body, retry_after=None, sent_at=0, answered_at=1)
    with pytest.raises(leasebeat.ServerError) as caught:
        finish(queues.get_queue("q"), answer)
    assert (caught.value.status, caught.value.code) == (502, None)


@pytest.mark.parametrize("body", [b"<html>Welcome</html>", b"", b"[]", b"{}", b'{"results": []}', b'{"results": [{"status": "acked"}]}'])
def test_a_good_status_with_a_strange_answer_is_an_api_error(body: bytes) -> None:
    with pytest.raises(leasebeat.ApiError, match="is not what the service sends"):
        finish(leases.ack("r"), Reply(status=200, body=body, retry_after=None, sent_at=0, answered_at=1))


def test_not_being_ready_is_a_result() -> None:
    payload = {"status": "not-ready", "database": "unreachable", "timer_lag": 0.0, "version": "0.1.0"}
    assert finish(platform.readyz(), reply(payload, 503)).database == "unreachable"


def test_a_message_is_typed() -> None:
    payload = message() | {
        "status": "completed",
        "available_at": "2026-12-01T12:00:00.000000Z",
        "generation": 1,
        "nacked_count": 0,
        "expired_count": 0,
        "released_count": 0,
        "unconfirmed_count": 0,
        "output": {"seconds": 12.5},
        "error": None,
        "finished_at": None,
    }
    found = finish(messages.get_message("42"), reply(payload))
    assert (found.status, found.output, found.available_at, found.finished_at) == ("completed", {"seconds": 12.5}, MOMENT, None)
