"""Calls about messages."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from leasebeat._call import Call
from leasebeat._calls.paths import message_path, queue_path
from leasebeat._messages import Checkpoint, Message, NewMessage, SentMessage
from leasebeat._wire import Page, build, build_page, encode, without_none


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

    Raises:
        NotFoundError: If there is no such queue.
        InvalidRequestError: If the message breaks a limit.
        ServiceUnreachableError: With `maybe_processed` if the message may have been stored.
    """
    message = NewMessage(body, headers, priority, delay, fairness_key, work_type, task_id, max_attempts)
    return _send(queue, [message], lambda data, _: build(SentMessage, data["messages"][0]))


def send_many(queue: str, messages: Iterable[NewMessage]) -> Call[tuple[SentMessage, ...]]:
    """Send 1 to 1000 messages: all are stored, or none.

    Raises:
        NotFoundError: If there is no such queue.
        InvalidRequestError: If a message breaks a limit.
        ServiceUnreachableError: With `maybe_processed` if the messages may have been stored.
    """
    return _send(queue, messages, lambda data, _: tuple(build(SentMessage, sent) for sent in data["messages"]))


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
    query = without_none(status=status, cursor=cursor, limit=None if limit is None else str(limit))
    return Call(
        method="GET",
        path=queue_path(queue, "messages"),
        query=query,
        parse=lambda data, _: build_page(lambda item: build(Message, item), data),
    )


def list_checkpoints(message_id: str) -> Call[Page[Checkpoint]]:
    """List a message's history, newest first.

    Raises:
        NotFoundError: If there is no such message.
    """
    return Call(
        method="GET",
        path=message_path(message_id, "checkpoints"),
        parse=lambda data, _: build_page(lambda item: build(Checkpoint, item), data),
    )


def _send(queue: str, messages: Iterable[NewMessage], parse: Any) -> Call[Any]:
    content = encode({"messages": [_new_message(message) for message in messages]})
    return Call(method="POST", path=queue_path(queue, "messages"), content=content, repeatable=False, parse=parse)


def _new_message(message: NewMessage) -> dict[str, Any]:
    fields = {field.name: getattr(message, field.name) for field in dataclasses.fields(message) if field.name != "body"}
    if message.headers is not None:
        fields["headers"] = dict(message.headers)
    return {"body": message.body, **without_none(**fields)}
