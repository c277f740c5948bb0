"""When a worker beats, and what for."""

import threading
import time
from itertools import count
from typing import Any

import pytest
from harness.wait import until
from sdk.running import CLAIM, Start, beat_until, grant, grant_until_settled, park
from sdk.scripted_service import Answer, Received, ScriptedService, beat_result, beats, lease, message, problem

from leasebeat import Context, LeasedMessage
from sdk import process_handlers


@pytest.mark.scar(12)
def test_a_handler_that_does_not_move_is_not_beaten_for(service: ScriptedService, start: Start) -> None:
    service.on("POST", CLAIM, grant_until_settled(service, lease(expires_in=2.0)))
    start(lambda _message, context: context.lost.wait(60))
    service.wait_for("/ack")
    assert service.asked("/beat") == []


@pytest.mark.scar(12)
def test_one_beat_is_sent_once_though_its_interval_passes(service: ScriptedService, start: Start) -> None:
    service.on("POST", "/beat", beats(expires_in=1.0, next_beat_in=0.05))

    def handle(_message: LeasedMessage, context: Context) -> None:
        context.beat(progress=1)
        service.wait_for("/beat")
        time.sleep(0.4)

    start(handle)
    service.wait_for("/ack")
    assert len(service.asked("/beat")) == 1


@pytest.mark.scar(6, 13)
def test_beats_go_out_when_the_service_says_so_with_the_newest_report(service: ScriptedService, start: Start) -> None:
    service.on("POST", "/beat", beats(expires_in=10.0, next_beat_in=0.5))

    def handle(_message: LeasedMessage, context: Context) -> None:
        progress = count()

        def beaten_for() -> bool:
            context.beat(progress=next(progress))
            return len(service.asked("/beat")) >= 3

        until(beaten_for)

    started = time.monotonic()
    start(handle)
    service.wait_for("/ack")
    sent = service.asked("/beat")
    assert sent[2].at - started >= 2 * 0.5
    reported = [request.body["leases"][0]["progress"] for request in sent]
    assert reported == sorted(set(reported))


def test_work_that_moves_is_beaten_for_at_half_of_the_time_left(service: ScriptedService, start: Start) -> None:
    service.on("POST", "/beat", beats("held", expires_in=6.0, next_beat_in=60.0))

    def handle(_message: LeasedMessage, context: Context) -> None:
        beat_until(context, lambda: len(service.asked("/beat")) > 1)

    started = time.monotonic()
    start(handle)
    service.wait_for("/ack")
    assert 3.0 <= service.asked("/beat")[1].at - started < 30


@pytest.mark.scar(9)
def test_a_beat_that_the_database_refuses_is_repeated_after_a_pause(service: ScriptedService, start: Start) -> None:
    service.on("POST", "/beat", beats("error", expires_in=None, next_beat_in=None))

    def handle(_message: LeasedMessage, context: Context) -> bool:
        beat_until(context, lambda: len(service.asked("/beat")) >= 5)
        service.on("POST", "/beat", beats())
        service.wait_for("/beat", len(service.asked("/beat")) + 1)
        return context.lost.is_set()

    started = time.monotonic()
    start(handle)
    (ack,) = service.wait_for("/ack")
    assert ack.body["leases"][0]["output"] is False
    assert service.asked("/beat")[4].at - started >= 0.05 + 0.1 + 0.2 + 0.4, "each pause is longer than the one before"


def test_a_refused_beat_pauses_no_other_lease(service: ScriptedService, start: Start) -> None:
    """Two leases in a call: the row of one is refused, the other is extended every 0.1 seconds."""

    def answer(request: Received) -> Answer:
        words = {"bad": ("error", None, None), "good": ("extended", 10.0, 0.1)}
        return Answer({"results": [beat_result(item["receipt"], *words[item["receipt"]]) for item in request.body["leases"]]})

    service.on("POST", CLAIM, grant(*(lease(name, message=message(id=name)) for name in ("bad", "good"))), park)
    service.on("POST", "/beat", answer)

    def handle(_message: LeasedMessage, context: Context) -> None:
        beat_until(context, lambda: calls().count(["good"]) > 1 and sent().count("bad") > 1)

    def calls() -> list[list[str]]:
        return [[item["receipt"] for item in request.body["leases"]] for request in service.asked("/beat")]

    def sent() -> list[str]:
        return [receipt for call in calls() for receipt in call]

    started = time.monotonic()
    start(handle, concurrency=2)
    service.wait_for("/ack", 2)
    assert time.monotonic() - started >= (sent().count("good") - 1) * 0.5, "spaced by a twentieth of the time left"


@pytest.mark.scar(11)
def test_a_handler_that_blocks_its_event_loop_is_beaten_for(service: ScriptedService, start: Start) -> None:
    service.on("POST", "/beat", beats(expires_in=4.0, next_beat_in=0.1))

    async def handle(_message: LeasedMessage, context: Context) -> bool:
        beat_until(context, lambda: len(service.asked("/beat")) > 2)  # it never awaits: the fault that must not cost the lease
        return context.lost.is_set()

    start(handle)
    assert service.wait_for("/ack")[0].body["leases"][0]["output"] is False


def test_leases_that_moved_meanwhile_share_one_call(service: ScriptedService, start: Start) -> None:
    answer = threading.Event()

    def first_beat(request: Received) -> Answer:
        answer.wait(60)
        return beats()(request)

    service.on("POST", CLAIM, grant(*(lease(f"r-{n}", message=message(id=str(n))) for n in range(3))), park)
    service.on("POST", "/beat", first_beat, beats())
    moved = threading.Barrier(2)
    done = threading.Event()

    def handle(message: LeasedMessage, context: Context) -> None:
        if message.id != "0":
            service.wait_for("/beat")
            context.beat(progress=1)
            moved.wait(60)
            answer.set()
        else:
            context.beat(progress=1)
        done.wait(60)

    start(handle, concurrency=3)
    first, second = service.wait_for("/beat", 2)
    done.set()
    assert [item["receipt"] for item in first.body["leases"]] == ["r-0"]
    assert {item["receipt"] for item in second.body["leases"]} == {"r-1", "r-2"}


def test_beats_of_the_heartbeat_count(service: ScriptedService, start: Start) -> None:
    start(lambda _message, context: context.heartbeat.beat())
    service.wait_for("/beat")


def test_a_beat_costs_microseconds(service: ScriptedService, start: Start) -> None:
    start(process_handlers.cost)
    assert service.wait_for("/ack")[0].body["leases"][0]["output"] < 50e-6


@pytest.mark.parametrize(
    ("report", "error"),
    [
        ({"progress": -1}, ValueError),
        ({"progress": 2**63}, ValueError),
        ({"progress": 1.5}, TypeError),
        ({"progress": True}, TypeError),
        ({"detail": object()}, TypeError),
        ({"detail": float("nan")}, ValueError),
        ({"detail": "x" * 9000}, ValueError),
        ({"detail": {"at": "a\0b"}}, ValueError),
        ({"detail": ["\ud800"]}, ValueError),
    ],
)
def test_a_report_that_the_service_would_refuse_fails_where_it_is_made(
    report: dict[str, Any], error: type[Exception], service: ScriptedService, start: Start
) -> None:
    def handle(_message: LeasedMessage, context: Context) -> str:
        with pytest.raises(error):
            context.beat(**report)
        return "refused"

    start(handle)
    assert service.wait_for("/ack")[0].body["leases"][0]["output"] == "refused"
    assert service.asked("/beat") == []


@pytest.mark.parametrize("detail", ["\\u0000", "\U0001f600", "a\\\\u0000"])
def test_a_detail_that_only_looks_like_what_cannot_be_stored_is_sent(detail: str, service: ScriptedService, start: Start) -> None:
    def handle(_message: LeasedMessage, context: Context) -> None:
        context.beat(detail=detail)
        service.wait_for("/beat")

    start(handle)
    assert service.wait_for("/beat")[0].body["leases"][0]["detail"] == detail


def test_a_detail_that_the_service_refuses_does_not_cost_the_beat(service: ScriptedService, start: Start) -> None:
    service.on("POST", "/beat", problem(422, "invalid-request"), beats())

    def handle(_message: LeasedMessage, context: Context) -> None:
        context.beat(progress=5, detail="what only the service minds")
        service.wait_for("/beat", 2)

    start(handle)
    service.wait_for("/ack")
    assert service.asked("/beat")[1].body["leases"] == [{"receipt": "secret-1", "progress": 5}]


@pytest.mark.rule(10)
@pytest.mark.parametrize("trouble", ["one bad detail", "too large together"])
def test_a_call_that_is_refused_costs_no_lease_more_than_its_own_bad_detail(trouble: str, service: ScriptedService, start: Start) -> None:
    """Eight leases that moved share one call. A detail that was refused once is not sent again."""
    taken: list[dict[str, Any]] = []
    held, moved, done = threading.Event(), threading.Barrier(9), threading.Event()

    def answer(request: Received) -> Answer:
        items = request.body["leases"]
        if len(service.asked("/beat")) == 1:
            held.wait(60)
        elif trouble == "too large together" and len(items) > 3:
            return problem(413, "body-too-large")
        elif trouble == "one bad detail" and "bad" in [item.get("detail") for item in items]:
            return problem(422, "invalid-request")
        taken.extend(items)
        return beats(next_beat_in=0.05)(request)

    def handle(message: LeasedMessage, context: Context) -> None:
        if message.id != "first":
            service.wait_for("/beat")
            context.beat(progress=1, detail=message.body)
            moved.wait(60)
        else:
            context.beat()
            moved.wait(60)
            held.set()
        done.wait(60)
        context.beat(progress=2)

    bodies = ["bad" if trouble == "one bad detail" and number == 3 else f"good {number}" for number in range(8)]
    leases = [lease(body, message=message(id=body, body=body)) for body in bodies]
    service.on("POST", CLAIM, grant(lease("first", message=message(id="first")), *leases), park)
    service.on("POST", "/beat", answer)
    start(handle, concurrency=9)
    until(lambda: len(taken) >= 9)
    calls = len(service.asked("/beat"))
    assert {item["receipt"]: item.get("detail") for item in taken[1:]} == {body: None if body == "bad" else body for body in bodies}
    assert calls <= 12
    done.set()
    service.wait_for("/ack", 9)
    if trouble == "one bad detail":
        again = [item for request in service.asked("/beat")[calls:] for item in request.body["leases"]]
        assert "bad" not in [item.get("detail") for item in again]


def test_a_detail_is_sent_as_it_was_when_it_was_reported(service: ScriptedService, start: Start) -> None:
    def handle(_message: LeasedMessage, context: Context) -> None:
        detail = {"offset": 1}
        context.beat(detail=detail)
        detail["offset"] = 2
        service.wait_for("/beat")

    start(handle)
    service.wait_for("/ack")
    assert service.asked("/beat")[0].body["leases"][0]["detail"] == {"offset": 1}
