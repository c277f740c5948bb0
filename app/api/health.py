"""Health, for the platform."""

from importlib.metadata import version
from typing import Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import exposition

from app.api import schemas
from app.api.service import service_of
from app.store.faults import UnavailableError
from app.store.revision import is_behind

router = APIRouter(tags=["platform"])

_PATIENCE_S = 2.0


@router.get("/healthz", summary="Whether the process answers")
async def healthz() -> schemas.Health:
    """Answer as long as the process runs. Says nothing about the database: restarting the service would not mend that."""
    return schemas.Health(status="ok")


@router.get(
    "/readyz", summary="Whether this replica can serve", responses={503: {"model": schemas.Readiness, "description": "It cannot, now."}}
)
async def readyz(request: Request, response: Response) -> schemas.Readiness:
    """Answer 200 if Postgres answers, its schema is this version's or a later one's, and the timer keeps up; else 503."""
    service = service_of(request)
    state: Literal["ok", "unreachable", "not-migrated"]
    try:
        state = "not-migrated" if is_behind(await service.revision(_PATIENCE_S), service.migrations) else "ok"
    except (UnavailableError, TimeoutError):
        state = "unreachable"
    ready = state == "ok" and service.timer_keeps_up and service.can_issue_receipts
    response.status_code = 200 if ready else 503
    return schemas.Readiness(
        status="ready" if ready else "not-ready", database=state, timer_lag=service.timer_lag(), version=version("leasebeat-server")
    )


@router.get("/metrics", response_class=PlainTextResponse, summary="Metrics, for Prometheus")
async def metrics(request: Request) -> Response:
    """Return what this replica has counted since it started: beats by outcome, claims, settles, reclaims and their lag; and the figures.

    `http_server_…` are of the other calls: not of sends, claims, beats and settles, whose outcomes those count.
    """
    encode, content_type = exposition.choose_encoder(request.headers.get("accept", ""))
    return Response(encode(service_of(request).metrics), media_type=content_type)
