"""Every exception of the SDK.

LeasebeatError                       passing, turned_away, retry_after
|-- ApiError                         the service refused the call; status, code, detail, request_id
|   |-- InvalidRequestError          400, 413, 415, 422; errors names the fields
|   |-- NotFoundError                404
|   |-- ConflictError                409
|   `-- ServerError                  5xx, or one lease of a call that the service could not serve
|       `-- UnavailableError         503
|-- ServiceUnreachableError          no answer came; maybe_processed
|-- LeaseLostError                   the lease is over; status, message_id
|   |-- ReceiptHandleExpiredError    the receipt names a lease that is no longer held
|   |   |-- LeaseExpiredError        it ran out
|   |   |-- LeaseConflictError       another lease has been granted since
|   |   `-- UnknownLeaseError        there is no such lease
|   |-- LeaseSettledError            it was acked, nacked or released
|   `-- LeaseCancelledError          its message was cancelled
|-- GiveUp                           raised by a handler: this message is not worth another attempt
`-- RetryLater                       raised by a handler: try this message again after a delay
"""

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

LONGEST_DELAY_S = 31_536_000.0

PASSING = {
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_EARLY,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
}
"""Statuses that say no more than that the call could not be served now."""


class LeasebeatError(Exception):
    """The root of everything that this SDK raises on purpose.

    Attributes:
        retry_after: Seconds to wait before the next try, if whoever answered said so.
    """

    retry_after: float | None = None

    @property
    def passing(self) -> bool:
        """Whether the same call may well succeed later: nobody answered, or nobody could serve."""
        return False

    @property
    def turned_away(self) -> bool:
        """Whether the call was wrong in the eyes of the service, or of something in front of it, and so had no effect."""
        return False


# --- the service refused the call -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FieldError:
    """What is wrong with one field of a request.

    Attributes:
        field: The path of the field.
        message: What is wrong with it.
    """

    field: str
    message: str


class ApiError(LeasebeatError):
    """The service refused the call.

    Attributes:
        status: The HTTP status.
        code: The stable code of the problem, for programs. None if something in front of the service answered.
        detail: What went wrong, for people.
        request_id: Names the call in the service's logs.
    """

    def __init__(self, status: int, *, code: str | None = None, detail: str = "", request_id: str | None = None) -> None:
        super().__init__(status, code, detail, request_id)
        self.status = status
        self.code = code
        self.detail = detail
        self.request_id = request_id

    @property
    def passing(self) -> bool:
        return self.status in PASSING

    @property
    def turned_away(self) -> bool:
        return HTTPStatus.BAD_REQUEST <= self.status < HTTPStatus.INTERNAL_SERVER_ERROR and not self.passing

    def __str__(self) -> str:
        known = [str(self.status), self.code, self.detail, self.request_id and f"(request {self.request_id})"]
        return " ".join(part for part in known if part)


class InvalidRequestError(ApiError):
    """The request is wrong and stays wrong when it is repeated.

    Attributes:
        errors: What is wrong, field by field. Empty if the request was not read that far.
    """

    errors: tuple[FieldError, ...] = ()

    def __str__(self) -> str:
        return "; ".join([super().__str__(), *(f"{error.field}: {error.message}" for error in self.errors)])


class NotFoundError(ApiError):
    """There is no such queue, message or worker."""


class ConflictError(ApiError):
    """The call does not fit the state of what it names, for example a queue that is not empty, or a message that is finished."""


class ServerError(ApiError):
    """The service, or something in front of it, failed.

    Also raised for one lease of a call that was answered otherwise: with the code `row-refused` if the database refused it.
    The lease is then what it was before, and the call may be repeated.
    """


class UnavailableError(ServerError):
    """The service cannot serve now: it is overloaded, or its database is away."""


_BY_STATUS: Mapping[int, type[ApiError]] = {
    400: InvalidRequestError,
    404: NotFoundError,
    409: ConflictError,
    413: InvalidRequestError,
    415: InvalidRequestError,
    422: InvalidRequestError,
    503: UnavailableError,
}


def api_error(status: int, problem: Mapping[str, Any], retry_after: float | None) -> ApiError:
    """Make the exception for an answer that refuses a call. Something in front of the service may mean other things by the same names."""
    kind = _BY_STATUS.get(status) or (ServerError if status >= HTTPStatus.INTERNAL_SERVER_ERROR else ApiError)
    code, detail, request_id = (_text(problem.get(name)) for name in ("code", "detail", "request_id"))
    error = kind(status, code=code, detail=detail or "", request_id=request_id)
    error.retry_after = retry_after
    if isinstance(error, InvalidRequestError):
        error.errors = _field_errors(problem.get("errors"))
    return error


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _field_errors(entries: object) -> tuple[FieldError, ...]:
    known = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    return tuple(FieldError(field=str(entry.get("field", "")), message=str(entry.get("message", ""))) for entry in known)


# --- no answer came ---------------------------------------------------------------------------------------------------


class ServiceUnreachableError(LeasebeatError):
    """No answer came from the service.

    Attributes:
        maybe_processed: True if the request may have reached the service, so that it may have had its effect. Messages of a send
            may then be stored; sending them again with the same `idempotency_key` stores nothing twice.
        broken: True if a connection was refused or broke; False if time ran out.
    """

    def __init__(self, reason: str, *, maybe_processed: bool, broken: bool) -> None:
        super().__init__(reason)
        self.maybe_processed = maybe_processed
        self.broken = broken

    @property
    def passing(self) -> bool:
        return True


# --- the lease is over ------------------------------------------------------------------------------------------------


class LeaseLostError(LeasebeatError):
    """The lease is over: its holder must stop.

    Attributes:
        status: Why, in the word of the service.
        message_id: The message that the lease was for, where it is known.
    """

    reason = "is over"

    def __init__(self, status: str, message_id: str | None = None) -> None:
        super().__init__(status, message_id)
        self.status = status
        self.message_id = message_id

    def __str__(self) -> str:
        subject = "the lease" if self.message_id is None else f"the lease of message {self.message_id}"
        return f"{subject} {self.reason}"


class ReceiptHandleExpiredError(LeaseLostError):
    """The receipt names a lease that is no longer held."""

    reason = "is no longer held"


class LeaseExpiredError(ReceiptHandleExpiredError):
    """The lease ran out."""

    reason = "ran out"


class LeaseConflictError(ReceiptHandleExpiredError):
    """Another lease of the message has been granted since."""

    reason = "is lost: another one has been granted since"


class UnknownLeaseError(ReceiptHandleExpiredError):
    """The service knows no such lease."""

    reason = "is unknown to the service"


class LeaseSettledError(LeaseLostError):
    """The lease was already acked, nacked or released."""

    reason = "is already settled"


class LeaseCancelledError(LeaseLostError):
    """The message was cancelled."""

    reason = "ended because its message was cancelled"


_BY_LEASE_STATUS: Mapping[str, type[LeaseLostError]] = {
    "expired": LeaseExpiredError,
    "lost": LeaseConflictError,
    "unknown": UnknownLeaseError,
    "settled": LeaseSettledError,
    "cancelled": LeaseCancelledError,
}


def is_refusal(status: str) -> bool:
    """Whether a verdict's status says that the lease is over."""
    return status in _BY_LEASE_STATUS


def lease_error(status: str, message_id: str | None = None) -> LeaseLostError:
    """Make the exception for a status that says that a lease is over."""
    return _BY_LEASE_STATUS.get(status, LeaseLostError)(status, message_id)


def verdict_error(status: str, message_id: str | None = None) -> LeaseLostError | ServerError:
    """Make the exception for a verdict's status that is no success."""
    if is_refusal(status):
        return lease_error(status, message_id)
    subject = "a lease" if message_id is None else f"the lease of message {message_id}"
    code = "row-refused" if status == "error" else None
    return ServerError(HTTPStatus.INTERNAL_SERVER_ERROR, code=code, detail=f"the service answered {status!r} for {subject}")


# --- what handlers raise ----------------------------------------------------------------------------------------------


class GiveUp(LeasebeatError):  # noqa: N818 - a handler's decision, not an error
    """Raise it in a handler when another attempt is pointless: the message fails at once."""


class RetryLater(LeasebeatError):  # noqa: N818 - a handler's decision, not an error
    """Raise it in a handler to choose when the next attempt may start.

    Attributes:
        delay: Seconds before the message becomes ready again.
    """

    def __init__(self, reason: str = "", *, delay: float) -> None:
        """Choose the delay, in seconds, at most a year.

        Raises:
            ValueError: If it is no such number.
        """
        if not 0 <= delay <= LONGEST_DELAY_S:
            raise ValueError(f"delay must be from 0 to {LONGEST_DELAY_S:.0f} seconds, not {delay}")
        super().__init__(reason)
        self.delay = delay
