"""The mailbox against a real service, on a Python that the package runs on. `test_weakincentives.py` runs this."""

import gc
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias, TypeVar

import httpx
import pytest
from weakincentives.adapters.core import PromptResponse, ProviderAdapter
from weakincentives.evals import BASELINE, EvalLoop, EvalRequest, EvalResult, Sample, exact_match
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate
from weakincentives.runtime import (
    AgentLoop,
    AgentLoopConfig,
    AgentLoopRequest,
    AgentLoopResult,
    DeadLetter,
    DLQPolicy,
    LeaseExtenderConfig,
    Session,
)
from weakincentives.runtime.mailbox import (
    InvalidParameterError,
    Mailbox,
    MailboxConnectionError,
    MailboxFullError,
    Message,
    ReceiptHandleExpiredError,
    ReplyNotAvailableError,
    SerializationError,
)

import leasebeat
from leasebeat import Client, NewMessage, NotFoundError
from leasebeat.agents import Mailbox as AgentsMailbox
from leasebeat.bridges.weakincentives import LeasebeatMailbox

URL = os.environ["LEASEBEAT_URL"]
EXAMPLE = Path(__file__).parents[3] / "examples" / "weakincentives_worker.py"

T = TypeVar("T")

AnyMailbox: TypeAlias = LeasebeatMailbox[Any, Any]
Make = Callable[..., AnyMailbox]


@dataclass(frozen=True, slots=True)
class Question:
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    text: str


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@pytest.fixture
def client() -> Iterator[Client]:
    with Client(URL) as client:
        yield client


@pytest.fixture
def name(client: Client) -> Iterator[str]:
    """The name of a queue that is not there yet. Those of other mailboxes of the test begin with it."""
    name = f"wink-{uuid.uuid4().hex[:12]}"
    yield name
    for suffix in ("", "-replies", "-dead"):
        with suppress(NotFoundError):
            client.delete_queue(name + suffix, force=True)


@pytest.fixture
def make(client: Client) -> Iterator[Make]:
    """Make mailboxes by name; they are closed with the test."""
    made: list[AnyMailbox] = []

    def make(name: str, body_type: Any = None, **options: Any) -> AnyMailbox:
        made.append(LeasebeatMailbox(name, client, body_type=body_type, **options))
        return made[-1]

    yield make
    for mailbox in made:
        mailbox.close()


@pytest.fixture
def mailbox(make: Make, name: str) -> AnyMailbox:
    return make(name)


def until(probe: Callable[[], T], timeout: float = 60.0) -> T:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if found := probe():
            return found
        time.sleep(0.02)
    raise AssertionError(f"not true within {timeout} s")


def receive_one(mailbox: AnyMailbox, *, visibility_timeout: int = 30) -> "Message[Any, Any]":
    (message,) = mailbox.receive(visibility_timeout=visibility_timeout, wait_time_seconds=60)
    return message


def parked() -> int:
    (count,) = re.findall(r"^leasebeat_parked_claims\S* (\d+)", httpx.get(f"{URL}/metrics").text, re.MULTILINE)
    return int(count)


# --- the package's loops, unchanged


class Echo(ProviderAdapter[Answer]):  # type: ignore[misc] # the package is not there where types are checked
    """Answers a prompt with its own text, once it has beaten until it is `done`, or not at all."""

    def __init__(self, *, done: Callable[[], bool] = lambda: True, error: Exception | None = None) -> None:
        self._done = done
        self._error = error

    def evaluate(self, prompt: Any, *, heartbeat: Any = None, **_options: Any) -> Any:
        while not self._done():
            heartbeat.beat()
            time.sleep(0.05)
        if self._error is not None:
            raise self._error
        text = prompt.render().text.splitlines()[-1]
        return PromptResponse(prompt_name="echo", text=text, output=Answer(text))


class EchoLoop(AgentLoop[Question, Answer]):  # type: ignore[misc]
    def prepare(self, request: Question, *, experiment: Any = None) -> Any:  # noqa: ARG002 - the package's interface
        section = MarkdownSection[Content](title="Echo", template="$text", key="echo")
        template = PromptTemplate[Answer](ns="tests", key="echo", sections=[section])
        return Prompt(template).bind(Content(request.text)), Session()


QUESTIONS = AgentLoopRequest[Question]
ANSWERS = AgentLoopResult[Answer]


def test_an_agent_loop_answers_by_the_name_of_the_mailbox_for_replies(make: Make, client: Client, name: str) -> None:
    requests, replies = make(name, QUESTIONS), make(f"{name}-replies", ANSWERS)
    request = AgentLoopRequest(request=Question("What is a lease?"))
    sent = requests.send(request, reply_to=replies)
    EchoLoop(adapter=Echo(), requests=make(name, QUESTIONS)).run(max_iterations=1)
    reply = receive_one(replies)
    assert (reply.body.request_id, reply.body.output) == (request.request_id, Answer("What is a lease?"))
    assert client.get_message(sent).status == "completed"
    assert requests.approximate_count() == 0


def test_a_loop_that_beats_extends_its_lease(make: Make, client: Client, name: str) -> None:
    ends = set[datetime]()

    def extended() -> bool:
        ends.update(lease.expires_at for lease in client.list_leases(queue=name).items)
        return len(ends) > 3

    requests, replies = make(name, QUESTIONS, extension=60), make(f"{name}-replies", ANSWERS)
    sent = requests.send(AgentLoopRequest(request=Question("long")), reply_to=replies)
    config = AgentLoopConfig(lease_extender=LeaseExtenderConfig(interval=0.2, extension=60))
    EchoLoop(adapter=Echo(done=extended), requests=requests, config=config).run(max_iterations=1, visibility_timeout=60)
    assert receive_one(replies).body.output == Answer("long")
    message = client.get_message(sent)
    assert (message.status, message.generation) == ("completed", 1)


def test_what_fails_too_often_ends_as_a_dead_letter_of_the_package(make: Make, name: str) -> None:
    requests = make(name, QUESTIONS)
    dead = make(f"{name}-dead", DeadLetter[AgentLoopRequest[Question]])
    requests.send(AgentLoopRequest(request=Question("poison")))
    receive_one(requests).nack()
    policy = DLQPolicy(mailbox=dead, max_delivery_count=2)
    EchoLoop(adapter=Echo(error=RuntimeError("cannot")), requests=requests, dlq=policy).run(max_iterations=1)
    letter = receive_one(dead).body
    assert (letter.body.request, letter.delivery_count, letter.last_error) == (Question("poison"), 2, "cannot")
    assert requests.approximate_count() == 0


def test_an_eval_loop_scores_samples(make: Make, name: str) -> None:
    requests = make(name, EvalRequest[Question, str])
    results = make(f"{name}-replies", EvalResult)
    for number, expected in enumerate(("right", "wrong")):
        requests.send(EvalRequest(sample=Sample(str(number), Question("right"), expected), experiment=BASELINE), reply_to=results)
    agent = EchoLoop(adapter=Echo(), requests=make(f"{name}-unused", QUESTIONS))
    EvalLoop(loop=agent, evaluator=lambda output, expected: exact_match(output.text, expected), requests=requests).run(max_iterations=2)
    scores = {result.body.sample_id: result.body.score.passed for result in (receive_one(results), receive_one(results))}
    assert scores == {"0": True, "1": False}


def test_an_operator_who_drains_the_worker_ends_the_loop(make: Make, client: Client, name: str) -> None:
    requests = make(name, QUESTIONS, worker_id=f"{name}-worker")
    loop = EchoLoop(adapter=Echo(), requests=requests)
    thread = threading.Thread(target=loop.run)
    thread.start()
    until(parked)
    client.drain_worker(f"{name}-worker")
    thread.join(60)
    assert not thread.is_alive()
    assert requests.closed


def test_the_example_replies_and_ends_on_sigterm(make: Make, name: str) -> None:
    sys.path.insert(0, str(EXAMPLE.parent))
    from weakincentives_worker import File, Study  # noqa: PLC0415 - runs on the package's Python only

    requests = make(name)
    replies = make(f"{name}-replies", Study)
    with subprocess.Popen([sys.executable, EXAMPLE, URL, name]) as worker:
        requests.send(File(str(EXAMPLE)), reply_to=replies)
        assert receive_one(replies).body == Study(str(EXAMPLE), definitions=5)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0


# --- deliveries


def test_it_is_a_mailbox(mailbox: AnyMailbox, name: str) -> None:
    assert isinstance(mailbox, Mailbox)
    assert (mailbox.name, mailbox.closed, repr(mailbox)) == (name, False, f"LeasebeatMailbox(name={name!r})")


def test_a_handle_names_the_delivery_and_is_no_receipt(mailbox: AnyMailbox, client: Client) -> None:
    sent = mailbox.send({"text": "hello"})
    first = receive_one(mailbox)
    first.nack()
    second = receive_one(mailbox)
    assert [(message.id, message.delivery_count) for message in (first, second)] == [(sent, 1), (sent, 2)]
    assert [first.receipt_handle, second.receipt_handle] == [f"{sent}:1", f"{sent}:2"]
    assert second.enqueued_at == client.get_message(sent).created_at


def test_a_delivery_is_settled_once(mailbox: AnyMailbox) -> None:
    mailbox.send(1)
    message = receive_one(mailbox)
    message.acknowledge()
    for settle in (message.acknowledge, message.nack, lambda: message.extend_visibility(30)):
        with pytest.raises(ReceiptHandleExpiredError):
            settle()


def test_a_nack_may_wait(mailbox: AnyMailbox) -> None:
    mailbox.send(1)
    nacked_at = time.monotonic()
    receive_one(mailbox).nack(visibility_timeout=1)
    assert receive_one(mailbox).delivery_count == 2
    assert time.monotonic() - nacked_at >= 1


def test_an_ack_after_the_timeout_counts_while_nobody_else_has_received(mailbox: AnyMailbox, client: Client) -> None:
    sent = mailbox.send(1)
    message = receive_one(mailbox, visibility_timeout=0)
    until(lambda: client.get_message(sent).status == "pending")
    message.acknowledge()
    assert client.get_message(sent).status == "completed"


def test_an_ack_after_the_next_delivery_is_refused(mailbox: AnyMailbox) -> None:
    mailbox.send(1)
    first = receive_one(mailbox, visibility_timeout=0)
    second = receive_one(mailbox)
    with pytest.raises(ReceiptHandleExpiredError):
        first.acknowledge()
    second.acknowledge()
    assert mailbox.approximate_count() == 0


def test_every_extension_takes_effect(mailbox: AnyMailbox, client: Client, name: str) -> None:
    mailbox.send(1)
    message = receive_one(mailbox, visibility_timeout=30)
    for _ in range(3):
        message.extend_visibility(60)
        (lease,) = client.list_leases(queue=name).items
        assert lease.expires_in > 200


def test_an_extension_by_nothing_makes_the_message_visible(mailbox: AnyMailbox) -> None:
    mailbox.send(1)
    first = receive_one(mailbox)
    first.extend_visibility(0)
    (second,) = mailbox.receive()
    assert second.delivery_count == 2
    with pytest.raises(ReceiptHandleExpiredError):
        first.acknowledge()


def test_a_queue_that_extends_less_far_says_so(make: Make, client: Client, name: str) -> None:
    made = client.put_queue(name, extension=40, beat_interval=5, max_attempts=7)
    mailbox = make(name)
    mailbox.send(1)
    message = receive_one(mailbox, visibility_timeout=30)
    with pytest.raises(InvalidParameterError, match="extended by 40 s, not by 60"):
        message.extend_visibility(60)
    message.acknowledge()
    assert client.get_queue(name).updated_at == made.updated_at


# --- the whole queue


def test_a_purge_removes_what_is_visible_and_what_is_not(mailbox: AnyMailbox) -> None:
    for number in range(4):
        mailbox.send(number)
    received = receive_one(mailbox)
    receive_one(mailbox).nack(visibility_timeout=600)
    assert mailbox.approximate_count() == 4
    assert mailbox.purge() == 4
    assert mailbox.approximate_count() == 0
    with pytest.raises(ReceiptHandleExpiredError):
        received.acknowledge()


def test_many_messages_are_counted_in_the_background(mailbox: AnyMailbox, client: Client, name: str) -> None:
    assert mailbox.approximate_count() == 0
    for count in (250, 1000):
        client.send_many(name, [NewMessage(number) for number in range(count)])
        assert mailbox.approximate_count() >= 250
    until(lambda: mailbox.approximate_count() == 1250)
    mailbox.purge()
    until(lambda: mailbox.approximate_count() == 0)


def test_a_mailbox_may_be_full(make: Make, name: str) -> None:
    mailbox = make(name, max_size=1)
    mailbox.send(1)
    message = receive_one(mailbox)
    with pytest.raises(MailboxFullError):
        mailbox.send(2)
    message.acknowledge()
    mailbox.send(2)


# --- bodies


@pytest.mark.parametrize("body", [object(), float("nan"), {1j: 1}, "\0", "x" * 300_000], ids=["object", "NaN", "key", "NUL", "large"])
def test_a_body_that_cannot_be_stored_is_refused(mailbox: AnyMailbox, body: object) -> None:
    with pytest.raises(SerializationError):
        mailbox.send(body)
    assert mailbox.approximate_count() == 0


def test_a_body_that_cannot_be_read_keeps_nothing_else_from_being_received(make: Make, name: str) -> None:
    raw = make(name)
    for body in ({"text": "before"}, {"unknown": 1}, {"text": "after"}):
        raw.send(body)
    mailbox = make(name, Question)
    with pytest.raises(SerializationError, match="text"):
        mailbox.receive(max_messages=10)
    messages = mailbox.receive(max_messages=10)
    assert [(message.body, message.delivery_count) for message in messages] == [(Question("before"), 1), (Question("after"), 1)]


def test_a_plain_type_takes_the_json_value(make: Make, name: str) -> None:
    mailbox = make(name, Path)
    writer = make(name)
    writer.send("/tmp/a")
    assert receive_one(mailbox).body == Path("/tmp/a")


# --- replies


def test_a_reply_needs_a_mailbox(mailbox: AnyMailbox) -> None:
    mailbox.send(1)
    with pytest.raises(ReplyNotAvailableError):
        receive_one(mailbox).reply(2)


def test_a_request_from_a_mailbox_of_our_own_agents_is_replied_to(mailbox: AnyMailbox, make: Make, client: Client, name: str) -> None:
    replies = make(f"{name}-replies")
    assert mailbox.approximate_count() == replies.approximate_count() == 0
    AgentsMailbox(client, name, read=str).send("question", reply_to=replies.name)
    receive_one(mailbox).reply("answer")
    assert receive_one(replies).body == "answer"


# --- close


def test_close_wakes_everybody_who_waits_and_loses_nothing(mailbox: AnyMailbox, make: Make, name: str) -> None:
    received: list[Any] = []
    threads = [threading.Thread(target=lambda: received.append(mailbox.receive(wait_time_seconds=600))) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: parked() == 3)
    mailbox.close()
    for thread in threads:
        thread.join(60)
    assert received == [[], [], []]
    assert mailbox.receive(wait_time_seconds=600) == []
    mailbox.send("later")
    other = make(name)
    assert receive_one(other).delivery_count == 1


def test_a_handler_of_signals_may_close_at_whatever_line_of_ours_it_interrupts(make: Make, client: Client, name: str) -> None:
    client.put_queue(name)
    lines = lines_until_parked(make(name))
    assert lines > 10
    for line in range(1, lines + 1):
        assert close_at(line, make(name)) == []


def lines_until_parked(mailbox: AnyMailbox) -> int:
    lines = itertools.count()
    seen: list[int] = []

    def close_when_parked() -> None:
        until(lambda: parked() == 1)
        seen.append(next(lines))
        mailbox.close()

    thread = threading.Thread(target=close_when_parked)
    thread.start()
    receive_traced(mailbox, lambda: next(lines))
    thread.join()
    return seen[0]


def close_at(line: int, mailbox: AnyMailbox) -> "Sequence[Message[Any, Any]]":
    """Receive, and have a signal arrive at that line of what runs in this thread."""
    before = signal.signal(signal.SIGUSR1, lambda *_: mailbox.close())
    lines = itertools.count(1)
    try:
        return receive_traced(mailbox, lambda: signal.raise_signal(signal.SIGUSR1) if next(lines) == line else None)
    finally:
        signal.signal(signal.SIGUSR1, before)


def receive_traced(mailbox: AnyMailbox, on_line: Callable[[], object]) -> "Sequence[Message[Any, Any]]":
    ours = str(Path(leasebeat.__file__).parent)

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            on_line()
        return trace if frame.f_code.co_filename.startswith(ours) else None

    sys.settrace(trace)
    try:
        return mailbox.receive(wait_time_seconds=600)
    finally:
        sys.settrace(None)


def test_a_mailbox_that_nobody_closes_takes_its_threads_along(client: Client, name: str) -> None:
    client.put_queue(name)
    before = set(threading.enumerate())
    mailbox = LeasebeatMailbox[Any, Any](name, client)
    mailbox.receive()
    assert len(set(threading.enumerate()) - before) == 2
    del mailbox
    gc.collect()
    until(lambda: set(threading.enumerate()) <= before)


def test_what_was_received_before_close_can_be_settled(mailbox: AnyMailbox) -> None:
    mailbox.send(1)
    message = receive_one(mailbox)
    mailbox.close()
    message.acknowledge()
    assert mailbox.approximate_count() == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_receives_by_itself(mailbox: AnyMailbox) -> None:
    mailbox.send("parent's")
    receive_one(mailbox).acknowledge()
    mailbox.send("child's")
    child = os.fork()
    if child == 0:
        try:
            receive_one(mailbox).acknowledge()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert mailbox.approximate_count() == 0


# --- errors


@pytest.fixture
def nowhere() -> Iterator[AnyMailbox]:
    """A mailbox whose service is not there."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: whoever connects is refused
        with Client(f"http://127.0.0.1:{taken.getsockname()[1]}") as client:
            mailbox: AnyMailbox = LeasebeatMailbox("requests", client)
            yield mailbox
            mailbox.close()


CALLS = pytest.mark.parametrize(
    "call",
    [
        lambda mailbox: mailbox.send(1),
        lambda mailbox: mailbox.receive(),
        lambda mailbox: mailbox.purge(),
        lambda mailbox: mailbox.approximate_count(),
    ],
    ids=["send", "receive", "purge", "approximate_count"],
)


@CALLS
def test_a_service_that_is_not_there(nowhere: AnyMailbox, call: Callable[[Any], object]) -> None:
    with pytest.raises(MailboxConnectionError):
        call(nowhere)


@CALLS
def test_a_name_that_no_queue_may_have(make: Make, call: Callable[[Any], object]) -> None:
    with pytest.raises(InvalidParameterError):
        call(make("tenant 1"))


@pytest.mark.parametrize("times", [{"visibility_timeout": -1}, {"visibility_timeout": 43_201}, {"wait_time_seconds": -1}])
def test_times_out_of_range(mailbox: AnyMailbox, times: dict[str, int]) -> None:
    with pytest.raises(InvalidParameterError):
        mailbox.receive(**times)
