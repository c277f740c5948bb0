"""The bridge to the Claude Agent SDK: hooks that beat around each tool, and a stream of messages that beats."""

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping, Sequence

import anyio
import anyio.to_thread
from claude_agent_sdk import ClaudeSDKClient, HookContext, HookInput, HookMatcher, Message, ResultMessage, StreamEvent, SystemMessage
from claude_agent_sdk.types import HookEvent, SyncHookJSONOutput

from leasebeat._context import Context
from leasebeat._errors import LeaseLostError
from leasebeat._heartbeat import Heartbeat
from leasebeat.bridges._pulse import Pulse

EVENTS: tuple[HookEvent, ...] = (
    "UserPromptSubmit",
    "PreToolUse",
    "PostToolUse",
    "PostToolUseFailure",
    "SubagentStart",
    "SubagentStop",
    "PreCompact",
)
"""Where the agent tells that it works. What waits for people, as `Notification` does, is no work."""

CHECK_S = 0.5  # between two looks at whether the lease is lost, while no message comes

WAITING = frozenset({"api_retry"})
"""What the agent tells, as a system message, while it waits for its model."""


class LeaseHooks:
    """Beats for a lease while a Claude agent works, and stops the agent once the lease is lost.

    Example::

        async def handle(message: LeasedMessage, context: Context) -> str | None:
            lease = LeaseHooks(context)
            async with ClaudeSDKClient(ClaudeAgentOptions(hooks=lease.hooks(), allowed_tools=["Bash"])) as client:
                await client.query(message.body)
                async for event in lease.follow(client):
                    if isinstance(event, ResultMessage):
                        return event.result

    An agent that finds its lease lost is denied the tool that it is about to use, and ends. To its caller that looks like any
    other end. So take its messages from `follow`, which interrupts it and raises, or ask `context.lost` before the result counts,
    as with `query`. Hooks alone cannot stop the turn that Claude Code makes after a tool that failed, only the tools of that turn.
    """

    def __init__(self, source: Context | Heartbeat, *, lost: threading.Event | None = None) -> None:
        """Make the hooks of one lease.

        Args:
            source: What to beat with.
            lost: Set when the lease is lost. Needed with a `Heartbeat`, which cannot tell.
        """
        self._pulse = Pulse(source, lost)

    def hooks(self, others: Mapping[HookEvent, Sequence[HookMatcher]] | None = None) -> dict[HookEvent, list[HookMatcher]]:
        """The `hooks` of `ClaudeAgentOptions`: these, and then those of `others`."""
        merged = {event: list(matchers) for event, matchers in (others or {}).items()}
        for event in EVENTS:
            merged[event] = [HookMatcher(hooks=[self._on_event]), *merged.get(event, [])]
        return merged

    async def follow(self, client: ClaudeSDKClient) -> AsyncIterator[Message]:
        """Pass on what `client.receive_response()` yields, each message as a beat, so that turns without tools beat too.

        With `include_partial_messages` that is each streamed token. What only tells that an answer is waited for is no beat.

        Raises:
            LeaseLostError: As soon as the lease is known to be over, also while no message comes. The agent is interrupted.
        """
        messages = client.receive_response()
        message: Message | None
        while (message := await self._next(messages, client)) is not None:
            yield message

    async def _next(self, messages: AsyncIterator[Message], client: ClaudeSDKClient) -> Message | None:
        """The next message, which is a beat. None at the end."""
        coming = asyncio.ensure_future(anext(messages, None))
        try:
            while not (coming.done() or self._pulse.is_lost):
                await asyncio.wait({coming}, timeout=CHECK_S)
            loss = await self._beat() if self._pulse.is_lost or _is_work(coming.result()) else None
            if loss is not None:
                await _interrupt(client, coming, messages, loss)
                raise loss
            return coming.result()
        finally:
            coming.cancel()

    async def _on_event(self, event: HookInput, _tool_use_id: str | None, _context: HookContext) -> SyncHookJSONOutput:
        """Beat, and tell the agent to go on or to stop. An exception would not stop it: the agent goes on after a hook that fails."""
        loss = await self._beat()
        if loss is None:
            return {}
        stop: SyncHookJSONOutput = {"continue_": False, "stopReason": str(loss)}
        if event["hook_event_name"] == "PreToolUse":
            stop["hookSpecificOutput"] = {
                "hookEventName": "PreToolUse",
                "permissionDecision": "deny",
                "permissionDecisionReason": str(loss),
            }
        return stop

    async def _beat(self) -> LeaseLostError | None:
        """Beat, and return why the lease is over, if it is."""
        try:
            if self._pulse.may_block:
                await anyio.to_thread.run_sync(self._pulse.beat)
            else:
                self._pulse.beat()
        except LeaseLostError as loss:
            return loss
        return None


def _is_work(message: Message | None) -> bool:
    """Whether a message shows that the agent moves. The API sends pings also while its model hangs."""
    match message:
        case None:
            return False
        case StreamEvent():
            return message.event.get("type") != "ping"
        case SystemMessage():
            return message.subtype not in WAITING
        case _:
            return True


async def _interrupt(
    client: ClaudeSDKClient, coming: "asyncio.Future[Message | None]", messages: AsyncIterator[Message], loss: LeaseLostError
) -> None:
    """Interrupt the agent, which then ends with a result, unless it has ended.

    Read on meanwhile: the answer to that comes behind all messages that were not read.
    """
    try:
        async with anyio.create_task_group() as tasks:
            if not (coming.done() and isinstance(coming.result(), ResultMessage | None)):
                tasks.start_soon(client.interrupt)
            await coming
            async for _ in messages:
                pass
    except Exception as error:
        raise loss from error
