"""`OpenAIAdapter`: any endpoint that speaks OpenAI's chat completions, with tools and streams."""

import dataclasses
import json
import logging
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeVar

from leasebeat._endpoint import EndpointError, JsonEndpoint
from leasebeat._heartbeat import Heartbeat
from leasebeat._retry import Pauses
from leasebeat._wire import without_none
from leasebeat.agents._adapter import ProviderAdapter
from leasebeat.agents._counters import ToolCounters
from leasebeat.agents._errors import AnswerError
from leasebeat.agents._inner_loop import InnerLoop, InnerLoopConfig
from leasebeat.agents._limits import BudgetTracker, Deadline, TokenUsage
from leasebeat.agents._prompt import Prompt, PromptResponse, Tool
from leasebeat.agents._session import Completion, Entry, Question, Session, ToolCall, ToolOutcome, ToolResult
from leasebeat.agents._tool_executor import ToolExecutor

_log = logging.getLogger(__name__)

OutputT = TypeVar("OutputT")

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 8.0
LONGEST_WAIT_S = 120.0  # an endpoint that asks for a longer one has failed
BEAT_WHILE_WAITING_S = 1.0
CUT = {"length", "content_filter"}


class OpenAIAdapter(ProviderAdapter[OutputT]):
    """Brings prompts to a model behind a chat completions endpoint. Safe to share between loops and threads.

    Example::

        adapter = OpenAIAdapter[str]("http://127.0.0.1:11434/v1", model="qwen3")
        response = adapter.evaluate(Prompt("What is 6 times 7?", parse=str), session=Session(), heartbeat=heartbeat)

    It asks for a stream, and beats for each part of the answer that comes: so a model that writes keeps its lease, however
    long it takes, and one that hangs loses it. With `stream=False`, no beat can come while it thinks.

    Attributes:
        counters: What the tools did in all evaluations.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str,
        api_key: str | None = None,
        timeout: float = 60.0,
        stream: bool = True,
        max_turns: int = 100,
        retries: int = 5,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Describe the endpoint. It is asked for nothing before the first evaluation.

        Args:
            base_url: What `/chat/completions` is relative to.
            model: The model's name there.
            api_key: The secret to show, if the endpoint asks for one.
            timeout: Seconds to connect, to write, and to wait for each part of an answer. Without a stream, for all of it.
            stream: Whether to ask for a stream.
            max_turns: How often one prompt may ask the model.
            retries: How often a turn is repeated that a rate limit, an overload or a broken connection kept from its answer.
            options: More fields of the request, for example `{"temperature": 0}`. None as a value leaves a field out.

        Raises:
            ValueError: If `base_url` is no address, or `api_key` cannot be in an HTTP header.
        """
        self._endpoint = JsonEndpoint(base_url, bearer=api_key)
        self._model = model
        self._timeout = timeout
        self._stream = stream
        self._max_turns = max_turns
        self._retries = retries
        self._options = dict(options or {})
        self.counters = ToolCounters()

    def close(self) -> None:
        """Close the connections."""
        self._endpoint.close()

    def evaluate(
        self,
        prompt: Prompt[OutputT],
        *,
        session: Session,
        deadline: Deadline | None = None,
        budget_tracker: BudgetTracker | None = None,
        heartbeat: Heartbeat | None = None,
    ) -> PromptResponse[OutputT]:
        """Work on a prompt until the model answers. See `ProviderAdapter.evaluate`.

        Raises:
            EndpointError: If the endpoint refuses, or gives no usable answer after all retries.
            AnswerError: If the model refuses, or its answer is cut at its token limit.
            AgentError: If a limit is reached; see `InnerLoop.run`.
        """
        return InnerLoop(
            model=self,
            prompt=prompt,
            session=session,
            executor=ToolExecutor(prompt.tools, counters=self.counters),
            config=InnerLoopConfig(deadline, budget_tracker, heartbeat, self._max_turns),
        ).run()

    def complete(self, prompt: Prompt[Any], session: Session, *, deadline: Deadline, heartbeat: Heartbeat) -> Completion:
        """Ask for one completion, again after what passes.

        Raises:
            EndpointError: If there is none after all retries.
            AnswerError: If the model refuses, or its answer is cut.
            DeadlineExceededError: If the time is up.
        """
        request = self._request(prompt, session)
        backoff = Pauses(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        retries = self._retries
        while True:
            try:
                return self._ask(request, deadline, heartbeat)
            except EndpointError as error:
                deadline.check()  # rather than what it led to
                pause = max(backoff.pause(), error.retry_after or 0.0)
                if not (error.passing and retries) or pause > min(LONGEST_WAIT_S, deadline.remaining()):
                    raise
                retries -= 1
                answered = error.status is not None
                _log.warning("Model %s is asked again in %.1f s: %s", self._model, pause, error)
            _wait(pause, deadline, heartbeat if answered else None)

    def _ask(self, request: Mapping[str, Any], deadline: Deadline, heartbeat: Heartbeat) -> Completion:
        answer = _Answer()
        timeout = min(self._timeout, deadline.remaining())
        with closing(self._endpoint.post("/chat/completions", request, timeout=timeout)) as documents:
            for document in documents:
                deadline.check()
                if answer.add(document):
                    heartbeat.beat()
        return answer.completion()

    def _request(self, prompt: Prompt[Any], session: Session) -> dict[str, Any]:
        system = [{"role": "system", "content": prompt.instructions}] if prompt.instructions else []
        request = {
            "model": self._model,
            "messages": [*system, *map(_message, session.entries)],
            "tools": [_tool(tool) for tool in prompt.tools] or None,
            "stream": self._stream,
            "stream_options": {"include_usage": True} if self._stream else None,
        }
        return without_none(**{**request, **self._options})


def _wait(seconds: float, deadline: Deadline, heartbeat: Heartbeat | None) -> None:
    """Wait for the next try. It is beaten for if the endpoint asks for it; one that answers nothing may hang."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if heartbeat is not None:
            heartbeat.beat()
        deadline.sleep(min(left, BEAT_WHILE_WAITING_S))


# --- what is sent -----------------------------------------------------------------------------------------------------


def _tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def _message(entry: Entry) -> dict[str, Any]:
    match entry:
        case Question():
            return {"role": "user", "content": entry.text}
        case ToolOutcome():
            return {"role": "tool", "tool_call_id": entry.call.id, "content": _content(entry.result)}
        case Completion(tool_calls=()):
            return {"role": "assistant", "content": entry.text}
        case Completion():
            return {"role": "assistant", "content": entry.text or None, "tool_calls": [_tool_call(call) for call in entry.tool_calls]}


def _tool_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _valid(call.arguments)}}


def _valid(arguments: str) -> str:
    """Arguments that are no JSON would make some endpoints refuse all that follows. What was wrong is in the result."""
    try:
        json.loads(arguments)
    except ValueError:
        return "{}"
    return arguments


def _content(result: ToolResult[Any]) -> str:
    if not result.success:
        return json.dumps({"error": result.message})
    return result.value if isinstance(result.value, str) else json.dumps(result.value, default=_plain)


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else str(value)


# --- what comes back --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _CallParts:
    id: str = ""
    name: str = ""
    arguments: str = ""


class _Answer:
    """One completion, put together from a whole document or from the parts of a stream."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._calls: list[_CallParts] = []
        self._call_at: dict[int, _CallParts] = {}
        self._finish: str | None = None
        self._usage = TokenUsage()

    def add(self, document: Any) -> bool:
        """Take in a document. Returns whether it brought the answer forward.

        Raises:
            EndpointError: If it says that the endpoint failed, or is none of chat completions.
        """
        try:
            if document.get("error"):
                raise EndpointError("the endpoint failed while it answered")
            self._usage = _usage(document.get("usage")) or self._usage
            moved = [self._add_choice(choice) for choice in document.get("choices") or ()]
        except (AttributeError, LookupError, TypeError) as error:
            raise EndpointError("the answer is no chat completion") from error
        return any(moved)

    def _add_choice(self, choice: Mapping[str, Any]) -> bool:
        part = choice.get("delta") or choice.get("message") or {}
        self._text.append(part.get("content") or "")
        self._refusal.append(part.get("refusal") or "")
        for position, fragment in enumerate(part.get("tool_calls") or ()):
            self._add_call(fragment, fragment.get("index", position))
        self._finish = choice.get("finish_reason") or self._finish
        return any(value for name, value in part.items() if name != "role")

    def _add_call(self, fragment: Mapping[str, Any], index: int) -> None:
        """Some endpoints give all calls one index, so another id is another call too."""
        call = self._call_at.get(index)
        if call is None or (call.id and fragment.get("id") not in (None, "", call.id)):
            call = self._call_at[index] = _CallParts()
            self._calls.append(call)
        function = fragment.get("function") or {}
        arguments = function.get("arguments") or ""
        call.id = call.id or fragment.get("id") or ""
        call.name = call.name or function.get("name") or ""
        call.arguments += arguments if isinstance(arguments, str) else json.dumps(arguments)

    def completion(self) -> Completion:
        """What it is, once all has come.

        Raises:
            EndpointError: If it broke off.
            AnswerError: If the model refused, or its answer was cut.
        """
        if self._finish is None:
            raise EndpointError("the answer broke off")
        if refusal := "".join(self._refusal):
            raise AnswerError(f"the model refused: {refusal}")
        if self._finish in CUT and not self._calls:
            raise AnswerError(f"the answer was cut: {self._finish}")
        calls = (ToolCall(call.id or f"call-{number}", call.name, call.arguments) for number, call in enumerate(self._calls))
        return Completion("".join(self._text), tuple(calls), self._usage)


def _usage(usage: Mapping[str, Any] | None) -> TokenUsage | None:
    return TokenUsage(usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0) if usage else None
