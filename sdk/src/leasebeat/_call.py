"""A call as data: what to ask, and how to read the answer. No network here, so sync and async clients share it all."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Generic, TypeVar

from leasebeat._errors import LeasebeatError, ServiceUnreachableError, api_error

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came back, whatever its status. Times are on `time.monotonic()`."""

    status: int
    body: bytes
    retry_after: float | None
    sent_at: float
    answered_at: float


Outcome = Reply | ServiceUnreachableError
"""How one exchange with the service ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[T_co]):
    """One request, and the function that turns its reply into a result.

    `lease_until` is until when the lease lasts that the call is about, on `time.monotonic()`, where that is known.
    """

    method: str
    path: str
    parse: Callable[[Any, Reply], T_co]
    query: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True
    wait: float = 0.0
    timeout: float | None = None
    lease_until: float | None = None
    accepts: frozenset[int] = frozenset()


def finish(call: Call[T], outcome: Outcome) -> T:
    """Turn the last outcome of a call into its result.

    Raises:
        LeasebeatError: What the outcome means, if it is not a result.
    """
    if isinstance(outcome, ServiceUnreachableError):
        raise outcome
    if outcome.status >= HTTPStatus.MULTIPLE_CHOICES and outcome.status not in call.accepts:
        raise api_error(outcome.status, _problem(outcome.body), outcome.retry_after)
    try:
        data = json.loads(outcome.body) if outcome.body else None
        return call.parse(data, outcome)
    except LeasebeatError:
        raise
    except Exception as error:  # whatever an answer may do in reading it that is not the service's
        detail = f"the answer to {call.method} {call.path} is not what the service sends"
        raise api_error(outcome.status, {"detail": detail}, outcome.retry_after) from error


def no_result(_data: Any, reply: Reply) -> None:
    """Read the answer to a call that has no result.

    Raises:
        ValueError: If it has content.
    """
    if reply.body:
        raise ValueError("there is more than the service sends")


def is_header_value(text: str) -> bool:
    """Whether a text can be the value of an HTTP header. The HTTP library would quote one that cannot, though it may be a secret."""
    return text.isascii() and text.isprintable() and text.strip() == text


def _problem(body: bytes) -> Mapping[str, Any]:
    """Read problem details. Something in front of the service may answer in another form; that says nothing."""
    try:
        problem = json.loads(body)
    except (RecursionError, ValueError):
        return {}
    return problem if isinstance(problem, dict) else {}
