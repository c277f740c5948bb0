"""Which queue a worker with several asks, over real connections to a scripted service."""

import logging

import pytest
from sdk.running import Start, grant, park
from sdk.scripted_service import ScriptedService, lease, message, problem

import leasebeat
from leasebeat import Context, LeasedMessage

A, B = "/queues/a/leases", "/queues/b/leases"
MISSING = problem(404, "queue-not-found")


def nothing(_message: LeasedMessage, _context: Context) -> None:
    """Do no work."""


def from_queue(queue: str, number: int) -> dict[str, object]:
    name = f"{queue}-{number}"
    return lease(name, message=message(id=name, queue=queue))


def test_a_later_queue_is_asked_only_when_those_before_it_have_nothing(service: ScriptedService, start: Start) -> None:
    service.on("POST", A, *(grant(from_queue("a", number)) for number in range(3)), park)
    service.on("POST", B, *(grant(from_queue("b", number)) for number in range(3)), park)
    start(nothing, queues=["a", "b"])
    acked = [request.body["leases"][0]["receipt"] for request in service.wait_for("/ack", 6)]
    assert acked == ["a-0", "a-1", "a-2", "b-0", "b-1", "b-2"]
    asked = [request.path for request in service.received if request.path in (A, B)]
    assert asked[:4] == [A, A, A, A]
    assert [asked[position - 1] for position, path in enumerate(asked) if path == B] == [A] * asked.count(B), (
        "a is asked before b each time"
    )


def test_slots_that_the_preferred_queue_leaves_free_go_to_the_next(service: ScriptedService, start: Start) -> None:
    service.on("POST", A, grant(from_queue("a", 0)), park)
    service.on("POST", B, grant(from_queue("b", 0), from_queue("b", 1)), park)
    start(lambda _message, context: context.stopping.wait(60), queues=["a", "b"], concurrency=3)
    service.wait_for(B)
    assert [request.body["max_messages"] for path in (A, B) for request in service.asked(path)] == [3, 2]


def test_a_worker_with_nothing_to_do_waits_for_the_preferred_queue_and_not_long(service: ScriptedService, start: Start) -> None:
    service.on("POST", A, park)
    service.on("POST", B, park)
    start(nothing, queues=["a", "b"])
    service.wait_for(B, 3)
    assert [request.body["wait"] for request in service.asked(A)][:3] == [0.0, 1.0, 1.0]
    assert {request.body["wait"] for request in service.asked(B)} == {0.0}


def test_a_queue_that_is_deleted_is_left_out_until_it_exists_again(
    service: ScriptedService, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("leasebeat._preferences.ASK_AGAIN_S", 0.3)
    service.on("POST", A, park, MISSING, MISSING, grant(from_queue("a", 0)), park)
    service.on("POST", B, park)
    with caplog.at_level(logging.INFO, "leasebeat"):
        start(nothing, queues=["a", "b"])
        service.wait_for("/ack")
    gone, still_gone, back = [request.at for request in service.asked(A)][1:4]
    assert still_gone - gone >= 0.3
    assert back - still_gone >= 0.3
    assert any(gone < request.at < back for request in service.asked(B)), "the others are worked on meanwhile"
    assert caplog.messages.count("Queue a does not exist; the worker goes on with the others, and asks for it again") == 1
    assert caplog.messages.count("Queue a exists again") == 1


def test_a_worker_with_no_queue_left_ends(service: ScriptedService, start: Start) -> None:
    service.on("POST", A, park, MISSING)
    service.on("POST", B, park, park, MISSING)
    running = start(nothing, queues=["a", "b"])
    running.join()
    assert type(running.error) is leasebeat.NotFoundError


def test_trouble_with_one_queue_keeps_no_other_from_its_turn(service: ScriptedService, start: Start) -> None:
    service.on("POST", A, problem(500, "internal"))
    service.on("POST", B, grant(from_queue("b", 0)), park)
    start(nothing, queues=["a", "b"])
    service.wait_for("/ack")
