"""Messages: send, read, list, history."""

from typing import Annotated

import orjson
from fastapi import APIRouter, Query, Request, Response

from app.api import schemas
from app.api.hot import body_router, hot_router, json_response
from app.api.idempotency import IDEMPOTENCY_KEY, request_key
from app.api.params import MessageCursor, MessagePath, PageLimit, QueuePath, id_number, is_id
from app.api.rows import checkpoint_view, message_view
from app.api.service import service_of
from app.errors import ProblemError, documented, idempotency_key_reused, message_not_found, queue_not_found
from app.leases.states import Status
from app.store.faults import OverloadedError
from app.store.models import STATUSES
from app.store.sending import NewMessage, NotSent

hot = hot_router("messages")
bodies = body_router("messages")
router = APIRouter(tags=["messages"])

_TRIES = 10
"""To cancel a message that changes hands at the same time."""


@hot.post(
    "/queues/{queue}/messages",
    status_code=201,
    response_model=schemas.SendResponse,
    summary="Send messages",
    responses=documented(404, 413, 415, 422, 503),
    openapi_extra={"parameters": [IDEMPOTENCY_KEY]},
)
async def send_messages(queue: QueuePath, body: schemas.SendRequest, request: Request) -> Response:
    """Store 1 to 1000 messages, all of them or none. They are stored when this answers 201.

    Messages whose `dedup_key` is known are not stored; each is answered with the first one. With an `Idempotency-Key`, the call may be
    repeated for a day: the same body stores nothing and is answered with the same ids, another body is refused.
    """
    service = service_of(request)
    messages = [_new_message(message) for message in body.messages]
    key = await request_key(request)
    sent = await service.store.send(await service.queue_named(queue), messages, key)
    if sent is NotSent.QUEUE_GONE:
        # The name was remembered, and its queue has been deleted: perhaps there is a new one.
        sent = await service.store.send(await service.queue_named(queue, fresh=True), messages, key)
    match sent:
        case NotSent.QUEUE_GONE:
            raise queue_not_found(queue)
        case NotSent.KEY_REUSED:
            raise idempotency_key_reused(queue)
    answer = [{"id": str(each.id), "status": each.status, "duplicate": each.duplicate} for each in sent.messages]
    return json_response({"messages": answer}, 201)


@bodies.post(
    "/messages/{message_id}/cancel",
    response_model=schemas.Message,
    summary="Cancel a message",
    responses=documented(403, 404, 409, 413, 415, 422, 503),
)
async def cancel_message(message_id: MessagePath, body: schemas.Nothing, request: Request) -> Response:  # noqa: ARG001 - see `Nothing`
    """End a message, also one that is leased: its holder hears of it in the answer to its next beat. To repeat it changes nothing."""
    if not is_id(message_id):
        raise message_not_found(message_id)
    store, number = service_of(request).store, id_number(message_id)
    for _ in range(_TRIES):
        done = await store.cancel(number)
        row = await store.reads.message(number)
        if row is None:
            raise message_not_found(message_id)
        if done or row["status"] == "cancelled":
            return json_response(message_view(row))
        if row["finished_at"] is not None:
            detail = f"The message {message_id} is {row['status']}: it cannot be cancelled any more."
            raise ProblemError(409, "message-finished", "The message is finished", detail)
    raise OverloadedError("the message changes hands too fast")


@router.get("/messages/{message_id}", response_model=schemas.Message, summary="Read a message", responses=documented(404, 422, 503))
async def get_message(message_id: MessagePath, request: Request) -> Response:
    """Return a message with its state and result. Never a receipt."""
    row = await service_of(request).store.reads.message(id_number(message_id))
    if row is None:
        raise message_not_found(message_id)
    return json_response(message_view(row))


@router.get(
    "/messages/{message_id}/checkpoints",
    response_model=schemas.CheckpointList,
    summary="Read a message's history",
    responses=documented(404, 422, 503),
)
async def list_checkpoints(message_id: MessagePath, request: Request) -> Response:
    """Return what ended each of a message's attempts, and the results that were refused as too late, newest first."""
    reads = service_of(request).store.reads
    if await reads.message(id_number(message_id)) is None:
        raise message_not_found(message_id)
    return json_response({"items": [checkpoint_view(row) for row in await reads.checkpoints(id_number(message_id))], "next_cursor": None})


@router.get(
    "/queues/{queue}/messages", response_model=schemas.MessageList, summary="List a queue's messages", responses=documented(404, 422, 503)
)
async def list_messages(
    queue: QueuePath,
    request: Request,
    status: Annotated[Status | None, Query(description="Only messages in this state.", examples=["failed"])] = None,
    cursor: MessageCursor = "",
    limit: PageLimit = 100,
) -> Response:
    """List a queue's messages, oldest first. A page of large ones may have fewer than `limit`."""
    service = service_of(request)
    found = await service.queue_named(queue)
    rows, more = await service.store.reads.messages(found.shard, found.id, [status] if status else STATUSES, id_number(cursor), limit)
    items = [message_view(row) for row in rows]
    return json_response({"items": items, "next_cursor": items[-1]["id"] if more else None})


def _new_message(message: schemas.NewMessage) -> NewMessage:
    return NewMessage(
        message.body,
        orjson.dumps(message.headers).decode() if message.headers else None,
        message.priority,
        message.delay,
        message.fairness_key,
        message.work_type,
        message.task_id,
        message.max_attempts,
        message.dedup_key,
    )
