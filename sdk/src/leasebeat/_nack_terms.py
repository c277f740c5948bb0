"""What becomes of a message whose handler failed."""

from typing import TypedDict

from leasebeat._errors import GiveUp, InvalidRequestError, RetryLater

UNSTORABLE = (InvalidRequestError, TypeError, ValueError, RecursionError)
"""What a settlement raises whose output or error has no form in JSON, or none that the service stores: it is no better next time."""


class NackTerms(TypedDict):
    """What a nack says besides its error, by the names that `nack` calls take."""

    delay: float | None
    retryable: bool


def nack_terms(error: BaseException) -> NackTerms:
    """What the handler's exception decides: `RetryLater` when, `GiveUp` that there is no other attempt. Else the queue's backoff decides."""
    return {"delay": error.delay if isinstance(error, RetryLater) else None, "retryable": not isinstance(error, GiveUp)}
