"""`Session`: what was said so far, in a form that belongs to no provider."""

import uuid
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from leasebeat.agents._limits import TokenUsage

ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True)
class ToolResult(Generic[ValueT]):
    """What a tool hands back to the model. Make it with `ok` or `error`.

    Attributes:
        success: Whether the tool did what it was asked.
        value: Its result: text, any JSON value, or a dataclass of such.
        message: What went wrong, in words that help the model.
    """

    success: bool
    value: ValueT | None = None
    message: str = ""

    @classmethod
    def ok(cls, value: ValueT) -> "ToolResult[ValueT]":
        """The tool did what it was asked."""
        return cls(success=True, value=value)

    @classmethod
    def error(cls, message: str) -> "ToolResult[ValueT]":
        """It did not, and the model is told why."""
        return cls(success=False, message=message)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One use of a tool, as the model asked for it.

    Attributes:
        id: Names the call among those of its session.
        name: The tool.
        arguments: What the model wrote: JSON text, if it made no mistake.
    """

    id: str
    name: str
    arguments: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Question:
    """What the user says.

    Attributes:
        text: The words.
    """

    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Completion:
    """What the model says.

    Attributes:
        text: The words; the answer, if there are no calls.
        tool_calls: The tools that it asks for, in order.
        usage: What it cost, if the provider says.
    """

    text: str = field(repr=False)
    tool_calls: tuple[ToolCall, ...] = ()
    usage: TokenUsage = field(default_factory=TokenUsage)


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What came of a call.

    Attributes:
        call: The call.
        result: What the tool handed back.
    """

    call: ToolCall
    result: ToolResult[Any] = field(repr=False)


Entry = Question | Completion | ToolOutcome


@dataclass(slots=True)
class Session:
    """One conversation with a model. For one request at a time.

    Attributes:
        session_id: Names it in results.
        entries: What was said, oldest first. An adapter adds to it.
    """

    session_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    entries: list[Entry] = field(default_factory=list, repr=False)
