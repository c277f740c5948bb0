"""Requests and answers, without a network: the wire is exactly what the service's models say."""

import inspect
import json
import pickle
from datetime import UTC, datetime
from typing import Any

import pytest
from sdk.scripted_service import beat_result, lease, message

import leasebeat
from leasebeat import Ack, Backoff, Beat, Bounds, Client, Nack, NewMessage
from leasebeat._call import Call, Reply, finish
from leasebeat._calls import figures, leases, messages, platform, queues, registry

MOMENT = datetime(2026, 12, 1, 12, tzinfo=UTC)
COUNTS = {"scheduled": 1, "pending": 2, "in_progress": 3, "completed": 4, "failed": 5, "cancelled": 6}


def reply(payload: object, status: int = 200, *, sent_at: float = 100.0, answered_at: float = 101.0) -> Reply:
    return Reply(status=status, body=json.dumps(payload).encode(), retry_after=None, sent_at=sent_at, answered_at=answered_at)


def sent(call: Call[Any]) -> Any:
    return json.loads(call.content or b"null")


# --- requests


def test_put_queue_sends_only_what_is_given() -> None:
    call = queues.put_queue("reports", visibility_timeout=30, weights={"a": 2}, progress_required=False)
    assert (call.method, call.path) == ("PUT", "/queues/reports")
    assert sent(call) == {"visibility_timeout": 30, "weights": {"a": 2}, "progress_required": False}
    assert sent(queues.put_queue("reports")) == {}


def test_put_queue_sends_nested_settings_whole() -> None:
    call = queues.put_queue(
        "q",
        backoff=Backoff(initial=5),
        dead_letter_queue="dead",
        max_in_flight=9,
        retention=60,
        adaptive=True,
        adaptive_bounds=Bounds(min=1, max=2),
        paused=False,
    )
    assert sent(call) == {
        "backoff": {"initial": 5, "factor": 2.0, "max": 900.0, "jitter": True},
        "dead_letter_queue": "dead",
        "max_in_flight": 9,
        "retention": 60,
        "adaptive": True,
        "adaptive_bounds": {"min": 1, "max": 2},
        "paused": False,
    }


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


def test_each_send_has_a_key_of_its_own() -> None:
    first, second = messages.send("q", 1), messages.send_many("q", [NewMessage(1)])
    keys = [call.headers["idempotency-key"] for call in (first, second)]
    assert [len(key) for key in keys] == [32, 32]
    assert keys[0] != keys[1]
    assert messages.send("q", 1, idempotency_key="mine").headers == {"idempotency-key": "mine"}
    assert messages.send_many("q", [], idempotency_key="mine").headers == {"idempotency-key": "mine"}


@pytest.mark.parametrize("key", ["", " ", "a ", "a\nb", "é", "a\0"])
def test_a_key_that_is_no_header_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="idempotency key"):
        messages.send("q", 1, idempotency_key=key)


def test_a_dedup_key_goes_with_its_message() -> None:
    assert sent(messages.send("q", 1, dedup_key="invoice-7")) == {"messages": [{"body": 1, "dedup_key": "invoice-7"}]}
    assert sent(messages.send_many("q", [NewMessage(1, dedup_key="a"), NewMessage(2)]))["messages"] == [
        {"body": 1, "dedup_key": "a"},
        {"body": 2},
    ]


OPERATOR_CALLS: list[tuple[Call[Any], str, str, Any]] = [
    (messages.cancel_message("7"), "POST", "/messages/7/cancel", {}),
    (queues.pause_queue("q"), "POST", "/queues/q/pause", {}),
    (queues.resume_queue("q"), "POST", "/queues/q/resume", {}),
    (queues.purge_queue("q"), "POST", "/queues/q/purge", {}),
    (queues.purge_queue("q", ["failed", "cancelled"]), "POST", "/queues/q/purge", {"statuses": ["failed", "cancelled"]}),
    (queues.purge_queue("q", "failed"), "POST", "/queues/q/purge", {"statuses": ["failed"]}),
    (queues.redrive("q"), "POST", "/queues/q/redrive", {}),
    (queues.redrive("q", limit=5, to="other"), "POST", "/queues/q/redrive", {"limit": 5, "to": "other"}),
    (registry.list_workers(), "GET", "/workers", None),
    (registry.get_worker("w"), "GET", "/workers/w", None),
    (registry.drain_worker("w"), "POST", "/workers/w/drain", {"draining": True}),
    (registry.drain_worker("w", draining=False), "POST", "/workers/w/drain", {"draining": False}),
    (registry.delete_worker("w"), "DELETE", "/workers/w", None),
    (figures.stats(), "GET", "/stats", None),
    (figures.sweep(), "POST", "/recovery/sweep", {}),
    (figures.recovery(), "GET", "/recovery", None),
]


@pytest.mark.parametrize(("call", "method", "path", "body"), OPERATOR_CALLS)
def test_what_an_operator_calls(call: Call[Any], method: str, path: str, body: Any) -> None:
    assert (call.method, call.path, sent(call)) == (method, path, body)


CALLS: dict[str, Call[Any]] = {
    "put_queue": queues.put_queue("q"),
    "get_queue": queues.get_queue("q"),
    "list_queues": queues.list_queues(),
    "delete_queue": queues.delete_queue("q"),
    "pause_queue": queues.pause_queue("q"),
    "resume_queue": queues.resume_queue("q"),
    "purge_queue": queues.purge_queue("q"),
    "redrive": queues.redrive("q", to="other"),
    "send": messages.send("q", 1),
    "send_many": messages.send_many("q", [NewMessage(1)]),
    "get_message": messages.get_message("1"),
    "list_messages": messages.list_messages("q"),
    "list_checkpoints": messages.list_checkpoints("1"),
    "cancel_message": messages.cancel_message("1"),
    "claim": leases.claim("q", worker_id="w"),
    "beat": leases.beat("r"),
    "beat_many": leases.beat_many([Beat("r")]),
    "ack": leases.ack("r"),
    "ack_many": leases.ack_many([Ack("r")]),
    "nack": leases.nack("r"),
    "nack_many": leases.nack_many([Nack("r")]),
    "release": leases.release("r"),
    "release_many": leases.release_many(["r"]),
    "list_leases": leases.list_leases(),
    "list_workers": registry.list_workers(),
    "get_worker": registry.get_worker("w"),
    "drain_worker": registry.drain_worker("w"),
    "delete_worker": registry.delete_worker("w"),
    "stats": figures.stats(),
    "sweep": figures.sweep(),
    "recovery": figures.recovery(),
    "healthz": platform.healthz(),
    "readyz": platform.readyz(),
}
"""One of each."""


def test_none_is_missing() -> None:
    methods = {name for name, _ in inspect.getmembers(Client, inspect.isfunction) if not name.startswith("_")}
    assert methods - {"close"} == set(CALLS)


def test_only_a_limited_redrive_and_the_deletion_of_a_worker_are_not_repeatable() -> None:
    assert [name for name, call in CALLS.items() if not call.repeatable] == ["delete_worker"]
    assert not queues.redrive("q", limit=5).repeatable


def test_each_claim_has_a_name_of_its_own() -> None:
    first, second = leases.claim("q", worker_id="w"), leases.claim("q", worker_id="w")
    assert len(sent(first)["claim_id"]) == 32
    assert sent(first)["claim_id"] != sent(second)["claim_id"]
    assert sent(leases.claim("q", worker_id="w", claim_id="mine"))["claim_id"] == "mine"


def test_claim_sends_what_is_given() -> None:
    call = leases.claim("q", worker_id="w", max_messages=3, visibility_timeout=9.5, wait=20, claim_id="c", confirm_within=2)
    assert (call.path, call.wait) == ("/queues/q/leases", 20)
    assert sent(call) == {"worker_id": "w", "max_messages": 3, "visibility_timeout": 9.5, "wait": 20, "claim_id": "c", "confirm_within": 2}
    filtered = leases.claim("q", worker_id="w", claim_id="c", work_types=("a", "b"), task_id="t", host="h", version="1")
    assert sent(filtered) | {"work_types": ["a", "b"], "task_id": "t", "host": "h", "version": "1"} == sent(filtered)
    assert sent(leases.claim("q", worker_id="w", work_types="transcode"))["work_types"] == ["transcode"]


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
    assert sent(leases.nack_many([Nack("r-2")])) == {"leases": [{"receipt": "r-2", "retryable": True}]}, "the backoff is the queue's"
    assert sent(leases.release_many([held, "r-2"])) == {"leases": [{"receipt": "r-1"}, {"receipt": "r-2"}]}


def test_queries_name_only_what_is_given() -> None:
    assert messages.list_messages("q", status="failed", cursor="9", limit=5).query == {"status": "failed", "cursor": "9", "limit": "5"}
    assert leases.list_leases(queue="q", overdue=False).query == {"queue": "q", "overdue": "false"}
    assert queues.list_queues(cursor="a", limit=5).query == {"cursor": "a", "limit": "5"}
    assert queues.list_queues().query == {}
    assert registry.list_workers(cursor="a", limit=5).query == {"cursor": "a", "limit": "5"}
    assert figures.stats("q").query == {"queue": "q"}
    assert figures.stats().query == {}
    assert queues.delete_queue("q", force=True).query == {"force": "true"}
    assert queues.delete_queue("q").query == {}


@pytest.mark.parametrize(("name", "path"), [("a/b", "/queues/a%2Fb"), ("a?b", "/queues/a%3Fb"), ("é", "/queues/%C3%A9")])
def test_a_name_stays_one_part_of_the_path(name: str, path: str) -> None:
    assert queues.get_queue(name).path == path


@pytest.mark.parametrize(("name", "path"), [(".", "/workers/%2E"), ("..", "/workers/%2E%2E"), ("a..b", "/workers/a..b")])
def test_a_name_of_dots_does_not_change_the_path(name: str, path: str) -> None:
    assert registry.get_worker(name).path == path


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        queues.delete_queue("")


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


@pytest.mark.parametrize("drain", [False, True])
def test_claims_and_beats_say_whether_to_drain(drain: bool) -> None:
    claimed = finish(leases.claim("q", worker_id="w"), reply({"leases": [lease()], "drain": drain}))
    beaten = finish(leases.beat_many([Beat("r")]), reply({"results": [beat_result("r")], "drain": drain}))
    assert (claimed.drain, beaten.drain) == (drain, drain)
    assert ([held.message.id for held in claimed], [result.status for result in beaten]) == (["42"], ["extended"])
    copied = pickle.loads(pickle.dumps(claimed))
    assert (copied, copied.drain) == (claimed, drain)


def test_what_a_newer_service_adds_is_ignored() -> None:
    result = finish(leases.ack("r"), reply({"results": [{"receipt": "r", "status": "acked", "late": True, "novelty": 1}], "drain": True}))
    assert result.late


def test_a_queue_is_typed_throughout() -> None:
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
        "backoff": {"initial": 5.0, "factor": 3.0, "max": 60.0, "jitter": False},
        "dead_letter_queue": "dead",
        "max_in_flight": None,
        "retention": 604800.0,
        "adaptive": True,
        "adaptive_bounds": {"min": 1.0, "max": 60.0},
        "paused": False,
        "derived": None,
        "figures": {**COUNTS, "as_of": "2026-12-01T12:00:00Z"},
        "created_at": "2026-12-01T12:00:00Z",
        "updated_at": "2026-12-01T12:00:00Z",
        "warnings": ["mind the interval"],
    }
    page = finish(queues.list_queues(), reply({"items": [payload], "next_cursor": "q"}))
    assert page.next_cursor == "q"
    (queue,) = page.items
    assert (queue.warnings, queue.weights, queue.created_at) == (("mind the interval",), {"a": 2}, MOMENT)
    assert (queue.backoff, queue.adaptive_bounds) == (Backoff(initial=5, factor=3, max=60, jitter=False), Bounds(min=1, max=60))
    assert (queue.derived, queue.figures) == (None, leasebeat.QueueFigures(**COUNTS, as_of=MOMENT))
    derived: dict[str, Any] = {"visibility_timeout": 84.0, "beat_interval": 8.4, "sweep_interval": 16.8, "samples": 1000}
    assert finish(queues.get_queue("q"), reply(payload | {"derived": derived})).derived == leasebeat.DerivedTimes(**derived)


def test_stats_are_typed_throughout() -> None:
    payload = {
        "as_of": None,
        "refresh": 10.0,
        "leases": {"active": 40, "stale": 1, "overdue": 0},
        "messages": COUNTS,
        "retries": [{"attempt_count": 0, "completed": 118, "failed": 0}, {"attempt_count": 1, "completed": 2, "failed": 1}],
    }
    stats = finish(figures.stats(), reply(payload))
    assert (stats.as_of, stats.leases, stats.messages) == (
        None,
        leasebeat.LeaseHealth(active=40, stale=1, overdue=0),
        leasebeat.MessageCounts(**COUNTS),
    )
    assert [retry.completed for retry in stats.retries] == [118, 2]
    assert finish(figures.stats(), reply(payload | {"as_of": "2026-12-01T12:00:00Z"})).as_of == MOMENT


def test_a_worker_has_its_leases_and_a_list_of_leases_its_moment() -> None:
    held = {
        "message_id": "42",
        "queue": "q",
        "worker_id": "w",
        "generation": 1,
        "acquired_at": "2026-12-01T12:00:00Z",
        "expires_at": "2026-12-01T12:00:00Z",
        "expires_in": -2.0,
        "expired": True,
        "last_beat_at": None,
        "since_beat": 12.0,
        "overdue": 2.0,
        "progress": None,
        "detail": None,
    }
    worker = {
        "worker_id": "w",
        "host": None,
        "version": "1.4.0",
        "first_seen_at": "2026-12-01T12:00:00Z",
        "last_seen_at": "2026-12-01T12:00:00Z",
        "silent_for": 3.2,
        "stale": False,
        "draining": False,
        "held_leases": 1,
        "leases": [held],
    }
    page = finish(leases.list_leases(overdue=True), reply({"items": [held], "as_of": "2026-12-01T12:00:00Z", "next_cursor": None}))
    found = finish(registry.get_worker("w"), reply(worker))
    assert (page.as_of, page.items) == (MOMENT, found.leases)
    assert (found.leases[0].overdue, found.leases[0].last_beat_at, found.last_seen_at) == (2.0, None, MOMENT)
    assert finish(registry.delete_worker("w"), Reply(status=204, body=b"", retry_after=None, sent_at=0, answered_at=1)) is None


def test_recovery_has_its_last_scan() -> None:
    scan: dict[str, Any] = {"expired_found": 3, "recovered": 2, "failed": 1, "checkpoints_created": 3, "errors": 0, "scan_duration_ms": 4.2}
    totals = dict.fromkeys(["total_scans", "total_expired", "total_recovered", "total_failed", "total_checkpoints", "total_errors"], 7)
    payload = {**totals, "is_running": True, "recovery_rate": None, "as_of": "2026-12-01T12:00:00Z", "last_scan": None}
    assert finish(figures.recovery(), reply(payload)).last_scan is None
    found = finish(figures.recovery(), reply(payload | {"last_scan": {**scan, "ended_at": "2026-12-01T12:00:00Z"}}))
    assert (found.total_errors, found.as_of, found.last_scan) == (7, MOMENT, leasebeat.LastScan(**scan, ended_at=MOMENT))
    assert finish(figures.sweep(), reply(scan)) == leasebeat.RecoveryStats(**scan)


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
    (404, "worker-not-found", leasebeat.NotFoundError),
    (409, "queue-in-use", leasebeat.ConflictError),
    (409, "message-finished", leasebeat.ConflictError),
    (403, "foreign-origin", leasebeat.ApiError),
    (422, "idempotency-key-reused", leasebeat.InvalidRequestError),
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


TOO_DEEP = b"[" * 100_000

STRANGE_PROBLEMS = [
    b"<html>Bad gateway</html>",
    b"",
    b"[]",
    b"null",
    b"\xff",
    TOO_DEEP,
    b'{"errors": ["too large"]}',
    b'{"errors": {"field": "too large"}}',
    b'{"errors": "too large"}',
    b'{"errors": 413}',
    b'{"code": 403}',
    b'{"detail": [{"loc": ["body"], "msg": "too large"}]}',
    b'{"code": {}, "detail": {}, "request_id": 7}',
]


@pytest.mark.parametrize("status", [302, 400, 403, 404, 409, 413, 415, 422, 429, 500, 502, 503])
def test_an_answer_from_something_else_still_has_its_status(status: int) -> None:
    for body in STRANGE_PROBLEMS:
        with pytest.raises(leasebeat.ApiError) as caught:
            finish(leases.claim("q", worker_id="w"), Reply(status=status, body=body, retry_after=None, sent_at=0, answered_at=1))
        assert (caught.value.status, caught.value.code, str(caught.value)) == (status, None, str(status)), body


def test_of_errors_in_another_form_what_can_be_read_is_kept() -> None:
    with pytest.raises(leasebeat.InvalidRequestError) as caught:
        finish(queues.put_queue("q"), reply({"errors": [7, {"field": "weights", "message": ["no"]}, "no"]}, 422))
    assert caught.value.errors == (leasebeat.FieldError("weights", "['no']"),)


STRANGE_ANSWERS = [
    b"<html>Welcome</html>",
    b"",
    b"null",
    b"7",
    b'"ok"',
    b"[]",
    b"{}",
    TOO_DEEP,
    b'{"leases": "none", "messages": "none", "items": "none", "results": "none"}',
    b'{"leases": ["none"], "messages": ["none"], "items": ["none"], "results": ["none"]}',
    b'{"results": []}',
    b'{"results": [{"status": "acked"}]}',
    b'{"messages": []}',
]


@pytest.mark.parametrize("name", CALLS)
def test_a_good_status_with_a_strange_answer_is_an_api_error(name: str) -> None:
    for body in STRANGE_ANSWERS:
        if CALLS[name].method == "DELETE" and not body:
            continue  # that is what the service sends
        with pytest.raises(leasebeat.ApiError, match="is not what the service sends") as caught:
            finish(CALLS[name], Reply(status=200, body=body, retry_after=None, sent_at=0, answered_at=1))
        assert (caught.value.status, caught.value.turned_away, caught.value.passing) == (200, False, False), body


@pytest.mark.parametrize(
    "call",
    [
        leases.beat_many([Beat("r-1"), Beat("r-2")]),
        leases.ack_many([Ack("r-1"), Ack("r-2")]),
        leases.nack_many([Nack("r-1"), Nack("r-2")]),
        leases.release_many(["r-1", "r-2"]),
    ],
)
@pytest.mark.parametrize("count", [1, 3])
def test_an_answer_has_one_verdict_for_each_lease(call: Call[Any], count: int) -> None:
    with pytest.raises(leasebeat.ApiError, match="is not what the service sends"):
        finish(call, reply({"results": [beat_result(f"r-{number}") for number in range(count)]}))


@pytest.mark.parametrize("status", [408, 425, 429, 502, 503, 504])
def test_what_passes_is_no_refusal_and_may_say_when_to_come_back(status: int) -> None:
    for retry_after in (None, 7.0):
        with pytest.raises(leasebeat.ApiError) as caught:
            finish(leases.ack("r"), Reply(status=status, body=b"", retry_after=retry_after, sent_at=0, answered_at=1))
        assert (caught.value.passing, caught.value.turned_away, caught.value.retry_after) == (True, False, retry_after)


@pytest.mark.parametrize(
    ("status", "turned_away"), [(400, True), (401, True), (404, True), (409, True), (422, True), (302, False), (500, False)]
)
def test_what_stays_passes_by_no_wait(status: int, turned_away: bool) -> None:
    with pytest.raises(leasebeat.ApiError) as caught:
        finish(leases.ack("r"), Reply(status=status, body=b"", retry_after=None, sent_at=0, answered_at=1))
    assert (caught.value.passing, caught.value.turned_away) == (False, turned_away)


def test_an_error_that_is_no_answer_turns_nothing_away() -> None:
    unreachable = leasebeat.ServiceUnreachableError("no answer", maybe_processed=True, broken=True)
    assert (unreachable.passing, unreachable.turned_away, unreachable.retry_after) == (True, False, None)
    lost = leasebeat.LeaseExpiredError("expired")
    assert (lost.passing, lost.turned_away, lost.retry_after) == (False, False, None)


def test_not_being_ready_is_a_result() -> None:
    payload = {"status": "not-ready", "database": "unreachable", "timer_lag": 0.0, "version": "0.1.0"}
    assert finish(platform.readyz(), reply(payload, 503)).database == "unreachable"


def test_a_message_is_typed() -> None:
    payload = message() | {
        "status": "completed",
        "available_at": "2026-12-01T12:00:00.000000Z",
        "generation": 1,
        "failed_count": 2,
        "expired_count": 0,
        "released_count": 0,
        "unconfirmed_count": 0,
        "output": {"seconds": 12.5},
        "error": None,
        "reason": "nacked",
        "failed_workers": ["a", "b"],
        "dedup_key": None,
        "leased_at": None,
        "started_at": "2026-12-01T12:00:00.000000Z",
        "finished_at": None,
    }
    found = finish(messages.get_message("42"), reply(payload))
    assert (found.status, found.output, found.available_at, found.finished_at) == ("completed", {"seconds": 12.5}, MOMENT, None)
    assert (found.failed_workers, found.failed_count, found.leased_at, found.started_at) == (("a", "b"), 2, None, MOMENT)
