"""What one request may take: time, and tokens."""

import math
import threading
import time
from dataclasses import dataclass

from leasebeat.agents._errors import BudgetExceededError, DeadlineExceededError


class Deadline:
    """The end of the time for one request: a moment on `time.monotonic()`, or earlier if it is cut.

    A loop cuts it when the lease is lost or the worker has to go. So whoever minds the deadline stops for these too.
    """

    __slots__ = ("_cut", "_ends_at", "_reason", "_seconds")

    def __init__(self, seconds: float | None = None) -> None:
        """Let the time begin.

        Args:
            seconds: How long it lasts. None: until it is cut.
        """
        self._seconds = seconds
        self._ends_at = math.inf if seconds is None else time.monotonic() + seconds
        self._cut = threading.Event()
        self._reason: Exception | None = None

    def remaining(self) -> float:
        """Seconds left: 0 once it is over, infinity if nothing but a cut ends it."""
        return 0.0 if self._cut.is_set() else max(0.0, self._ends_at - time.monotonic())

    def cut(self, reason: Exception) -> None:
        """End it now, and let `check` raise the reason. Of several, the first counts."""
        if self._reason is None:
            self._reason = reason
        self._cut.set()

    def check(self) -> None:
        """Raise if it is over.

        Raises:
            DeadlineExceededError: If the time is up.
            Exception: The reason, if it was cut.
        """
        self.check_cut()
        if time.monotonic() >= self._ends_at:
            raise DeadlineExceededError(f"the request took longer than {self._seconds:g} s")

    def check_cut(self) -> None:
        """Raise if it was cut, whether or not the time is up.

        Raises:
            Exception: The reason.
        """
        if self._reason is not None:
            raise self._reason

    def sleep(self, seconds: float) -> None:
        """Wait, but not beyond the end.

        Raises:
            DeadlineExceededError: As soon as the time is up.
            Exception: The reason, as soon as it is cut.
        """
        self._cut.wait(min(seconds, self.remaining()))
        self.check()


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens that a model has read and written.

    Attributes:
        input_tokens: What it read.
        output_tokens: What it wrote.
    """

    input_tokens: int = 0
    output_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Both together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "TokenUsage") -> "TokenUsage":
        return TokenUsage(self.input_tokens + other.input_tokens, self.output_tokens + other.output_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How many tokens a request may use. None: no limit.

    Attributes:
        max_total_tokens: Read and written.
        max_input_tokens: Read.
        max_output_tokens: Written.
    """

    max_total_tokens: int | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None


class BudgetTracker:
    """Adds up what a request uses, against its budget. For one thread."""

    def __init__(self, budget: Budget | None = None) -> None:
        """Start at nothing used.

        Args:
            budget: The limits. None: only add up.
        """
        self.budget = budget if budget is not None else Budget()
        self.used = TokenUsage()

    def record(self, usage: TokenUsage) -> None:
        """Add what one answer of the model used."""
        self.used += usage

    def check(self) -> None:
        """Raise if a limit is reached.

        Raises:
            BudgetExceededError: It names the limit.
        """
        limits = {
            "total": (self.used.total_tokens, self.budget.max_total_tokens),
            "input": (self.used.input_tokens, self.budget.max_input_tokens),
            "output": (self.used.output_tokens, self.budget.max_output_tokens),
        }
        for name, (used, limit) in limits.items():
            if limit is not None and used >= limit:
                raise BudgetExceededError(f"{used} {name} tokens are used, {limit} are allowed")
