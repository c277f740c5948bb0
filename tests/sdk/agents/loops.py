"""Main loops with one tool, and what tests of them share."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sdk.agents.chat_server import Says

from leasebeat import LeaseExtenderConfig
from leasebeat.agents import (
    Mailbox,
    MainLoop,
    MainLoopConfig,
    MainLoopRequest,
    MainLoopResult,
    OpenAIAdapter,
    Prompt,
    Session,
    Tool,
    ToolHandler,
    ToolResult,
)

Requests = Mailbox[MainLoopRequest[str], MainLoopResult[str]]
Replies = Mailbox[MainLoopResult[str], None]

USES_TOOL = Says(calls=(("tool", "{}"),))
DONE = Says("done")
EAGER = LeaseExtenderConfig(interval=0.1)


class ToolHeavyLoop(MainLoop[str, str]):
    """Gives the model one tool."""

    tool = Tool("tool", "", lambda _params, *, context: ToolResult.ok(None))  # noqa: ARG005 - what handlers take is given
    finalized = 0

    def prepare(self, request: str) -> tuple[Prompt[str], Session]:
        return Prompt(request, parse=str, tools=(self.tool,)), Session()

    def finalize(self, prompt: Prompt[str], session: Session) -> None:  # noqa: ARG002 - the same
        self.finalized += 1


MakeLoop = Callable[..., ToolHeavyLoop]


def tool_loop(
    adapter: OpenAIAdapter[str],
    requests: Requests,
    handler: ToolHandler | None = None,
    kind: type[ToolHeavyLoop] = ToolHeavyLoop,
    **config: Any,
) -> ToolHeavyLoop:
    """Make a loop whose tool does what the handler does."""
    loop = kind(adapter=adapter, requests=requests, config=MainLoopConfig(**config))
    if handler is not None:
        loop.tool = Tool("tool", "", handler)
    return loop


@contextmanager
def running(loop: MainLoop[str, str], **options: Any) -> Iterator[threading.Thread]:
    """Run a loop in a thread, which ends with the block."""
    thread = threading.Thread(target=loop.run, kwargs={"wait_time_seconds": 20, **options}, daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        loop.stop()
        loop.stop()
        thread.join(60)
        assert not thread.is_alive(), "the loop does not stop"


def one_result(replies: Replies) -> MainLoopResult[str]:
    """Wait for the reply, and see that it is the only one."""
    (reply,) = replies.receive(wait_time_seconds=40)
    reply.acknowledge()
    assert replies.receive(max_messages=10) == ()
    return reply.body
