"""Recovery: a sweep on demand, and what all sweeps have done."""

from dataclasses import asdict
from datetime import datetime
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from app.api import schemas
from app.api.hot import body_router, json_response
from app.api.service import service_of
from app.errors import documented

bodies = body_router("recovery")
router = APIRouter(tags=["recovery"])


@bodies.post("/recovery/sweep", response_model=schemas.RecoveryStats, summary="Sweep now", responses=documented(403, 413, 415, 422, 503))
async def sweep(body: schemas.Nothing, request: Request) -> Response:  # noqa: ARG001 - see `Nothing`
    """Reclaim every lease that has run out and trim the histories, at once. The service does the same by itself all the time."""
    return json_response(asdict(await service_of(request).sweep()))


@router.get("/recovery", response_model=schemas.Recovery, summary="Read what the sweeps have done", responses=documented(422, 503))
async def get_recovery(request: Request) -> Response:
    """Return the totals of all replicas since the database was made. They survive restarts."""
    service = service_of(request)
    totals = await service.store.recovery.totals()
    return json_response(dict(totals) | {"is_running": service.timer_keeps_up, "last_scan": _last_scan(totals["last_scan"])})


def _last_scan(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    scan: dict[str, Any] = orjson.loads(text)
    return scan | {"ended_at": datetime.fromisoformat(scan["ended_at"])}
