"""`MainLoop`: an agent that works on the requests of a mailbox."""

import uuid
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from leasebeat._heartbeat import Heartbeat
from leasebeat._lease_extender import LeaseExtenderConfig
from leasebeat._wire import build
from leasebeat.agents._adapter import ProviderAdapter
from leasebeat.agents._limits import Budget, BudgetTracker, Deadline
from leasebeat.agents._mailbox import Mailbox
from leasebeat.agents._mailbox_loop import MailboxLoop, text_of
from leasebeat.agents._prompt import Prompt, PromptResponse
from leasebeat.agents._session import Session

UserRequestT = TypeVar("UserRequestT")
OutputT = TypeVar("OutputT")


@dataclass(frozen=True, slots=True)
class MainLoopRequest(Generic[UserRequestT]):
    """What is sent to a main loop.

    Attributes:
        request: What the loop's `prepare` gets: any JSON value, or a dataclass of such.
        request_id: Comes back in the result.
        deadline: Seconds that the work may take. None takes the loop's.
        budget: Tokens that it may use. None takes the loop's.
    """

    request: UserRequestT
    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    deadline: float | None = None
    budget: Budget | None = None

    @classmethod
    def reader(cls, read: Callable[[Any], UserRequestT]) -> "Callable[[Any], MainLoopRequest[UserRequestT]]":
        """The `read` of a mailbox for such requests, given what makes `request` from its JSON."""
        return lambda data: build(cls, data, request=read(data["request"]))


@dataclass(frozen=True, slots=True)
class MainLoopResult(Generic[OutputT]):
    """What comes back.

    Attributes:
        request_id: The request's.
        output: What the prompt's `parse` made of the answer. None if there is an error.
        error: What went wrong. None if nothing did.
        session_id: The session that the work was done in, if it got that far.
    """

    request_id: str
    output: OutputT | None = None
    error: str | None = None
    session_id: str | None = None

    @property
    def success(self) -> bool:
        """Whether there is an output."""
        return self.error is None

    @classmethod
    def reader(cls, read: Callable[[Any], OutputT]) -> "Callable[[Any], MainLoopResult[OutputT]]":
        """The `read` of a mailbox for such results, given what makes `output` from its JSON."""
        return lambda data: build(cls, data, output=None if data.get("output") is None else read(data["output"]))


@dataclass(frozen=True, slots=True)
class MainLoopConfig:
    """How a main loop runs.

    Attributes:
        deadline: Seconds that each request may take. None: no limit. A length, as a moment would be past for all but the first.
        budget: Tokens that each request may use. None: no limit.
        resources: What tools work with, each by its type. A prompt's own come before these.
        lease_extender: How beats extend the lease of the request in hand.
        drain_timeout: Seconds that the request in hand has to finish once the loop stops. Then it is given back. Let it be some 10 s
            shorter than what the platform gives a process to end.
    """

    deadline: float | None = None
    budget: Budget | None = None
    resources: Mapping[type[object], object] | None = None
    lease_extender: LeaseExtenderConfig = field(default_factory=LeaseExtenderConfig)
    drain_timeout: float = 20.0


class MainLoop(MailboxLoop[MainLoopRequest[UserRequestT], MainLoopResult[OutputT]], Generic[UserRequestT, OutputT]):
    """Works on the requests of a mailbox with a model. A subclass says what to ask it.

    Example::

        class Reviews(MainLoop[str, str]):
            def prepare(self, request: str) -> tuple[Prompt[str], Session]:
                return Prompt(f"Review {request}", parse=str, tools=(read_file,)), Session()

        Reviews(adapter=adapter, requests=mailbox).run()

    Whatever goes wrong with a request becomes its result, with `error`; only a lost lease stops the reply. `RetryLater` and
    `GiveUp`, raised anywhere in the work, are nacks instead.
    """

    def __init__(
        self,
        *,
        adapter: ProviderAdapter[OutputT],
        requests: Mailbox[MainLoopRequest[UserRequestT], MainLoopResult[OutputT]] | None = None,
        config: MainLoopConfig | None = None,
    ) -> None:
        """Describe a loop.

        Args:
            adapter: Brings prompts to the model.
            requests: Where requests come from. None for a loop that only executes.
            config: Limits, resources, and when leases are extended. Defaults if None.
        """
        self.config = config if config is not None else MainLoopConfig()
        super().__init__(requests, self.config.lease_extender, self.config.drain_timeout)
        self._adapter = adapter

    @abstractmethod
    def prepare(self, request: UserRequestT) -> tuple[Prompt[OutputT], Session]:
        """Say what to ask the model for a request, and in which session."""

    def finalize(self, prompt: Prompt[OutputT], session: Session) -> None:
        """Called when the model has answered, before the result is sent."""

    def execute(
        self,
        request: UserRequestT,
        *,
        budget: Budget | None = None,
        deadline: Deadline | None = None,
        heartbeat: Heartbeat | None = None,
    ) -> tuple[PromptResponse[OutputT], Session]:
        """Work on a request that came by no mailbox.

        Args:
            request: What to work on.
            budget: Tokens that it may use. None takes the loop's.
            deadline: When to be done. None takes the loop's.
            heartbeat: Hears the beats in place of the loop's own, for whoever has a lease of their own to extend.

        Raises:
            Exception: Whatever keeps it from an answer.
        """
        prompt, session = self.prepare(request)
        response = self._adapter.evaluate(
            replace(prompt, resources={**(self.config.resources or {}), **prompt.resources}),
            session=session,
            deadline=deadline if deadline is not None else Deadline(self.config.deadline),
            budget_tracker=BudgetTracker(budget if budget is not None else self.config.budget),
            heartbeat=heartbeat if heartbeat is not None else self.heartbeat,
        )
        self.finalize(prompt, session)
        return response, session

    def _time_limit(self, request: MainLoopRequest[UserRequestT]) -> float | None:
        return request.deadline if request.deadline is not None else self.config.deadline

    def _answer(self, request: MainLoopRequest[UserRequestT], deadline: Deadline) -> MainLoopResult[OutputT]:
        response, session = self.execute(request.request, budget=request.budget, deadline=deadline)
        return MainLoopResult(request.request_id, output=response.output, session_id=session.session_id)

    def _failure(self, request: MainLoopRequest[UserRequestT], error: Exception) -> MainLoopResult[OutputT]:
        return MainLoopResult(request.request_id, error=text_of(error))


class TextLoop(MainLoop[str, str]):
    """A main loop whose requests are questions, each in a session of its own, and whose outputs are the model's words."""

    def prepare(self, request: str) -> tuple[Prompt[str], Session]:
        """Ask just that."""
        return Prompt(request, parse=str), Session()
