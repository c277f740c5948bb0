"""How often the beats of a tool are passed on."""

from typing import Any

from sdk.agents.conftest import StartChat
from sdk.agents.loops import DONE, USES_TOOL, MakeLoop, Replies, Requests, one_result, running
from sdk.running import Start, until_extended
from sdk.scripted_service import ScriptedService

from leasebeat import Client, Context, LeasedMessage
from leasebeat.agents import MainLoopRequest, Prompt, Session, Tool, ToolCall, ToolContext, ToolExecutor, ToolResult

LEASE_S = 15.0
RARELY_S = 600.0


def test_the_interval_of_a_tool_is_cut_to_what_its_lease_needs(
    client: Client, requests: Requests, replies: Replies, start_chat: StartChat, make_loop: MakeLoop
) -> None:
    def work(_params: dict[str, Any], *, context: ToolContext) -> ToolResult[None]:
        until_extended(client, requests.queue, 1, beat=context.beat)
        return ToolResult.ok(None)

    loop = make_loop(start_chat(USES_TOOL, DONE))
    loop.tool = Tool("tool", "", work, beat_interval=RARELY_S)
    client.put_queue(requests.queue, visibility_timeout=LEASE_S, extension=LEASE_S, beat_interval=0.2)
    sent = requests.send(MainLoopRequest("go"), reply_to=replies.queue)
    with running(loop, visibility_timeout=LEASE_S):
        assert one_result(replies).output == "done"
    assert client.get_message(sent.id).generation == 1


def test_so_it_is_in_the_handler_of_a_worker_and_however_deep(willing: ScriptedService, start: Start) -> None:
    """A tool that uses tools itself: each has a heartbeat of its own, and all of them know what the lease needs."""

    def handle(_message: LeasedMessage, context: Context) -> list[float]:
        def inner(_params: dict[str, Any], *, context: ToolContext) -> ToolResult[float]:
            assert context.heartbeat is not None
            return ToolResult.ok(context.heartbeat.patience())

        def outer(_params: dict[str, Any], *, context: ToolContext) -> ToolResult[float]:
            return ToolResult.ok(use(inner, context))

        return [context.heartbeat.patience(), use(outer, ToolContext(Prompt("", parse=str), Session(), heartbeat=context.heartbeat))]

    def use(handler: Any, context: ToolContext) -> float:
        executor = ToolExecutor([Tool("tool", "", handler, beat_interval=RARELY_S)])
        result: ToolResult[float] = executor.execute(ToolCall("1", "tool", "{}"), context=context)
        assert result.value is not None, result.message
        return result.value

    start(handle)
    patience, deep = willing.wait_for("/ack")[0].body["leases"][0]["output"]
    assert 0 < deep <= patience <= 20, "a third of a lease of a minute"


def test_nobody_waits_for_the_beats_of_a_context_without_a_lease() -> None:
    def handle(_params: dict[str, Any], *, context: ToolContext) -> ToolResult[float]:
        context.beat()
        assert context.heartbeat is not None
        return ToolResult.ok(context.heartbeat.patience())

    context = ToolContext(Prompt("", parse=str), Session())
    executor = ToolExecutor([Tool("tool", "", handle, beat_interval=RARELY_S)])
    assert executor.execute(ToolCall("1", "tool", "{}"), context=context) == ToolResult.ok(float("inf"))
