"""What becomes of the leases of main loops: short ones, services that are away, processes that stand still, models that hang."""

# ruff: noqa: ARG001 - what handlers and loops take is given

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from harness.server import Server
from harness.wait import until
from sdk.agents.chat_server import Says
from sdk.agents.conftest import AdapterFor, StartChat
from sdk.agents.loops import DONE, USES_TOOL, Replies, Requests, one_result, running, tool_loop
from sdk.relay import Relay
from sdk.running import frozen, program_process, until_extended

from leasebeat import Client
from leasebeat.agents import MainLoopRequest, ToolContext, ToolResult, WorkInterruptedError

READ = MainLoopRequest.reader(str)


@contextmanager
def behind_a_relay(server: Server) -> Iterator[tuple[Relay, Client]]:
    with Relay(server.port) as relay, Client(relay.url) as client:
        yield relay, client


@pytest.mark.scar(12)
def test_with_the_defaults_progress_keeps_a_short_lease_of_a_queue_that_wants_it(
    client: Client, new_queue: Callable[..., str], replies: Replies, start_chat: StartChat, adapter_for: AdapterFor
) -> None:
    """The interval of a `LeaseExtenderConfig` is 60 seconds: five times the lease."""
    reported: list[int | None] = []

    def work(_params: dict[str, Any], *, context: ToolContext) -> ToolResult[None]:
        until_extended(client, requests.queue, beat=context.beat)
        reported.extend(held.progress for held in client.list_leases(queue=requests.queue).items)
        return ToolResult.ok(None)

    requests = Requests(client, new_queue(visibility_timeout=12, extension=12, progress_required=True), read=READ)
    sent = requests.send(MainLoopRequest("go"), reply_to=replies.queue)
    tool_loop(adapter_for(start_chat(USES_TOOL, DONE)), requests, work).run(1, visibility_timeout=None)
    assert one_result(replies).output == "done"
    message = client.get_message(sent.id)
    assert (message.status, message.generation) == ("completed", 1)
    (progress,) = reported
    assert progress is not None
    assert progress > 5, "each beat counts, also those that extend nothing"


# --- models that hang


@pytest.mark.scar(12)
def test_a_model_that_hangs_at_each_try_loses_its_lease(
    client: Client, new_queue: Callable[..., str], replies: Replies, start_chat: StartChat, adapter_for: AdapterFor
) -> None:
    release = threading.Event()
    chat = start_chat(Says("late", between=lambda: release.wait(90)))
    requests = Requests(client, new_queue(visibility_timeout=6, extension=6), read=READ)
    sent = requests.send(MainLoopRequest("go"), reply_to=replies.queue)
    with running(tool_loop(adapter_for(chat, timeout=0.2, retries=50), requests), max_iterations=1, visibility_timeout=None):
        until(lambda: client.get_message(sent.id).expired_count)
        until(lambda: len(chat.asked) > 1)
    release.set()
    assert replies.receive() == ()


# --- a service that is away


@pytest.mark.scar(10)
@pytest.mark.timed
def test_a_service_that_is_away_for_half_a_lease_costs_nothing(
    server: Server, client: Client, new_queue: Callable[..., str], replies: Replies, start_chat: StartChat, adapter_for: AdapterFor
) -> None:
    lease_s = 16.0
    queue = new_queue(visibility_timeout=lease_s, extension=lease_s)

    def extended() -> bool:
        (held,) = client.list_leases(queue=queue).items
        return held.expires_in > 0.8 * lease_s

    with behind_a_relay(server) as (relay, behind):

        def work(_params: dict[str, Any], *, context: ToolContext) -> ToolResult[None]:
            def beat() -> bool:
                context.beat()
                return extended()

            until(beat)
            relay.cut(9)
            back_at = time.monotonic() + lease_s / 2
            while time.monotonic() < back_at:
                context.beat()
                time.sleep(0.01)
            assert not extended()
            relay.cut(server.port)
            until(beat)
            return ToolResult.ok(None)

        sent = Requests(client, queue, read=READ).send(MainLoopRequest("go"), reply_to=replies.queue)
        loop = tool_loop(adapter_for(chat := start_chat(USES_TOOL, DONE)), Requests(behind, queue, read=READ), work)
        loop.run(1, visibility_timeout=None)
    assert chat.asked[1].results == ["null"]
    assert one_result(replies).output == "done"
    message = client.get_message(sent.id)
    assert (message.status, message.generation, message.attempt_count) == ("completed", 1, 0)


@pytest.fixture(params=["refuses", "is silent"])
def dead_port(request: pytest.FixtureRequest) -> Iterator[int]:
    """Where nobody answers: connections are refused, or accepted and left."""
    if request.param == "refuses":
        yield 9
        return
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield silent.getsockname()[1]


@pytest.mark.scar(9, 10)
@pytest.mark.timed
def test_a_loop_whose_service_stays_away_hears_from_a_beat_that_its_lease_is_over(
    server: Server,
    client: Client,
    new_queue: Callable[..., str],
    replies: Replies,
    start_chat: StartChat,
    adapter_for: AdapterFor,
    dead_port: int,
) -> None:
    heard: list[str] = []
    queue = new_queue(visibility_timeout=5, extension=5)
    with behind_a_relay(server) as (relay, behind):

        def work(_params: dict[str, Any], *, context: ToolContext) -> ToolResult[None]:
            context.beat()
            relay.cut(dead_port)

            def over() -> bool:
                try:
                    context.beat()
                except WorkInterruptedError as error:
                    heard.append(str(error))
                return bool(heard)

            until(over)
            context.beat()  # and from each later one
            return ToolResult.ok(None)

        sent = Requests(client, queue, read=READ).send(MainLoopRequest("go"), reply_to=replies.queue)
        loop = tool_loop(adapter_for(chat := start_chat(USES_TOOL, DONE)), Requests(behind, queue, read=READ), work)
        loop.run(1, visibility_timeout=None)
        relay.cut(server.port)
    assert heard == ["the lease is lost"]
    assert len(chat.asked) == 1
    assert until(lambda: client.get_message(sent.id).expired_count) == 1
    assert replies.receive() == ()


@pytest.mark.timed
@pytest.mark.parametrize("extension", [60.0, 5.0], ids=["back-in-time", "back-too-late"])
def test_a_result_is_kept_for_a_service_that_is_away_while_the_lease_lasts(
    server: Server,
    client: Client,
    new_queue: Callable[..., str],
    replies: Replies,
    start_chat: StartChat,
    adapter_for: AdapterFor,
    caplog: pytest.LogCaptureFixture,
    extension: float,
) -> None:
    in_time = extension > 5
    with behind_a_relay(server) as (relay, behind), caplog.at_level(logging.WARNING):

        def cut(_params: dict[str, Any], *, context: ToolContext) -> ToolResult[None]:
            relay.cut(9)
            return ToolResult.ok(None)

        queue = new_queue(visibility_timeout=extension, extension=extension)
        sent = Requests(client, queue, read=READ).send(MainLoopRequest("go"), reply_to=replies.queue)
        loop = tool_loop(adapter_for(start_chat(USES_TOOL, DONE)), Requests(behind, queue, read=READ), cut)
        with running(loop, max_iterations=1, visibility_timeout=extension) as thread:
            until(lambda: any("failed and is repeated" in text for text in caplog.messages))
            if in_time:
                relay.cut(server.port)
            thread.join(60)
    message = client.get_message(sent.id)
    if in_time:
        assert (message.status, message.generation) == ("completed", 1)
        assert one_result(replies).output == "done"
    else:
        assert message.status in ("in_progress", "pending")
        assert any("could not be settled" in text for text in caplog.messages)
        assert replies.receive() == ()


# --- a process that stands still

FROZEN_LEASE_S = 8
FROZEN = f"""
import sys, time
from leasebeat import Client
from leasebeat.agents import Mailbox, MainLoop, MainLoopRequest, OpenAIAdapter, Prompt, Session, Tool, ToolResult, WorkInterruptedError

def work(_params, *, context):
    last = time.monotonic()
    while True:
        time.sleep(0.02)
        asleep, last = time.monotonic() - last, time.monotonic()
        try:
            context.beat()
        except WorkInterruptedError as error:
            print(error, flush=True)
            raise
        print("beat" if asleep < {FROZEN_LEASE_S} else "beat without a lease", flush=True)

class Agent(MainLoop):
    def prepare(self, request):
        return Prompt(request, parse=str, tools=(Tool("tool", "", work),)), Session()

service, queue, model = sys.argv[1:]
requests = Mailbox(Client(service), queue, read=MainLoopRequest.reader(str))
Agent(adapter=OpenAIAdapter(model, model="m"), requests=requests).run(1, visibility_timeout=None)
"""


@pytest.mark.scar(10)
@pytest.mark.timed
def test_a_loop_that_was_frozen_hears_of_its_loss_from_its_next_beat(
    server: Server, client: Client, new_queue: Callable[..., str], replies: Replies, start_chat: StartChat
) -> None:
    """For longer than its lease. Somebody else has done the work meanwhile."""
    chat = start_chat(USES_TOOL, DONE)
    queue = new_queue(visibility_timeout=FROZEN_LEASE_S, extension=FROZEN_LEASE_S)
    sent = Requests(client, queue, read=READ).send(MainLoopRequest("go"), reply_to=replies.queue)
    with program_process(FROZEN, server.url, queue, chat.url) as process:
        assert process.stdout is not None
        for _ in range(5):
            assert process.stdout.readline() == b"beat\n"
        with frozen(process, FROZEN_LEASE_S + 1):
            (other,) = client.claim(queue, worker_id="other", wait=40, visibility_timeout=60)
            client.ack(other, "done by another")
        heard = next(line for line in process.stdout if line != b"beat\n")  # those were before
        assert heard == b"the lease is lost\n"
        assert process.wait(60) == 0
    assert len(chat.asked) == 1
    message = client.get_message(sent.id)
    assert (message.status, message.output, message.generation) == ("completed", "done by another", 2)
    assert replies.receive() == ()
