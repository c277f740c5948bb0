"""`Prompt`: what a model is asked, and the tools that it may use."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from leasebeat._heartbeat import Heartbeat
from leasebeat.agents._limits import Deadline, TokenUsage
from leasebeat.agents._session import Session, ToolResult

T = TypeVar("T")
OutputT = TypeVar("OutputT")


class Resources:
    """What tools work with, each thing known by its type."""

    def __init__(self, instances: Mapping[type[object], object] | None = None) -> None:
        """Hold these instances."""
        self._instances = dict(instances or {})

    def get(self, kind: type[T]) -> T:
        """The instance for a type.

        Raises:
            LookupError: If there is none.
            TypeError: If what is held for the type is none of it.
        """
        if kind not in self._instances:
            raise LookupError(f"there is no {kind.__name__} among the resources")
        instance = self._instances[kind]
        if not isinstance(instance, kind):
            raise TypeError(f"the resource for {kind.__name__} is a {type(instance).__name__}")
        return instance


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool gets besides its parameters.

    Attributes:
        prompt: The prompt that the model works on.
        session: What was said so far.
        deadline: When to be done. It is cut if the lease is lost or the worker has to go.
        heartbeat: Hears the beats.
        resources: What to work with.
    """

    prompt: "Prompt[Any]" = field(repr=False)
    session: Session = field(repr=False)
    deadline: Deadline | None = None
    heartbeat: Heartbeat | None = None
    resources: Resources = field(default_factory=Resources)

    def beat(self) -> None:
        """Prove that the tool makes progress, which extends the message's lease when it is time. Call it during long work.

        Raises:
            WorkInterruptedError: If the lease turns out to be lost, or the worker has to go. Stop then: let it through.
        """
        if self.heartbeat is not None:
            self.heartbeat.beat()
        if self.deadline is not None:
            self.deadline.check_cut()


class ToolHandler(Protocol):
    """Does the work of a tool."""

    def __call__(self, params: Any, /, *, context: ToolContext) -> ToolResult[Any]:
        """Work, and hand back the result. An exception is an error result with its text."""


@dataclass(frozen=True, slots=True)
class Tool:
    """Something that a model may use.

    Attributes:
        name: What the model calls it.
        description: What it does, for the model.
        handler: Does it: `handler(params, context=context)`.
        parameters: A JSON schema of its arguments, which are an object.
        params: Makes what the handler gets from the arguments, which it takes as keywords: `dict`, or a class of your own.
        beat_interval: Least seconds between two beats of the handler that are passed on, so that one that beats all the time
            costs nothing. 0 passes on each. Where it is longer than a third of what is left of the lease, more are passed on.
    """

    name: str
    description: str
    handler: ToolHandler = field(repr=False)
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}}, repr=False)
    params: Callable[..., Any] = field(default=dict, repr=False)
    beat_interval: float = 0.0

    def __post_init__(self) -> None:
        """Check the interval.

        Raises:
            ValueError: If it is negative.
        """
        if not self.beat_interval >= 0:
            raise ValueError(f"beat_interval must be 0 or more seconds, not {self.beat_interval}")


@dataclass(frozen=True, slots=True)
class Prompt(Generic[OutputT]):
    """What a model is asked.

    Attributes:
        text: The question.
        parse: Makes the output from the text of the answer: `str` to keep it, `json.loads` if it is JSON.
        instructions: What holds for the whole session.
        tools: What the model may use.
        resources: What the tools work with, each by its type.
    """

    text: str = field(repr=False)
    parse: Callable[[str], OutputT] = field(repr=False)
    instructions: str = field(default="", repr=False)
    tools: tuple[Tool, ...] = ()
    resources: Mapping[type[object], object] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class PromptResponse(Generic[OutputT]):
    """What came of a prompt.

    Attributes:
        text: The answer as the model wrote it.
        output: What the prompt's `parse` made of it.
        usage: Tokens of all turns together.
    """

    text: str = field(repr=False)
    output: OutputT = field(repr=False)
    usage: TokenUsage
