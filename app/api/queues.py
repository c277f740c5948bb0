"""Queues: create, reconfigure, read, delete."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from app.api import fields, schemas
from app.api.hot import hot_router, json_response
from app.api.params import PageLimit, QueuePath
from app.api.service import service_of
from app.errors import ProblemError, documented, invalid_request, queue_not_found
from app.store.models import Queue
from app.store.queues import DEFAULT_QUEUE, QueueNotEmptyError

hot = hot_router("queues")
router = APIRouter(tags=["queues"])


@hot.put(
    "/queues/{queue}",
    response_model=schemas.Queue,
    summary="Create or reconfigure a queue",
    responses={201: {"model": schemas.Queue, "description": "The queue is new."}, **documented(413, 415, 422, 503)},
)
async def put_queue(queue: QueuePath, body: schemas.QueueConfig, request: Request) -> Response:
    """Give a queue this configuration, and create it if there is none of this name. A field that is left out gets its default."""
    _check_name(queue)
    _check_calibration(body)
    stored, created = await service_of(request).store.queues.put(queue, _columns(body))
    return json_response(_shown(stored).model_dump(), 201 if created else 200)


@router.get("/queues", summary="List the queues", responses=documented(422, 503))
async def list_queues(
    request: Request,
    cursor: Annotated[
        str, Query(max_length=128, pattern=fields.NO_NUL, description="The `next_cursor` of the page before.", examples=["default"])
    ] = "",
    limit: PageLimit = 100,
) -> schemas.QueueList:
    """List the queues by name."""
    queues = await service_of(request).store.queues.page(cursor, limit + 1)
    return schemas.QueueList(
        items=[_shown(queue) for queue in queues[:limit]], next_cursor=queues[limit - 1].name if len(queues) > limit else None
    )


@router.get("/queues/{queue}", summary="Read a queue", responses=documented(404, 422, 503))
async def get_queue(queue: QueuePath, request: Request) -> schemas.Queue:
    """Return a queue's configuration."""
    found = await service_of(request).store.queues.get(queue)
    if found is None:
        raise queue_not_found(queue)
    return _shown(found)


@router.delete("/queues/{queue}", status_code=204, summary="Delete a queue", responses=documented(404, 409, 422, 503))
async def delete_queue(
    queue: QueuePath,
    request: Request,
    force: Annotated[bool, Query(description="Delete its messages with it.", examples=[False])] = False,
) -> None:
    """Delete a queue. One that has messages, finished ones included, is deleted only with `force=true`; `default` never is."""
    if queue == DEFAULT_QUEUE:
        raise ProblemError(409, "queue-protected", "The queue cannot be deleted", f"The queue {DEFAULT_QUEUE!r} always exists.")
    try:
        deleted = await service_of(request).store.delete_queue(queue, force=force)
    except QueueNotEmptyError as error:
        detail = f"The queue {queue!r} has messages. Add ?force=true to delete them with it."
        raise ProblemError(409, "queue-not-empty", "The queue is not empty", detail) from error
    if not deleted:
        raise queue_not_found(queue)


def _check_name(queue: str) -> None:
    if not fields.is_queue_name(queue):
        raise invalid_request([{"loc": ("path", "queue"), "msg": f"A queue's name must match {fields.QUEUE_NAME}"}])


def _check_calibration(config: schemas.QueueConfig) -> None:
    """Refuse a configuration under which a worker that beats could lose its lease (seed 001, timeout calibration)."""
    if config.extension_enabled and config.beat_interval >= config.extension / 2:
        detail = (
            f"beat_interval < extension / 2 must hold, so that extensions come before the expiry: "
            f"beat_interval is {config.beat_interval:g}, extension / 2 is {config.extension / 2:g}."
        )
        raise ProblemError(422, "invalid-queue-config", "The queue's times do not fit together", detail)


def _warnings(config: schemas.QueueConfig) -> list[str]:
    """Name the settings that work but are unlikely to be meant (seeds 001 and 003)."""
    warnings = []
    if config.extension > config.visibility_timeout:
        warnings.append("extension is longer than visibility_timeout: a beat lengthens a lease beyond its first length.")
    if config.beat_interval > config.visibility_timeout / 5:
        warnings.append("beat_interval is more than a fifth of visibility_timeout: about a tenth leaves room for lost beats.")
    if config.max_lease < config.visibility_timeout:
        warnings.append("max_lease is shorter than visibility_timeout, and cuts every lease short.")
    return warnings


def _columns(config: schemas.QueueConfig) -> dict[str, Any]:
    """Lay a configuration out as columns of the table `queue`."""
    columns = config.model_dump(exclude={"backoff", "adaptive_bounds", "dead_letter_queue", "paused"})
    columns |= {f"backoff_{name}": value for name, value in config.backoff.model_dump().items()}
    columns |= {"adaptive_min": config.adaptive_bounds.min, "adaptive_max": config.adaptive_bounds.max}
    return columns if config.paused is None else columns | {"paused": config.paused}


def _shown(queue: Queue) -> schemas.Queue:
    plain = {name: getattr(queue, name) for name in schemas.QueueConfig.model_fields if hasattr(queue, name)}
    config = schemas.QueueConfig(
        **plain,
        backoff=schemas.Backoff(**{name: getattr(queue, f"backoff_{name}") for name in schemas.Backoff.model_fields}),
        adaptive_bounds=schemas.Bounds(min=queue.adaptive_min, max=queue.adaptive_max),
        dead_letter_queue=None,
    )
    return schemas.Queue(
        **dict(config), name=queue.name, created_at=queue.created_at, updated_at=queue.updated_at, warnings=_warnings(config)
    )
