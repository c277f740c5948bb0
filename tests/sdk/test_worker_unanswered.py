"""What becomes of leases that a claim without an answer may have been granted, over real connections to a scripted service."""

import threading

import pytest
from sdk.running import Start, grant, park
from sdk.scripted_service import Answer, ScriptedService, Step, lease, message, problem

A, B = "/queues/a/leases", "/queues/b/leases"
FAILS = problem(500, "internal")


def from_queue(queue: str) -> dict[str, object]:
    return lease(f"of-{queue}", message=message(id=queue, queue=queue))


@pytest.mark.scar(19)
@pytest.mark.parametrize("failures", [[FAILS], [FAILS] * 3, [Answer("ok")], [problem(408, "late")], [Answer({}, 302)]])
def test_what_a_failed_claim_may_have_been_granted_is_given_back_while_another_queue_has_the_slots(
    failures: list[Step], service: ScriptedService, start: Start
) -> None:
    """The only slot goes to the second queue: nobody can hold what the first one grants, so it must not run out unheld."""
    go_on = threading.Event()
    service.on("POST", A, *failures, grant(from_queue("a")), park)
    service.on("POST", B, grant(from_queue("b")), park)
    start(lambda _message, _context: go_on.wait(60), queues=["a", "b"])
    (released,) = service.wait_for("/release")
    assert released.body["leases"] == [{"receipt": "of-a"}]
    assert service.asked("/ack") == [], "the other handler is still at work"
    go_on.set()
    service.wait_for(A, len(failures) + 2)
    names = [request.body["claim_id"] for request in service.asked(A)]
    assert len(set(names[: len(failures) + 1])) == 1
    assert names[len(failures) + 1] != names[0]


def test_with_a_slot_left_it_is_worked_on(service: ScriptedService, start: Start) -> None:
    go_on = threading.Event()
    service.on("POST", A, FAILS, grant(from_queue("a")), park)
    service.on("POST", B, grant(from_queue("b")), park)
    start(lambda message, _context: message.id == "a" or go_on.wait(60), queues=["a", "b"], concurrency=2)
    (ack,) = service.wait_for("/ack")
    go_on.set()
    assert ack.body["leases"] == [{"receipt": "of-a", "output": True}]
    assert service.asked("/release") == []
