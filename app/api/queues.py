"""Queues: create, reconfigure, read, delete; pause, resume, purge, redrive."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from app.api import fields, schemas
from app.api.hot import body_router, json_response
from app.api.params import PageLimit, QueuePath
from app.api.presence import unless_gone
from app.api.queue_config import broken_rule, columns_of, queue_view
from app.api.service import service_of
from app.errors import ProblemError, documented, invalid_request, queue_not_found
from app.store.queues import DEFAULT_QUEUE, QueueInUseError, QueueNotEmptyError, UnfitDeadLetterQueueError

bodies = body_router("queues")
router = APIRouter(tags=["queues"])


@bodies.put(
    "/queues/{queue}",
    response_model=schemas.Queue,
    summary="Create or reconfigure a queue",
    responses={201: {"model": schemas.Queue, "description": "The queue is new."}, **documented(413, 415, 422, 503)},
)
async def put_queue(queue: QueuePath, body: schemas.QueueConfig, request: Request) -> Response:
    """Give a queue this configuration, and create it if there is none of this name. A field that is left out gets its default."""
    _check_name(queue)
    if broken := broken_rule(queue, body):
        raise _unfit(broken)
    store = service_of(request).store
    try:
        stored, created = await store.put_queue(queue, columns_of(body), body.dead_letter_queue)
    except UnfitDeadLetterQueueError as error:
        raise _unfit(str(error)) from error
    return json_response(queue_view(stored, store.figures).model_dump(), 201 if created else 200)


@router.get("/queues", summary="List the queues", responses=documented(422, 503))
async def list_queues(
    request: Request,
    cursor: Annotated[
        str, Query(max_length=128, pattern=fields.NO_NUL, description="The `next_cursor` of the page before.", examples=["default"])
    ] = "",
    limit: PageLimit = 100,
) -> schemas.QueueList:
    """List the queues by name."""
    store = service_of(request).store
    queues = await store.queues.page(cursor, limit + 1)
    return schemas.QueueList(
        items=[queue_view(queue, store.figures) for queue in queues[:limit]],
        next_cursor=queues[limit - 1].queue.name if len(queues) > limit else None,
    )


@router.get("/queues/{queue}", summary="Read a queue", responses=documented(404, 422, 503))
async def get_queue(queue: QueuePath, request: Request) -> schemas.Queue:
    """Return a queue's configuration, what it has derived, and its messages by state as of the last background count."""
    store = service_of(request).store
    found = await store.queues.get(queue)
    if found is None:
        raise queue_not_found(queue)
    return queue_view(found, store.figures)


@router.delete("/queues/{queue}", status_code=204, summary="Delete a queue", responses=documented(404, 409, 422, 503))
async def delete_queue(
    queue: QueuePath,
    request: Request,
    force: Annotated[
        bool, Query(description="Delete its messages with it; queues whose dead-letter queue it is have none then.", examples=[False])
    ] = False,
) -> None:
    """Delete a queue. One that has messages, finished ones included, is deleted only with `force=true`; `default` never is.

    The same holds for a queue that is another's dead-letter queue.
    """
    if queue == DEFAULT_QUEUE:
        raise ProblemError(409, "queue-protected", "The queue cannot be deleted", f"The queue {DEFAULT_QUEUE!r} always exists.")
    try:
        deleted = await service_of(request).store.delete_queue(queue, force=force)
    except QueueInUseError as error:
        detail = f"The queue {queue!r} is the dead-letter queue of {error}. Add ?force=true to delete it all the same."
        raise ProblemError(409, "queue-in-use", "The queue is in use", detail) from error
    except QueueNotEmptyError as error:
        detail = f"The queue {queue!r} has messages. Add ?force=true to delete them with it."
        raise ProblemError(409, "queue-not-empty", "The queue is not empty", detail) from error
    if not deleted:
        raise queue_not_found(queue)


@bodies.post(
    "/queues/{queue}/pause", response_model=schemas.Queue, summary="Pause a queue", responses=documented(403, 404, 413, 415, 422, 503)
)
async def pause_queue(queue: QueuePath, body: schemas.Nothing, request: Request) -> Response:  # noqa: ARG001 - see `Nothing`
    """Grant no more leases on a queue's messages. All else goes on: sends, beats, settles, and leases that run out."""
    return await _set_paused(request, queue, paused=True)


@bodies.post(
    "/queues/{queue}/resume", response_model=schemas.Queue, summary="Resume a queue", responses=documented(403, 404, 413, 415, 422, 503)
)
async def resume_queue(queue: QueuePath, body: schemas.Nothing, request: Request) -> Response:  # noqa: ARG001 - see `Nothing`
    """Grant leases again, at once to claims that wait."""
    return await _set_paused(request, queue, paused=False)


@bodies.post(
    "/queues/{queue}/purge",
    response_model=schemas.PurgeResponse,
    summary="Purge a queue",
    responses=documented(403, 404, 413, 415, 422, 503),
)
async def purge_queue(queue: QueuePath, body: schemas.PurgeRequest, request: Request) -> Response:
    """Remove a queue's messages in some states, with their history. Messages that are sent meanwhile stay."""
    service = service_of(request)
    found = await service.queue_named(queue, fresh=True)
    done = await unless_gone(request, service.store.purge(found, body.statuses))
    return Response(status_code=204) if done is None else json_response({"purged": done.messages, "more": done.more})


@bodies.post(
    "/queues/{queue}/redrive",
    response_model=schemas.RedriveResponse,
    summary="Redrive a queue",
    responses=documented(403, 404, 413, 415, 422, 503),
)
async def redrive_queue(queue: QueuePath, body: schemas.RedriveRequest, request: Request) -> Response:
    """Send a dead-letter queue's messages back to where they came from, ready at once and with a fresh budget of attempts.

    Messages that failed here and came from nowhere else are tried again here. Those whose queue is gone stay, unless `to` is given:
    then all that are scheduled, pending or failed go there. Leased, completed and cancelled ones always stay.
    """
    service = service_of(request)
    found = await service.queue_named(queue, fresh=True)
    if body.to is not None:
        if body.to == queue:
            raise _unfit_destination("It is the queue itself. Leave it out to try the messages again that failed here.")
        if (await service.queue_named(body.to, fresh=True)).shard != found.shard:
            raise _unfit_destination("The queue is in another shard: messages cannot move there.")
    done = await unless_gone(request, service.store.redrive(found, body.to, body.limit))
    return Response(status_code=204) if done is None else json_response({"redriven": done.messages, "more": done.more})


async def _set_paused(request: Request, queue: str, *, paused: bool) -> Response:
    store = service_of(request).store
    stored = await store.pause(queue, paused=paused) if fields.is_queue_name(queue) else None
    if stored is None:
        raise queue_not_found(queue)
    return json_response(queue_view(stored, store.figures).model_dump())


def _check_name(queue: str) -> None:
    if not fields.is_queue_name(queue):
        raise invalid_request([{"loc": ("path", "queue"), "msg": f"A queue's name must match {fields.QUEUE_NAME}"}])


def _unfit_destination(message: str) -> ProblemError:
    return invalid_request([{"loc": ("to",), "msg": message}])


def _unfit(detail: str) -> ProblemError:
    return ProblemError(422, "invalid-queue-config", "The queue's configuration does not fit together", detail)
