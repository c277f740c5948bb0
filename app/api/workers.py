"""Workers: list, read, drain, delete.

A name may hold any character, also a slash or a line break, so it is read as the rest of the path.
"""

from fastapi import APIRouter, Request, Response
from starlette.convertors import PathConvertor, register_url_convertor

from app.api import schemas
from app.api.hot import body_router, json_response
from app.api.params import PageLimit, WorkerCursor, WorkerPath
from app.api.rows import active_lease_view, page, worker_view
from app.api.service import Service, service_of
from app.errors import documented, worker_not_found
from app.store import workers
from app.store.database import Row

_SHOWN_LEASES = 1000


class _WorkerConvertor(PathConvertor):
    regex = "(?s:.*)"


register_url_convertor("worker", _WorkerConvertor())

bodies = body_router("workers")
router = APIRouter(tags=["workers"])


@router.get("/workers", response_model=schemas.WorkerList, summary="List the workers", responses=documented(422, 503))
async def list_workers(request: Request, cursor: WorkerCursor = "", limit: PageLimit = 100) -> Response:
    """List the workers by name: who is alive, since when, holding how many leases. One is forgotten after a day without a sign."""
    service = service_of(request)
    rows = await workers.page(service.database.reads, cursor, limit + 1)
    return json_response(page([_counted(service, row) for row in rows], limit, "worker_id") | {"as_of": service.store.figures.as_of})


@router.get(
    "/workers/{worker_id:worker}", response_model=schemas.WorkerDetail, summary="Read a worker", responses=documented(404, 422, 503)
)
async def get_worker(worker_id: WorkerPath, request: Request) -> Response:
    """Return a worker, with the leases that it holds now."""
    service = service_of(request)
    await service.store.registry.flush()  # it may have shown itself here a moment ago
    row = await workers.get(service.database.reads, worker_id)
    if row is None:
        raise worker_not_found(worker_id)
    _, leases = await service.store.reads.leases(queue_id=None, worker_id=worker_id, overdue=None, after=0, limit=_SHOWN_LEASES)
    held = len(leases) if len(leases) < _SHOWN_LEASES else await workers.count_held(service.database.reads, worker_id)
    return json_response(worker_view(row, held) | {"leases": [active_lease_view(lease) for lease in leases]})


@bodies.post(
    "/workers/{worker_id:worker}/drain",
    response_model=schemas.Worker,
    summary="Drain a worker",
    responses=documented(403, 404, 413, 415, 422, 503),
)
async def drain_worker(worker_id: WorkerPath, body: schemas.DrainRequest, request: Request) -> Response:
    """Give a worker no new leases, and tell it so in the answer to its next claim or beat. What it holds, it may finish."""
    service = service_of(request)
    row = await service.store.registry.drain(worker_id, draining=body.draining) if "\0" not in worker_id else None
    if row is None:
        raise worker_not_found(worker_id)
    return json_response(_counted(service, row))


@router.delete("/workers/{worker_id:worker}", status_code=204, summary="Delete a worker", responses=documented(404, 422, 503))
async def delete_worker(worker_id: WorkerPath, request: Request) -> None:
    """Release all leases that a worker holds, uncounted, and forget it. One that lives comes back with its next claim or beat."""
    if not await service_of(request).store.delete_worker(worker_id):
        raise worker_not_found(worker_id)


def _counted(service: Service, row: Row) -> dict[str, object]:
    return worker_view(row, service.store.figures.held_leases.get(row["worker_id"], 0))
