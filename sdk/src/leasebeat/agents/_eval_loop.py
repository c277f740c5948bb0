"""`EvalLoop`: scores an agent, or a bare model, on the samples of a mailbox."""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from leasebeat._lease_extender import LeaseExtenderConfig
from leasebeat._wire import build
from leasebeat.agents._adapter import ProviderAdapter
from leasebeat.agents._limits import Deadline
from leasebeat.agents._mailbox import Mailbox
from leasebeat.agents._mailbox_loop import MailboxLoop, text_of
from leasebeat.agents._main_loop import MainLoop, TextLoop

InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")
ExpectedT = TypeVar("ExpectedT")


@dataclass(frozen=True, slots=True)
class Sample(Generic[InputT, ExpectedT]):
    """One case to score.

    Attributes:
        id: Names it.
        input: The request.
        expected: What the evaluator compares the output with.
    """

    id: str
    input: InputT
    expected: ExpectedT


@dataclass(frozen=True, slots=True)
class Score:
    """What an evaluator says.

    Attributes:
        value: How good, from 0 to 1.
        passed: Whether that is good enough.
        reason: Why.
    """

    value: float
    passed: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class EvalRequest(Generic[InputT, ExpectedT]):
    """What is sent to an eval loop.

    Attributes:
        sample: The case.
        request_id: Comes back in the result.
    """

    sample: Sample[InputT, ExpectedT]
    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def reader(
        cls, read_input: Callable[[Any], InputT], read_expected: Callable[[Any], ExpectedT]
    ) -> "Callable[[Any], EvalRequest[InputT, ExpectedT]]":
        """The `read` of a mailbox for such requests, given what makes input and expectation from their JSON."""

        def read(data: Any) -> "EvalRequest[InputT, ExpectedT]":
            sample = data["sample"]
            made = Sample(sample["id"], read_input(sample["input"]), read_expected(sample["expected"]))
            return build(cls, data, sample=made)

        return read


@dataclass(frozen=True, slots=True)
class EvalResult:
    """What comes back.

    Attributes:
        request_id: The request's.
        sample_id: The sample's.
        score: What the evaluator says. None if there is an error.
        error: What went wrong. None if nothing did.
        seconds: How long the agent took.
    """

    request_id: str
    sample_id: str
    score: Score | None = None
    error: str | None = None
    seconds: float | None = None

    @classmethod
    def read(cls, data: Any) -> "EvalResult":
        """The `read` of a mailbox for such results."""
        return build(cls, data)


@dataclass(frozen=True, slots=True)
class EvalLoopConfig:
    """How an eval loop runs.

    Attributes:
        lease_extender: How beats extend the lease of the sample in hand.
        drain_timeout: Seconds that the sample in hand has to finish once the loop stops. Then it is given back. Let it be some 10 s shorter
            than what the platform gives a process to end.
    """

    lease_extender: LeaseExtenderConfig = field(default_factory=LeaseExtenderConfig)
    drain_timeout: float = 20.0


Evaluator = Callable[[OutputT, ExpectedT], Score]
"""Scores an output against what was expected."""


class EvalLoop(MailboxLoop[EvalRequest[InputT, ExpectedT], EvalResult], Generic[InputT, OutputT, ExpectedT]):
    """Works on samples with a main loop, and scores what comes out. Its own heartbeat hears the beats, so they extend its leases.

    Example::

        EvalLoop(loop=Reviews(adapter=adapter), evaluator=exact, requests=mailbox).run()
        EvalLoop(adapter=adapter, evaluator=exact, requests=mailbox).run()

    The first form scores an agent. The second scores a bare model: the inputs are its questions, the outputs its words. It runs a
    `TextLoop`, so that there is one way from a sample to a score, `MainLoop.execute`.
    """

    def __init__(
        self,
        *,
        evaluator: Evaluator[OutputT, ExpectedT],
        requests: Mailbox[EvalRequest[InputT, ExpectedT], EvalResult],
        loop: MainLoop[InputT, OutputT] | None = None,
        adapter: ProviderAdapter[OutputT] | None = None,
        config: EvalLoopConfig | None = None,
    ) -> None:
        """Describe a loop.

        Args:
            evaluator: Scores each output.
            requests: Where samples come from.
            loop: The agent to score.
            adapter: The model to score, in place of an agent. Inputs and outputs are text then.
            config: When leases are extended. Defaults if None.

        Raises:
            ValueError: Unless there is either a loop or an adapter.
        """
        config = config if config is not None else EvalLoopConfig()
        super().__init__(requests, config.lease_extender, config.drain_timeout)
        if (loop is None) == (adapter is None):
            raise ValueError("an EvalLoop needs either a loop or an adapter")
        self._loop = (
            loop if loop is not None else cast("MainLoop[InputT, OutputT]", TextLoop(adapter=cast("ProviderAdapter[str]", adapter)))
        )
        self._evaluator = evaluator

    def _time_limit(self, request: EvalRequest[InputT, ExpectedT]) -> float | None:  # noqa: ARG002 - the agent's limit holds for all
        return self._loop.config.deadline

    def _answer(self, request: EvalRequest[InputT, ExpectedT], deadline: Deadline) -> EvalResult:
        sample = request.sample
        started = time.monotonic()
        response, _ = self._loop.execute(sample.input, deadline=deadline, heartbeat=self.heartbeat)
        seconds = time.monotonic() - started
        self.heartbeat.beat()
        score = self._evaluator(response.output, sample.expected)
        return EvalResult(request.request_id, sample.id, score=score, seconds=seconds)

    def _failure(self, request: EvalRequest[InputT, ExpectedT], error: Exception) -> EvalResult:
        return EvalResult(request.request_id, request.sample.id, error=text_of(error))
