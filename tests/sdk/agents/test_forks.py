"""What becomes of a child that a tool forks, and lets go on."""

# ruff: noqa: ARG001, ARG002 - what handlers and loops take is given

import os
from typing import Any

import pytest
from sdk.agents.conftest import StartChat
from sdk.agents.loops import DONE, USES_TOOL, MakeLoop, Replies, Requests, ToolHeavyLoop, one_result, running

from leasebeat import Client, Heartbeat
from leasebeat.agents import MainLoopRequest, Prompt, Session, Tool, ToolCall, ToolContext, ToolExecutor, ToolResult

pytestmark = [pytest.mark.scar(16), pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]


def fork_and_let_go_on(_params: dict[str, Any], *, context: ToolContext) -> ToolResult[int]:
    """Return in both processes: in the parent, with how the child ended."""
    child = os.fork()
    if child == 0:
        return ToolResult.ok(-1)
    return ToolResult.ok(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def fork_and_exit(_params: dict[str, Any], *, context: ToolContext) -> ToolResult[int]:
    """The same, but the child ends as a program does."""
    child = os.fork()
    if child == 0:
        raise SystemExit(3)
    return ToolResult.ok(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def fork_and_fail(_params: dict[str, Any], *, context: ToolContext) -> ToolResult[int]:
    """The same, but the child fails."""
    child = os.fork()
    if child == 0:
        raise OSError("in the child")
    return ToolResult.ok(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


@pytest.mark.parametrize(
    ("handler", "status", "trace"), [(fork_and_let_go_on, 0, ""), (fork_and_exit, 3, ""), (fork_and_fail, 1, "OSError: in the child\n")]
)
def test_a_child_ends_where_its_tool_does(handler: Any, status: int, trace: str, capfd: pytest.CaptureFixture[str]) -> None:
    parent, heard = os.getpid(), list[int]()
    heartbeat = Heartbeat()
    heartbeat.add_callback(lambda: heard.append(os.getpid()))
    context = ToolContext(Prompt("go", parse=str), Session(), heartbeat=heartbeat)
    try:
        result = ToolExecutor([Tool("tool", "", handler)]).execute(ToolCall("1", "tool", "{}"), context=context)
    finally:
        if os.getpid() != parent:
            os._exit(7)  # it must not go on with these tests
    assert result == ToolResult.ok(status)
    said = capfd.readouterr().err
    assert (said.startswith("Traceback"), said.endswith(trace)) == (bool(trace), True)
    assert heard == [parent] * 2


def test_a_child_neither_asks_the_model_nor_settles_its_parents_message(
    client: Client, requests: Requests, replies: Replies, start_chat: StartChat, make_loop: MakeLoop
) -> None:
    chat = start_chat(USES_TOOL, DONE)
    sent = requests.send(MainLoopRequest("go"), reply_to=replies.queue)
    with running(make_loop(chat, fork_and_let_go_on)):
        assert one_result(replies).output == "done"
    assert [asked.results for asked in chat.asked] == [[], ["0"]], "each turn is asked for once"
    message = client.get_message(sent.id)
    assert (message.status, message.generation, message.released_count) == ("completed", 1, 0)


def test_a_child_of_the_loops_own_methods_does_not_settle_either(
    client: Client, requests: Requests, replies: Replies, start_chat: StartChat, make_loop: MakeLoop
) -> None:
    ended: list[int] = []

    class ForksAtTheEnd(ToolHeavyLoop):
        def finalize(self, prompt: Prompt[str], session: Session) -> None:
            child = os.fork()
            if child:
                ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    loop = make_loop(start_chat(USES_TOOL, DONE), kind=ForksAtTheEnd)
    sent = requests.send(MainLoopRequest("go"), reply_to=replies.queue)
    with running(loop):
        assert one_result(replies).output == "done"
    assert ended == [0]
    assert client.get_message(sent.id).status == "completed"
