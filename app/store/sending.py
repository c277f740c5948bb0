"""What is sent, and what becomes of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from app.store.columns import sparse


class NewMessage(NamedTuple):
    """One message to store, in the order of the arrays that every statement which stores them ends with. JSON values are their text.

    Nothing may log it: it would show the body.
    """

    body: str
    headers: str | None
    priority: int
    delay: float
    fairness_key: str
    work_type: str | None
    task_id: str | None
    max_attempts: int | None
    dedup_key: str | None

    @property
    def first_status(self) -> str:
        return "scheduled" if self.delay > 0 else "pending"


def size_of(message: str) -> str:
    """Return the SQL for how many bytes the body and the headers of the row `message` take as text."""
    return f"octet_length({message}.body::text) + coalesce(octet_length({message}.headers::text), 0)"


COLUMNS = "body, headers, size, priority, available_at, status, fairness_key, work_type, task_id, max_attempts"
"""The columns that every statement which stores messages fills from their arrays."""

VALUES = f"""body, headers, {size_of("item")}, priority, now() + make_interval(secs => delay),
       case when delay > 0 then 'scheduled' else 'pending' end, fairness_key, work_type, task_id, max_attempts"""
"""What it fills them with, from a row `item` of these arrays. The status is `NewMessage.first_status`."""


def columns_of(messages: Sequence[NewMessage]) -> tuple[Sequence[object], ...]:
    """Lay messages out as the arrays that every statement which stores them ends with."""
    *columns, _dedup_keys = zip(*messages, strict=True)
    return tuple(map(sparse, columns))


class RequestKey(NamedTuple):
    """What a call is known by when it is repeated: its Idempotency-Key, and the digest of its body."""

    key: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class Sending:
    """The messages of one call, for one queue."""

    queue_id: int
    messages: list[NewMessage] = field(repr=False)
    request: RequestKey | None

    @property
    def has_keys(self) -> bool:
        return self.request is not None or any(message.dedup_key is not None for message in self.messages)


class SentMessage(NamedTuple):
    """The message that one of a call has become; a duplicate is an earlier one, as it is now."""

    id: int
    status: str
    duplicate: bool


class Sent(NamedTuple):
    """The answer to a call, and how many messages it has stored: none if it repeats an earlier one."""

    messages: list[SentMessage]
    stored: int


class NotSent(Enum):
    """Why nothing of a call is stored."""

    QUEUE_GONE = auto()
    KEY_REUSED = auto()
