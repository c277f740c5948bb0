"""The field types of the wire, each with its limits, so that a limit stands in one place.

All are strict: a wrong type, NUL, NaN or an out-of-range number is refused, never converted or clamped (design rule 13).
"""

import math
import re
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StringConstraints, WithJsonSchema
from pydantic_core import PydanticCustomError, to_json

MAX_BODY_BYTES = 256 * 1024
MAX_DETAIL_BYTES = 8 * 1024
MAX_BATCH = 1000
MAX_WAIT_S = 50.0
MAX_DURATION_S = 31_536_000.0
LEAST_DELAY_S = 1e-6

INT64_MAX = 2**63 - 1
NO_NUL = r"^[^\x00]*$"


def _find_unstorable(value: object) -> str | None:
    """Name what in a JSON value has no place in a JSON document that Postgres and every client can read."""
    match value:
        case float() if not math.isfinite(value):
            return "a number that is not finite"
        case str() if "\0" in value:
            return "the character U+0000"
        case list():
            return next(filter(None, map(_find_unstorable, value)), None)
        case dict():
            return _find_unstorable(list(value.keys())) or _find_unstorable(list(value.values()))
        case _:
            return None


def _json_text(max_bytes: int) -> AfterValidator:
    """Turn a parsed JSON value into its text, refusing what cannot be stored."""

    def encode(value: Any) -> str:
        text = to_json(value)
        if len(text) > max_bytes:
            raise PydanticCustomError(
                "too_large", "the JSON text is {size} bytes long, at most {limit} are allowed", {"size": len(text), "limit": max_bytes}
            )
        # The walk is slow, so it runs only when these bytes say that it may find something.
        suspicious = b"\\u0000" in text or b"NaN" in text or b"Infinity" in text
        if suspicious and (found := _find_unstorable(value)):
            raise PydanticCustomError("unstorable", "the value holds {found}", {"found": found})
        return text.decode()

    return AfterValidator(encode)


_ANY_JSON = WithJsonSchema({"description": "Any JSON value."})

JsonBody = Annotated[Any, _json_text(MAX_BODY_BYTES), _ANY_JSON]
"""Any JSON value of at most 256 KiB, held as its text."""

JsonDetail = Annotated[Any, _json_text(MAX_DETAIL_BYTES), _ANY_JSON]
"""Any JSON value of at most 8 KiB, held as its text."""

Headers = Annotated[
    dict[
        Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=NO_NUL)],
        Annotated[str, StringConstraints(max_length=2048, pattern=NO_NUL)],
    ],
    Field(max_length=50),
]

QUEUE_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_queue_name = re.compile(QUEUE_NAME)
QueueName = Annotated[str, StringConstraints(pattern=f"^{QUEUE_NAME}$")]
WorkerId = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=NO_NUL)]
Label = Annotated[str, StringConstraints(max_length=200, pattern=NO_NUL)]
DedupKey = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=NO_NUL)]
IdempotencyKey = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[ -~]*$")]
WorkTypes = Annotated[list[Label], Field(min_length=1, max_length=20)]
ClaimId = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=NO_NUL)]
ReceiptText = Annotated[str, StringConstraints(min_length=1, max_length=100)]
ErrorText = Annotated[str, StringConstraints(max_length=8192, pattern=NO_NUL)]


def _countable(seconds: float) -> float:
    """Refuse what Postgres, which counts microseconds, would take for nothing or choke on."""
    if 0 < seconds < LEAST_DELAY_S:
        raise PydanticCustomError("too_short", "a time is 0 or at least {least} seconds", {"least": f"{LEAST_DELAY_S:f}"})
    return seconds


LeaseSeconds = Annotated[float, Field(ge=0.01, le=MAX_DURATION_S)]
DelaySeconds = Annotated[float, Field(ge=0, le=MAX_DURATION_S), AfterValidator(_countable)]
"""0, or at least a microsecond."""
BackoffFactor = Annotated[float, Field(ge=1, le=10)]
RetentionSeconds = Annotated[float, Field(ge=1, le=10 * MAX_DURATION_S)]
InFlight = Annotated[int, Field(ge=1, le=10_000)]
Priority = Annotated[int, Field(ge=-32768, le=32767)]
Attempts = Annotated[int, Field(ge=1, le=1_000_000)]
Weight = Annotated[int, Field(ge=1, le=1000)]
Progress = Annotated[int, Field(ge=0, le=INT64_MAX)]


def is_queue_name(text: str) -> bool:
    return _queue_name.fullmatch(text) is not None
