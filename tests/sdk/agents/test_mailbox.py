"""Mailboxes on the real service."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from sdk.agents.loops import Replies, Requests
from sdk.running import CLAIM, grant
from sdk.scripted_service import Answer, ScriptedService, beats, lease

from leasebeat import ApiError, Client, InvalidRequestError, LeaseConflictError, NotFoundError, ServiceUnreachableError
from leasebeat.agents import Budget, Mailbox, MailboxMessage, MainLoopRequest, MainLoopResult


@dataclass(frozen=True)
class Review:
    change: int
    paths: tuple[str, ...]


def read_review(data: dict[str, object]) -> Review:
    return Review(int(str(data["change"])), tuple(map(str, data["paths"] if isinstance(data["paths"], list) else ())))


def receive_one(mailbox: Requests) -> MailboxMessage[MainLoopRequest[str], MainLoopResult[str]]:
    (message,) = mailbox.receive(wait_time_seconds=40)
    return message


def test_a_request_and_its_reply(client: Client, requests: Requests, replies: Replies) -> None:
    request = MainLoopRequest("go", deadline=30.0, budget=Budget(max_total_tokens=1000))
    sent = requests.send(request, reply_to=replies.queue)
    message = receive_one(requests)
    assert (message.id, message.attempt, message.body) == (sent.id, 1, request)
    result = MainLoopResult(request.request_id, output="done", session_id="s")
    message.reply(result)
    message.acknowledge(result)
    (reply,) = replies.receive(wait_time_seconds=40)
    assert reply.body == result
    assert reply.body.success
    assert client.get_message(sent.id).output == {"request_id": request.request_id, "output": "done", "error": None, "session_id": "s"}


@pytest.mark.scar(19)
def test_messages_of_a_call_without_an_answer_are_had_by_the_next(service: ScriptedService) -> None:
    service.on("POST", CLAIM, Answer([]), Answer({"leases": [lease()], "waited": 0.0, "drain": False}))
    with Client(service.url) as client:
        mailbox = Mailbox[object, object](client, "default", read=lambda body: body)
        with pytest.raises(ApiError):
            mailbox.receive()
        assert len(mailbox.receive()) == 1
    first, second = (request.body["claim_id"] for request in service.asked(CLAIM))
    assert first == second


def test_requests_may_be_dataclasses(client: Client, new_queue: Callable[..., str]) -> None:
    mailbox = Mailbox[MainLoopRequest[Review], MainLoopResult[str]](client, new_queue(), read=MainLoopRequest.reader(read_review))
    mailbox.send(MainLoopRequest(Review(17, ("a.py", "b.py"))))
    (message,) = mailbox.receive()
    assert message.body.request == Review(17, ("a.py", "b.py"))


def test_a_message_has_one_reply(requests: Requests, replies: Replies) -> None:
    requests.send(MainLoopRequest("go"), reply_to=replies.queue)
    (first,) = requests.receive(visibility_timeout=0.1)
    sent = first.reply(MainLoopResult("r", output="first"))
    second = receive_one(requests)  # once the first lease has run out
    again = second.reply(MainLoopResult("r", output="second"))
    assert sent is not None
    assert again is not None
    assert (sent.duplicate, again.duplicate, again.id) == (False, True, sent.id)
    assert [reply.body.output for reply in replies.receive(max_messages=10)] == ["first"]
    with pytest.raises(LeaseConflictError):
        first.acknowledge()


def test_two_messages_have_two_replies_also_for_one_request(requests: Requests, replies: Replies) -> None:
    for _ in range(2):
        requests.send(MainLoopRequest("go", "r"), reply_to=replies.queue)
        receive_one(requests).reply(MainLoopResult("r", output="done"))
    assert [reply.body.request_id for reply in replies.receive(max_messages=10)] == ["r", "r"]


def test_a_send_that_is_repeated_is_stored_once(requests: Requests) -> None:
    request = MainLoopRequest("go")
    sent = [requests.send(request, idempotency_key=request.request_id).id for _ in range(3)]
    assert len(set(sent)) == 1
    assert len(requests.receive(max_messages=10)) == 1


def test_without_an_address_there_is_no_reply(requests: Requests) -> None:
    requests.send(MainLoopRequest("go"))
    assert receive_one(requests).reply(MainLoopResult("r")) is None


def test_a_reply_may_be_impossible(requests: Requests, replies: Replies) -> None:
    requests.send(MainLoopRequest("go"), reply_to="no-such-queue")
    message = receive_one(requests)
    with pytest.raises(NotFoundError):
        message.reply(MainLoopResult("r"))
    message.release()
    requests.send(MainLoopRequest("go"), reply_to=replies.queue)
    with pytest.raises(InvalidRequestError):
        requests.receive(max_messages=2)[1].reply(MainLoopResult("r", output="x" * 300_000))


def test_extending_moves_the_time_until_which_it_is_safe_to_work(requests: Requests) -> None:
    requests.send(MainLoopRequest("go"))
    (message,) = requests.receive(visibility_timeout=10)
    before = message.valid_until
    assert message.extend_visibility(300).status == "extended"
    assert message.valid_until > before + 0.5


def test_what_extends_shows_the_progress_that_was_noted(client: Client, new_queue: Callable[..., str]) -> None:
    queue = new_queue(beat_interval=0, progress_required=True)
    mailbox = Requests(client, queue, read=MainLoopRequest.reader(str))
    mailbox.send(MainLoopRequest("go"))
    message = receive_one(mailbox)
    assert message.extend_visibility().status == "stalled"
    message.note_progress(1)
    assert message.extend_visibility().status == "extended"
    assert message.extend_visibility().status == "stalled"
    message.note_progress(2)
    assert message.extend_visibility().status == "extended"
    (held,) = client.list_leases(queue=queue).items
    assert held.progress == 2


def test_calls_take_no_longer_than_is_useful_for_the_lease_as_it_was_extended(service: ScriptedService) -> None:
    """The end that it began with has come."""
    service.on("POST", CLAIM, grant(lease(expires_in=0.0)))
    service.on("POST", "/beat", beats(expires_in=6.0), Answer(delay=90.0))
    with Client(service.url, timeout=90) as client:
        (message,) = Requests(client, "default", read=MainLoopRequest.reader(str)).receive()
        message.extend_visibility()
        started = time.monotonic()
        with pytest.raises(ServiceUnreachableError):
            message.extend_visibility()
        assert time.monotonic() - started < 60


def test_nack_and_release_give_a_message_back(requests: Requests) -> None:
    requests.send(MainLoopRequest("go"))
    receive_one(requests).release()
    again = receive_one(requests)
    assert again.attempt == 1
    again.nack("not now", delay=0)
    assert receive_one(requests).attempt == 2


def test_a_message_does_not_show_its_receipt(requests: Requests) -> None:
    requests.send(MainLoopRequest("go"))
    message = receive_one(requests)
    assert repr(message) == f"MailboxMessage(id={message.id!r}, attempt=1)"
