"""The bridge to the OpenAI Agents SDK: run hooks that beat, and a stream of events that beats."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from agents import AgentsException, RunHooks, RunResultStreaming, StreamEvent

from leasebeat._context import Context
from leasebeat._errors import LeaseLostError
from leasebeat._heartbeat import Heartbeat
from leasebeat.bridges._pulse import Pulse


class LeaseHooks(RunHooks[Any]):
    """Beats for a lease while agents run, and ends the run once the lease is lost.

    Example::

        async def handle(message: LeasedMessage, context: Context) -> str:
            result = await Runner.run(agent, message.body, hooks=LeaseHooks(context))
            return result.final_output

    A lost lease is raised where something begins: an agent, a model's turn, a tool or a handoff. So no step is begun for
    nothing, and a run that has ended keeps its result. What is raised is the `LeaseLostError` that says why, and an
    `AgentsException` too.

    A run has one object with hooks. For hooks of your own, inherit from this class and call the method that you override.
    An agent that is a tool of another has a run of its own: pass `hooks` to its `as_tool` as well.
    """

    def __init__(self, source: Context | Heartbeat, *, lost: threading.Event | None = None) -> None:
        """Make the hooks of one lease.

        Args:
            source: What to beat with.
            lost: Set when the lease is lost. Needed with a `Heartbeat`, which cannot tell.
        """
        self._pulse = Pulse(source, lost)

    async def follow(self, run: RunResultStreaming) -> AsyncIterator[StreamEvent]:
        """Pass on the events of a run that was started by `Runner.run_streamed`, each as a beat: each streamed token is one.

        Raises:
            LeaseLostError: As soon as the lease is known to be over. The run is cancelled.
        """
        loss: LeaseLostError | None = None
        async for event in run.stream_events():
            if loss is not None:
                continue  # a cancelled run ends when its events are read to the end
            try:
                await self._beat()
            except LeaseLostError as error:
                loss = error
                run.cancel()
            else:
                yield event
        if loss is not None:
            raise loss

    async def _on_begin(self, *_args: Any, **_kwargs: Any) -> None:
        await self._beat()

    async def _on_end(self, *_args: Any, **_kwargs: Any) -> None:
        with suppress(LeaseLostError):
            await self._beat()

    on_agent_start = on_llm_start = on_tool_start = on_handoff = _on_begin
    on_agent_end = on_llm_end = on_tool_end = _on_end

    async def _beat(self) -> None:
        try:
            if self._pulse.may_block:
                await asyncio.to_thread(self._pulse.beat)
            else:
                self._pulse.beat()
        except LeaseLostError as loss:
            raise _for_runs(type(loss))(loss.status, loss.message_id) from loss


def _for_runs(kind: type[LeaseLostError]) -> type[LeaseLostError]:
    """The same kind of error, but one that leaves the run as it is: of all that is raised before a tool, others become a `UserError`."""
    return type(kind.__name__, (kind, AgentsException), {"__module__": kind.__module__})
