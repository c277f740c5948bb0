"""`InnerLoop`: asks the model, runs the tools that it wants, and asks again, until it answers."""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from leasebeat._heartbeat import Heartbeat
from leasebeat.agents._errors import TurnLimitError
from leasebeat.agents._limits import BudgetTracker, Deadline
from leasebeat.agents._prompt import Prompt, PromptResponse, Resources, ToolContext
from leasebeat.agents._session import Completion, Question, Session, ToolCall, ToolOutcome
from leasebeat.agents._tool_executor import ToolExecutor

OutputT = TypeVar("OutputT")


class Model(Protocol):
    """What knows how to ask a model."""

    def complete(self, prompt: Prompt[OutputT], session: Session, *, deadline: Deadline, heartbeat: Heartbeat) -> Completion:
        """Have the session continued by the model.

        Args:
            prompt: Its instructions and tools.
            session: What was said so far.
            deadline: To be minded also while waiting.
            heartbeat: Beats for what the model does meanwhile, as far as that can be seen.
        """


@dataclass(frozen=True, slots=True)
class InnerLoopConfig:
    """How an inner loop runs.

    Attributes:
        deadline: When to be done. None: no limit.
        budget_tracker: Counts the tokens against a budget. None: no limit.
        heartbeat: Beats at each turn, and goes to the tools.
        max_turns: How often the model may be asked. It keeps one that asks for tools for ever from keeping its lease for ever.
    """

    deadline: Deadline | None = None
    budget_tracker: BudgetTracker | None = None
    heartbeat: Heartbeat | None = None
    max_turns: int = 100


class InnerLoop(Generic[OutputT]):
    """One prompt from its question to its answer."""

    def __init__(
        self, *, model: Model, prompt: Prompt[OutputT], session: Session, executor: ToolExecutor, config: InnerLoopConfig | None = None
    ) -> None:
        """Describe the work.

        Args:
            model: Is asked.
            prompt: What it is asked.
            session: What was said before; all that is said now is added.
            executor: Runs the tools.
            config: Limits, and the heartbeat.
        """
        config = config if config is not None else InnerLoopConfig()
        self._model = model
        self._prompt = prompt
        self._session = session
        self._executor = executor
        self._max_turns = config.max_turns
        self._deadline = config.deadline if config.deadline is not None else Deadline()
        self._tracker = config.budget_tracker if config.budget_tracker is not None else BudgetTracker()
        self._heartbeat = config.heartbeat if config.heartbeat is not None else Heartbeat()

    def run(self) -> PromptResponse[OutputT]:
        """Work until the model answers without asking for a tool.

        Raises:
            DeadlineExceededError: If the time is up.
            BudgetExceededError: If the tokens are used up.
            TurnLimitError: If the model has had all its turns.
            Exception: What the model's side raises, what the prompt's `parse` does, and the reason of a deadline that was cut.
        """
        self._session.entries.append(Question(self._prompt.text))
        for _ in range(self._max_turns):
            completion = self._ask()
            if not completion.tool_calls:
                return PromptResponse(completion.text, self._prompt.parse(completion.text), self._tracker.used)
            for call in completion.tool_calls:
                self._use(call)
        raise TurnLimitError(f"the model has had {self._max_turns} turns, and still asks for tools")

    def _ask(self) -> Completion:
        self._heartbeat.beat()
        self._deadline.check()  # after the beat, from which it may hear that the lease is lost
        self._tracker.check()
        completion = self._model.complete(self._prompt, self._session, deadline=self._deadline, heartbeat=self._heartbeat)
        self._tracker.record(completion.usage)
        self._session.entries.append(completion)
        return completion

    def _use(self, call: ToolCall) -> None:
        context = ToolContext(self._prompt, self._session, self._deadline, self._heartbeat, Resources(self._prompt.resources))
        self._session.entries.append(ToolOutcome(call, self._executor.execute(call, context=context)))
