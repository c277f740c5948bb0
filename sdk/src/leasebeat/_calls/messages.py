"""Calls about messages."""

import dataclasses
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from leasebeat._call import Call, is_header_value
from leasebeat._calls.lists import list_call
from leasebeat._calls.paths import message_path, queue_path
from leasebeat._messages import Checkpoint, Message, NewMessage, SentMessage
from leasebeat._wire import Page, build, encode, one_each, without_none

T = TypeVar("T")


def send(
    queue: str,
    body: Any,
    *,
    headers: Mapping[str, str] | None = None,
    priority: int | None = None,
    delay: float | None = None,
    fairness_key: str | None = None,
    work_type: str | None = None,
    task_id: str | None = None,
    max_attempts: int | None = None,
    dedup_key: str | None = None,
    idempotency_key: str | None = None,
) -> Call[SentMessage]:
    """Send one message. Once this returns, the message is stored.

    Args:
        queue: The queue to send to.
        body: The work: any JSON value of at most 256 KiB.
        headers: Up to 50 short strings for the worker.
        priority: Higher is leased first, within its fairness key.
        delay: Seconds before the message becomes ready.
        fairness_key: The tenant or flow it belongs to.
        work_type: What kind of work it is.
        task_id: The larger task that it is part of.
        max_attempts: Its own limit of attempts. None takes the queue's.
        dedup_key: While a message that was sent to this queue with the same key is kept, none is stored; the first one is returned.
        idempotency_key: A name for this send: repeating it stores nothing twice, and returns what the first returned. Made up if
            left out.

    Raises:
        NotFoundError: If there is no such queue.
        InvalidRequestError: If the message breaks a limit, or the key was used for another send.
        ServiceUnreachableError: With `maybe_processed` if the message may have been stored. With a key of your own, send it again.
        ValueError: If the key cannot be the value of an HTTP header.
    """
    message = NewMessage(body, headers, priority, delay, fairness_key, work_type, task_id, max_attempts, dedup_key)
    return _send(queue, [message], idempotency_key, lambda sent: sent[0])


def send_many(queue: str, messages: Iterable[NewMessage], *, idempotency_key: str | None = None) -> Call[tuple[SentMessage, ...]]:
    """Send 1 to 1000 messages: all are stored, or none.

    Args:
        queue: The queue to send to.
        messages: The messages.
        idempotency_key: A name for this send: repeating it stores nothing twice, and returns what the first returned. Made up if
            left out.

    Raises:
        NotFoundError: If there is no such queue.
        InvalidRequestError: If a message breaks a limit, or the key was used for another send.
        ServiceUnreachableError: With `maybe_processed` if the messages may have been stored. With a key of your own, send them again.
        ValueError: If the key cannot be the value of an HTTP header.
    """
    return _send(queue, messages, idempotency_key, lambda sent: sent)


def get_message(message_id: str) -> Call[Message]:
    """Read a message: its state, and its result or error.

    Raises:
        NotFoundError: If there is no such message.
    """
    return Call(method="GET", path=message_path(message_id), parse=lambda data, _: build(Message, data))


def list_messages(queue: str, *, status: str | None = None, cursor: str | None = None, limit: int | None = None) -> Call[Page[Message]]:
    """List a queue's messages, oldest first.

    Args:
        queue: The queue's name.
        status: Only messages in this state.
        cursor: `next_cursor` of the page before.
        limit: The most entries to return.

    Raises:
        NotFoundError: If there is no such queue.
    """
    return list_call(queue_path(queue, "messages"), Message, cursor=cursor, limit=limit, status=status)


def list_checkpoints(message_id: str) -> Call[Page[Checkpoint]]:
    """List a message's history, newest first.

    Raises:
        NotFoundError: If there is no such message.
    """
    return list_call(message_path(message_id, "checkpoints"), Checkpoint)


def cancel_message(message_id: str) -> Call[Message]:
    """End a message without a result. Who holds it hears so in the answer to its next beat.

    Raises:
        NotFoundError: If there is no such message.
        ConflictError: If it is completed or failed already.
    """
    return Call(method="POST", path=message_path(message_id, "cancel"), content=encode({}), parse=lambda data, _: build(Message, data))


def _send(
    queue: str, messages: Iterable[NewMessage], idempotency_key: str | None, result: Callable[[tuple[SentMessage, ...]], T]
) -> Call[T]:
    items = [_new_message(message) for message in messages]
    return Call(
        method="POST",
        path=queue_path(queue, "messages"),
        content=encode({"messages": items}),
        headers={"idempotency-key": uuid.uuid4().hex if idempotency_key is None else _header(idempotency_key)},
        parse=lambda data, _: result(tuple(build(SentMessage, sent) for sent in one_each(items, data["messages"]))),
    )


def _header(text: str) -> str:
    if not (text and is_header_value(text)):
        raise ValueError("an idempotency key must be printable ASCII, not empty, and without spaces around it")
    return text


def _new_message(message: NewMessage) -> dict[str, Any]:
    fields = {field.name: getattr(message, field.name) for field in dataclasses.fields(message) if field.name != "body"}
    if message.headers is not None:
        fields["headers"] = dict(message.headers)
    return {"body": message.body, **without_none(**fields)}
