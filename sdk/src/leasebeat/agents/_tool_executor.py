"""`ToolExecutor`: runs the tools that a model asks for."""

import json
import logging
import math
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from leasebeat._errors import GiveUp, RetryLater
from leasebeat._failure import failure_text
from leasebeat._fork import ending_children
from leasebeat._heartbeat import Heartbeat
from leasebeat.agents._counters import ToolCounters
from leasebeat.agents._errors import WorkInterruptedError
from leasebeat.agents._prompt import Tool, ToolContext
from leasebeat.agents._session import ToolCall, ToolResult

_log = logging.getLogger(__name__)

LONGEST_QUOTE_CHARS = 200


class ToolExecutor:
    """Runs tools, and beats before and after each."""

    def __init__(self, tools: Iterable[Tool], *, counters: ToolCounters | None = None) -> None:
        """Know these tools.

        Args:
            tools: What may be run.
            counters: Counts what they do.
        """
        self._tools = {tool.name: tool for tool in tools}
        self._counters = counters if counters is not None else ToolCounters()

    def execute(self, call: ToolCall, *, context: ToolContext) -> ToolResult[Any]:
        """Run a tool. Whatever goes wrong in it, or with its arguments, is a result for the model, not an exception.

        Args:
            call: What the model asks for.
            context: What the tool gets, except that its beats go through a heartbeat of the tool's own.

        Raises:
            DeadlineExceededError: If the time is up before the tool begins.
            WorkInterruptedError: If the work is to stop.
            GiveUp: If the tool decides so about the message, as for the next one.
            RetryLater: The other decision.
        """
        tool = self._tools.get(call.name)
        if tool is None:
            return ToolResult.error(f"there is no tool {call.name!r}, but there are: {', '.join(sorted(self._tools))}")
        heartbeat = _ToolHeartbeat(tool, context.heartbeat, self._counters)
        heartbeat.beat_now()
        if context.deadline is not None:
            context.deadline.check()  # after the beat, from which it may hear that the lease is lost
        try:
            result = _run(tool, call, replace(context, heartbeat=heartbeat))
            heartbeat.beat_now()
        finally:
            heartbeat.end()
        self._counters.add(tool.name, calls=1, failures=0 if result.success else 1)
        return result


def _run(tool: Tool, call: ToolCall, context: ToolContext) -> ToolResult[Any]:
    try:
        params = tool.params(**_arguments(call.arguments))
    except Exception as error:  # noqa: BLE001 - what the model wrote is the model's to mend
        return ToolResult.error(f"the arguments are wrong: {error}")
    try:
        with ending_children():
            result = tool.handler(params, context=context)
    except (GiveUp, RetryLater, WorkInterruptedError):
        raise  # these are about the message, not for the model
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a tool that fails, or exits, does not end the agent
        _log.warning("Tool %s failed", tool.name, exc_info=error)
        return ToolResult.error(failure_text(error))
    if not isinstance(result, ToolResult):
        return ToolResult.error(f"the tool returned no result, but {type(result).__name__}")
    return result


def _arguments(text: str) -> dict[str, Any]:
    """Read what the model wrote. Nothing at all stands for no arguments.

    Raises:
        ValueError: In words for the model, if it is no JSON object.
    """
    try:
        arguments = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise ValueError(f"they are not valid JSON ({error}): {text[:LONGEST_QUOTE_CHARS]}") from error
    if not isinstance(arguments, dict):
        raise TypeError(f"they must be a JSON object, not {text[:LONGEST_QUOTE_CHARS]}")
    return arguments


class _ToolHeartbeat(Heartbeat):
    """A tool's own heartbeat: counts its beats, and passes on at most one per interval, or more if the lease needs them."""

    __slots__ = ("_counters", "_next_at", "_request", "_tool")

    def __init__(self, tool: Tool, request: Heartbeat | None, counters: ToolCounters) -> None:
        super().__init__()
        self._tool = tool
        self._request = request
        self._counters = counters
        self._next_at = 0.0

    def patience(self) -> float:
        """As the heartbeat says that beats are passed on to."""
        request = self._request
        return math.inf if request is None else request.patience()

    def beat(self) -> None:
        """Record a beat, and pass it on if it is time."""
        self._record()
        if self._take_turn():
            self._pass_on()

    def beat_now(self) -> None:
        """Record a beat, and pass it on."""
        self._record()
        self._take_turn(early=True)
        self._pass_on()

    def end(self) -> None:
        """Pass on no more: a thread that the tool has left behind must not beat for what comes after it."""
        self._request = None

    def _record(self) -> None:
        super().beat()
        self._counters.add(self._tool.name, beats=1)

    def _take_turn(self, *, early: bool = False) -> bool:
        with self._lock:
            now = time.monotonic()
            if now < self._next_at and not early:
                return False
            self._next_at = now + min(self._tool.beat_interval, self.patience())
            return True

    def _pass_on(self) -> None:
        request = self._request
        if request is not None:
            with self._counters.beating(self._tool.name):
                request.beat()
