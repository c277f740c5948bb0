"""Main loops on the real service, with a model behind a real chat server."""

# ruff: noqa: ARG001, ARG002, ARG005 - what handlers and loops take is given

import logging
import threading
import time
from collections.abc import Callable
from copy import Error as CannotBeCopied
from datetime import datetime
from typing import Any

import pytest
from harness.postgres import RunOut
from harness.wait import until
from sdk.agents.chat_server import Says
from sdk.agents.conftest import LEASE_S, AdapterFor, StartChat
from sdk.agents.loops import DONE, EAGER, USES_TOOL, MakeLoop, Replies, Requests, ToolHeavyLoop, one_result, running
from sdk.running import until_extended

from leasebeat import Client, GiveUp, LeaseExtenderConfig, Message, RetryLater
from leasebeat.agents import (
    Budget,
    Mailbox,
    MainLoopConfig,
    MainLoopRequest,
    MainLoopResult,
    Prompt,
    Session,
    TextLoop,
    Tool,
    ToolContext,
    ToolResult,
)


def finished(client: Client, message_id: str) -> Message:
    def read() -> Message | None:
        message = client.get_message(message_id)
        return message if message.status in ("completed", "failed") else None

    found = until(read)
    assert found is not None
    return found


# --- the work


def test_mainloop_extends_during_tool_execution(
    client: Client, requests: Requests, replies: Replies, start_chat: StartChat, make_loop: MakeLoop
) -> None:
    def work(_params: dict[str, Any], *, context: ToolContext) -> ToolResult[str]:
        until_extended(client, requests.queue, beat=context.beat)
        return ToolResult.ok("worked")

    chat = start_chat(USES_TOOL, DONE)
    loop = make_loop(chat, work)
    sent = requests.send(request := MainLoopRequest("go"), reply_to=replies.queue)
    loop.run(max_iterations=1, visibility_timeout=LEASE_S)
    result = one_result(replies)
    assert (result.request_id, result.output, result.error) == (request.request_id, "done", None)
    assert result.session_id is not None
    message = client.get_message(sent.id)
    assert (message.status, message.generation) == ("completed", 1)
    assert message.output["output"] == "done"
    assert (loop.finalized, chat.asked[1].results) == (1, ["worked"])


def test_what_the_beats_of_a_tool_bring_about_is_counted(requests: Requests, start_chat: StartChat, adapter_for: AdapterFor) -> None:
    def beat(_params: dict[str, Any], *, context: ToolContext) -> ToolResult[None]:
        time.sleep(0.3)  # longer than the interval between extensions
        context.beat()
        return ToolResult.ok(None)

    class Loop(ToolHeavyLoop):
        def prepare(self, request: str) -> tuple[Prompt[str], Session]:
            quiet = Tool("quiet", "", lambda _params, *, context: ToolResult.error("no"))
            return Prompt(request, parse=str, tools=(Tool("tool", "", beat), quiet)), Session()

    adapter = adapter_for(start_chat(Says(calls=(("tool", "{}"), ("quiet", "{}"))), DONE))
    requests.send(MainLoopRequest("go"))
    Loop(adapter=adapter, requests=requests, config=MainLoopConfig(lease_extender=EAGER)).run(1, LEASE_S)
    counts = adapter.counters.snapshot()
    assert (counts["tool"].calls, counts["tool"].failures, counts["tool"].beats) == (1, 0, 3)
    assert 1 <= counts["tool"].extensions <= 3
    assert (counts["quiet"].calls, counts["quiet"].failures, counts["quiet"].beats) == (1, 1, 2)
    assert counts["tool"].failed_extensions == 0


def test_a_model_that_writes_for_long_keeps_its_lease(
    client: Client, requests: Requests, replies: Replies, start_chat: StartChat, make_loop: MakeLoop
) -> None:
    ends = set[datetime]()

    def write() -> None:
        time.sleep(0.1)
        ends.update(lease.expires_at for lease in client.list_leases(queue=requests.queue).items)

    chat = start_chat(Says("word" * 20, between=write))
    sent = requests.send(MainLoopRequest("go"), reply_to=replies.queue)
    make_loop(chat).run(1, LEASE_S)
    assert one_result(replies).output == "word" * 20
    assert client.get_message(sent.id).generation == 1
    assert len(ends) > 2, "what it writes extends the lease, again and again"


@pytest.mark.scar(12)
def test_a_model_that_hangs_loses_its_lease(client: Client, requests: Requests, start_chat: StartChat, make_loop: MakeLoop) -> None:
    release = threading.Event()
    client.put_queue(requests.queue, visibility_timeout=1, extension=1, beat_interval=0.2)
    chat = start_chat(Says("late", between=lambda: release.wait(90)))
    sent = requests.send(MainLoopRequest("go"))
    with running(make_loop(chat), max_iterations=1, visibility_timeout=None):
        until(lambda: client.get_message(sent.id).expired_count)
        release.set()


def test_tools_find_the_resources_of_the_loop_and_of_the_prompt(
    requests: Requests, replies: Replies, start_chat: StartChat, make_loop: MakeLoop
) -> None:
    found: list[Any] = []

    def look(_params: dict[str, Any], *, context: ToolContext) -> ToolResult[None]:
        found.extend([context.resources.get(int), context.resources.get(str)])
        return ToolResult.ok(None)

    class Loop(ToolHeavyLoop):
        def prepare(self, request: str) -> tuple[Prompt[str], Session]:
            return Prompt(request, parse=str, tools=(self.tool,), resources={str: "the prompt's"}), Session()

    requests.send(MainLoopRequest("go"), reply_to=replies.queue)
    make_loop(start_chat(USES_TOOL, DONE), look, Loop, resources={int: 5, str: "the loop's"}).run(1)
    assert found == [5, "the prompt's"]


def test_execute_needs_no_mailbox(start_chat: StartChat, adapter_for: AdapterFor) -> None:
    loop = TextLoop(adapter=adapter_for(start_chat(DONE)))
    response, session = loop.execute("go")
    assert (response.output, len(session.entries)) == ("done", 2)
    with pytest.raises(ValueError, match="no mailbox"):
        loop.run(1)


# --- failures become results


class Unprepared(ToolHeavyLoop):
    def prepare(self, request: str) -> tuple[Prompt[str], Session]:
        raise FileNotFoundError(f"no {request}")


class Unreadable(ToolHeavyLoop):
    def prepare(self, request: str) -> tuple[Prompt[str], Session]:
        return Prompt(request, parse=lambda text: str(int(text))), Session()


class Unfinished(ToolHeavyLoop):
    def finalize(self, prompt: Prompt[str], session: Session) -> None:
        raise ArithmeticError


@pytest.mark.parametrize(
    ("kind", "config", "says"),
    [
        (Unprepared, {}, "no go"),
        (Unreadable, {}, "invalid literal for int"),
        (Unfinished, {}, "ArithmeticError"),
        (ToolHeavyLoop, {"deadline": 0.0}, "the request took longer than 0 s"),
    ],
)
def test_errors_become_results(
    client: Client,
    requests: Requests,
    replies: Replies,
    start_chat: StartChat,
    make_loop: MakeLoop,
    kind: type[ToolHeavyLoop],
    config: dict[str, Any],
    says: str,
) -> None:
    sent = requests.send(request := MainLoopRequest("go"), reply_to=replies.queue)
    make_loop(start_chat(DONE), kind=kind, **config).run(1)
    result = one_result(replies)
    assert (result.request_id, result.output, result.success) == (request.request_id, None, False)
    assert says in (result.error or "")
    assert client.get_message(sent.id).status == "completed"


def test_a_request_has_limits_of_its_own(requests: Requests, replies: Replies, start_chat: StartChat, make_loop: MakeLoop) -> None:
    chat = start_chat(USES_TOOL)
    requests.send(MainLoopRequest("go", deadline=0.0), reply_to=replies.queue)
    requests.send(MainLoopRequest("go", budget=Budget(max_total_tokens=20)), reply_to=replies.queue)
    make_loop(chat, deadline=600, budget=Budget(max_total_tokens=10_000)).run(2)
    errors = [reply.body.error for reply in replies.receive(max_messages=10)]
    assert errors == ["the request took longer than 0 s", "30 total tokens are used, 20 are allowed"]


def test_a_result_that_cannot_be_stored_is_replied_to_with_why(
    client: Client, requests: Requests, replies: Replies, start_chat: StartChat, make_loop: MakeLoop
) -> None:
    sent = requests.send(MainLoopRequest("go"), reply_to=replies.queue)
    make_loop(start_chat(Says("x" * 4)), kind=Huge).run(1)
    assert "at most 262144 are allowed" in (one_result(replies).error or "")
    assert client.get_message(sent.id).status == "completed"


class Huge(ToolHeavyLoop):
    def prepare(self, request: str) -> tuple[Prompt[str], Session]:
        return Prompt(request, parse=lambda text: text * 100_000), Session()


class Uncopied:
    def __deepcopy__(self, _memo: object) -> "Uncopied":
        raise CannotBeCopied("it cannot be copied")


@pytest.mark.scar(36)
@pytest.mark.parametrize(
    ("output", "says"),
    [
        ({1, 2}, "Object of type set is not JSON serializable"),
        (threading.Lock(), "cannot pickle '_thread.lock' object"),
        (float("nan"), "Out of range float values are not JSON compliant"),
        ({"key": Uncopied()}, "it cannot be copied"),
    ],
    ids=["set", "lock", "nan", "uncopied"],
)
def test_a_result_without_a_json_form_is_an_error_and_the_loop_goes_on(
    client: Client, requests: Requests, replies: Replies, start_chat: StartChat, make_loop: MakeLoop, output: Any, says: str
) -> None:
    class Loop(ToolHeavyLoop):
        def prepare(self, request: str) -> tuple[Prompt[str], Session]:
            return Prompt(request, parse=lambda _text: output if request == "odd" else "plain"), Session()

    sent = [requests.send(MainLoopRequest(request), reply_to=replies.queue) for request in ("odd", "even")]
    make_loop(start_chat(DONE), kind=Loop).run(2)
    first, second = (reply.body for reply in replies.receive(max_messages=10))
    assert says in (first.error or "")
    assert second.output == "plain"
    assert [client.get_message(message.id).status for message in sent] == ["completed", "completed"]


@pytest.mark.scar(30)
@pytest.mark.parametrize("body", ["no request", {"request_id": "r"}, {"request": "go", "deadline": "soon"}])
def test_what_is_no_request_is_given_up_and_the_loop_goes_on(
    client: Client, requests: Requests, replies: Replies, start_chat: StartChat, make_loop: MakeLoop, body: Any
) -> None:
    bad = client.send(requests.queue, body)
    requests.send(MainLoopRequest("go"), reply_to=replies.queue)
    make_loop(start_chat(DONE)).run(2)
    message = client.get_message(bad.id)
    assert (message.status, message.reason) == ("failed", "not_retryable")
    assert (message.error or "").startswith("this is no request: ")
    assert one_result(replies).output == "done"


def test_a_reply_that_cannot_be_sent_is_a_failed_attempt(
    client: Client, requests: Requests, start_chat: StartChat, make_loop: MakeLoop
) -> None:
    sent = requests.send(MainLoopRequest("go"), reply_to="no-such-queue")
    make_loop(start_chat(DONE)).run(1)
    message = client.get_message(sent.id)
    assert (message.status, message.attempt_count) == ("pending", 1)
    assert "queue-not-found" in (message.error or "")


@pytest.mark.parametrize(
    ("decision", "status", "error"),
    [(RetryLater("busy", delay=60), "scheduled", "RetryLater: busy"), (GiveUp("pointless"), "failed", "GiveUp: pointless")],
)
def test_decisions_about_the_message_are_nacks(
    client: Client,
    requests: Requests,
    replies: Replies,
    start_chat: StartChat,
    make_loop: MakeLoop,
    decision: Exception,
    status: str,
    error: str,
) -> None:
    class Loop(ToolHeavyLoop):
        def prepare(self, request: str) -> tuple[Prompt[str], Session]:
            raise decision

    sent = requests.send(MainLoopRequest("go"), reply_to=replies.queue)
    make_loop(start_chat(DONE), kind=Loop).run(1)
    message = client.get_message(sent.id)
    assert (message.status, message.error) == (status, error)
    assert replies.receive() == ()


# --- what ends the program


@pytest.mark.scar(32)
@pytest.mark.parametrize("raised_in", ["tool", "prepare"])
def test_an_interrupt_gives_the_message_back_uncounted_and_goes_on(
    client: Client, requests: Requests, replies: Replies, start_chat: StartChat, make_loop: MakeLoop, raised_in: str
) -> None:
    class Loop(ToolHeavyLoop):
        def prepare(self, request: str) -> tuple[Prompt[str], Session]:
            if raised_in == "prepare":
                raise KeyboardInterrupt
            return super().prepare(request)

    def interrupt(_params: dict[str, Any], *, context: ToolContext) -> ToolResult[None]:
        raise KeyboardInterrupt

    sent = requests.send(MainLoopRequest("go"), reply_to=replies.queue)
    with pytest.raises(KeyboardInterrupt):
        make_loop(start_chat(USES_TOOL), interrupt, Loop).run(visibility_timeout=600)
    message = client.get_message(sent.id)
    assert (message.status, message.attempt_count, message.released_count) == ("pending", 0, 1)
    assert replies.receive() == ()


@pytest.mark.scar(30)
def test_a_request_that_ends_the_program_has_had_an_attempt(
    client: Client, requests: Requests, replies: Replies, start_chat: StartChat, make_loop: MakeLoop
) -> None:
    class Loop(ToolHeavyLoop):
        def finalize(self, prompt: Prompt[str], session: Session) -> None:
            raise SystemExit(3)

    sent = requests.send(MainLoopRequest("go"), reply_to=replies.queue)
    with pytest.raises(SystemExit):
        make_loop(start_chat(DONE), kind=Loop).run(visibility_timeout=600)
    message = client.get_message(sent.id)
    assert (message.status, message.attempt_count, message.error) == ("pending", 1, "SystemExit: 3")
    assert replies.receive() == ()


# --- a lost lease


@pytest.mark.scar(1, 9)
@pytest.mark.parametrize("extender", [EAGER, LeaseExtenderConfig(enabled=False)], ids=["extending", "not-extending"])
def test_a_loop_that_has_lost_its_lease_sends_nothing(
    client: Client,
    requests: Requests,
    replies: Replies,
    start_chat: StartChat,
    make_loop: MakeLoop,
    caplog: pytest.LogCaptureFixture,
    extender: LeaseExtenderConfig,
    expire: RunOut,
) -> None:
    others: list[Any] = []

    def hang(_params: dict[str, Any], *, context: ToolContext) -> ToolResult[None]:
        expire(sent.id)
        others.extend(requests.receive(wait_time_seconds=40))
        return ToolResult.ok(None)

    chat = start_chat(USES_TOOL, DONE)
    sent = requests.send(MainLoopRequest("go"), reply_to=replies.queue)
    with caplog.at_level(logging.WARNING):
        make_loop(chat, hang, lease_extender=extender).run(1, LEASE_S)
    assert len(chat.asked) == (1 if extender.enabled else 2), "once the loss is known, the model is not asked again"
    assert replies.receive() == ()
    message = client.get_message(sent.id)
    assert (message.status, message.generation, message.output) == ("in_progress", 2, None)
    (winner,) = others
    winner.reply(MainLoopResult("r", output="the winner's"))
    winner.acknowledge()
    assert one_result(replies).output == "the winner's"


def test_a_cancelled_request_is_not_replied_to(
    client: Client, requests: Requests, replies: Replies, start_chat: StartChat, make_loop: MakeLoop
) -> None:
    def work(_params: dict[str, Any], *, context: ToolContext) -> ToolResult[None]:
        client.cancel_message(sent.id)
        time.sleep(0.3)
        return ToolResult.ok(None)

    chat = start_chat(USES_TOOL, DONE)
    sent = requests.send(MainLoopRequest("go"), reply_to=replies.queue)
    make_loop(chat, work).run(1)
    assert len(chat.asked) == 1
    assert client.get_message(sent.id).status == "cancelled"
    assert replies.receive() == ()


@pytest.mark.scar(1)
def test_a_worker_that_died_between_reply_and_ack_has_replied_and_its_successor_has_not(
    client: Client, requests: Requests, replies: Replies, start_chat: StartChat, make_loop: MakeLoop
) -> None:
    sent = requests.send(request := MainLoopRequest("go"), reply_to=replies.queue)
    (message,) = requests.receive(visibility_timeout=0.5)
    message.reply(MainLoopResult(request.request_id, output="first"))  # and then it dies
    with running(make_loop(start_chat(DONE))):
        assert finished(client, sent.id).generation == 2
    assert one_result(replies) == MainLoopResult(request.request_id, output="first")


# --- stopping


@pytest.mark.scar(32)
def test_a_loop_that_waits_stops_at_once(requests: Requests, start_chat: StartChat, make_loop: MakeLoop) -> None:
    loop = make_loop(start_chat(DONE))
    with running(loop, wait_time_seconds=50) as thread:
        until(lambda: loop.heartbeat.elapsed() > 0.5)
        started = time.monotonic()
        loop.stop()
        thread.join(60)
        assert time.monotonic() - started < 30
    assert requests.receive() == ()


def test_a_loop_that_stops_finishes_what_it_has(
    client: Client, requests: Requests, replies: Replies, start_chat: StartChat, make_loop: MakeLoop
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work(_params: dict[str, Any], *, context: ToolContext) -> ToolResult[None]:
        begun.set()
        while not go_on.wait(0.01):
            context.beat()
        return ToolResult.ok(None)

    loop = make_loop(start_chat(USES_TOOL, DONE), work)
    sent = [requests.send(MainLoopRequest("go"), reply_to=replies.queue).id for _ in range(2)]
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    assert begun.wait(60)
    loop.stop()
    go_on.set()
    thread.join(60)
    assert not thread.is_alive()
    assert one_result(replies).output == "done"
    assert [client.get_message(message_id).status for message_id in sent] == ["completed", "pending"]


@pytest.mark.scar(32)
@pytest.mark.parametrize(("stops", "drain_timeout"), [(2, 600.0), (1, 0.2)], ids=["stopped-twice", "out-of-time"])
def test_what_does_not_finish_is_given_back_uncounted(
    client: Client,
    requests: Requests,
    replies: Replies,
    start_chat: StartChat,
    make_loop: MakeLoop,
    stops: int,
    drain_timeout: float,
) -> None:
    begun = threading.Event()

    def work(_params: dict[str, Any], *, context: ToolContext) -> ToolResult[None]:
        begun.set()
        until(lambda: context.deadline is not None and context.deadline.remaining() == 0)
        return ToolResult.ok(None)

    chat = start_chat(USES_TOOL, DONE)
    loop = make_loop(chat, work, drain_timeout=drain_timeout)
    sent = requests.send(MainLoopRequest("go"), reply_to=replies.queue)
    thread = threading.Thread(target=loop.run, args=(None, 60), daemon=True)
    thread.start()
    assert begun.wait(60)
    for _ in range(stops):
        loop.stop()
    thread.join(60)
    assert not thread.is_alive()
    message = client.get_message(sent.id)
    assert (message.status, message.attempt_count, message.released_count) == ("pending", 0, 1)
    assert len(chat.asked) == 1
    assert replies.receive() == ()


def test_the_clock_of_a_drain_ends_with_the_run(requests: Requests, start_chat: StartChat, make_loop: MakeLoop) -> None:
    loop = make_loop(start_chat(DONE), drain_timeout=600.0)
    with running(loop) as thread:
        until(lambda: loop.heartbeat.elapsed() > 0.1)
        loop.stop()
        thread.join(60)
        assert not thread.is_alive()
        loop.stop()
    make_loop(start_chat(DONE), drain_timeout=600.0).stop()
    assert [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)] == []


def test_an_operator_may_drain_it(client: Client, requests: Requests, start_chat: StartChat, make_loop: MakeLoop) -> None:
    name = requests.worker_id
    with running(make_loop(start_chat(DONE)), wait_time_seconds=1) as thread:
        until(lambda: any(worker.worker_id == name for worker in client.list_workers(limit=1000).items))
        client.drain_worker(name)
        thread.join(60)
        assert not thread.is_alive()
    client.delete_worker(name)


def test_a_loop_waits_out_a_service_that_is_away(
    new_queue: Callable[..., str], start_chat: StartChat, adapter_for: AdapterFor, caplog: pytest.LogCaptureFixture
) -> None:
    with Client("http://127.0.0.1:9") as nowhere:
        away = Mailbox[MainLoopRequest[str], MainLoopResult[str]](nowhere, new_queue(), read=MainLoopRequest.reader(str))
        loop = TextLoop(adapter=adapter_for(start_chat(DONE)), requests=away)
        with running(loop), caplog.at_level(logging.WARNING):
            until(lambda: sum("Receiving failed" in text for text in caplog.messages) >= 2)
