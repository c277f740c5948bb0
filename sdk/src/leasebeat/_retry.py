"""When a call goes out again."""

import random
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from leasebeat._call import Call, Outcome, Reply
from leasebeat._errors import ServiceUnreachableError

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
SHORTEST_TIMEOUT_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a client repeats a call by itself.

    A call that may have had its effect is repeated only if repeating it is safe, which it is for all calls except a limited redrive and
    the deletion of a worker. A call that ran out of time is repeated only if it is for a lease that lives, which leaves its attempts less
    time. Whether another is worth its time is else for the caller to decide.

    Attributes:
        broken: Repeats, each on a fresh connection, after a connection that was refused or broke, or an attempt that a lease cut short.
        unavailable: Repeats after a 503 that says when to come back, if the lease that the call is for lasts until then.
        max_retry_after: The longest such pause that is waited for, in seconds. A longer one is raised at once.
    """

    broken: int = 1
    unavailable: int = 2
    max_retry_after: float = 5.0


def time_to_answer(timeout: float, lease_until: float | None) -> float:
    """Seconds that one attempt to call for a lease may take: a third of what is left of it, if that is less than `timeout`.

    So there is time for another one after it, even if its answer trickles in. A lease that has run out, as far as is known, hurries
    nobody: what is still asked for it is worth a whole `timeout`.
    """
    left = 0.0 if lease_until is None else lease_until - time.monotonic()
    return timeout if left <= 0 else min(timeout, max(left / 3, SHORTEST_TIMEOUT_S))


class Attempts:
    """The repeats that one call has left."""

    def __init__(self, call: Call[Any], policy: RetryPolicy) -> None:
        self._call = call
        self._policy = policy
        self._broken = policy.broken
        self._unavailable = policy.unavailable
        self.fresh = False
        """Whether the next exchange needs a connection of its own, as the kept ones may all be broken."""

    def pause_after(self, outcome: Outcome) -> float | None:
        """Seconds until the call goes out again, or None if this outcome is the last."""
        if isinstance(outcome, ServiceUnreachableError):
            return self._after_no_answer(outcome)
        return self._after_reply(outcome)

    def _after_no_answer(self, error: ServiceUnreachableError) -> float | None:
        safe = self._call.repeatable or not error.maybe_processed
        if not ((error.broken or self._for_living_lease()) and safe and self._broken):
            return None
        self._broken -= 1
        self.fresh = True
        return 0.0

    def _for_living_lease(self) -> bool:
        return self._call.lease_until is not None and self._call.lease_until > time.monotonic()

    def _after_reply(self, reply: Reply) -> float | None:
        pause = reply.retry_after
        if reply.status != HTTPStatus.SERVICE_UNAVAILABLE or pause is None or not (self._call.repeatable and self._unavailable):
            return None
        if pause > self._policy.max_retry_after:
            return None
        pause *= random.uniform(1.0, 1.25)  # noqa: S311 - clients that were turned away together must not return together
        if self._call.lease_until is not None and time.monotonic() + pause >= self._call.lease_until:
            return None
        self._unavailable -= 1
        return pause


class Pauses:
    """Pauses that double from `first` to `longest` seconds, each shortened at random by up to a half."""

    def __init__(self, first: float = FIRST_PAUSE_S, longest: float = LONGEST_PAUSE_S) -> None:
        self._first = first
        self._longest = longest
        self._next = first

    def pause(self, at_least: float | None = None) -> float:
        """The next pause in seconds, not shorter than what the service asked for."""
        pause = self._next * random.uniform(0.5, 1.0)  # noqa: S311 - nothing to guess
        self._next = min(self._next * 2, self._longest)
        return max(pause, min(at_least or 0.0, self._longest))

    def reset(self) -> None:
        """Start again from the first pause."""
        self._next = self._first
