"""Figures: lease health, messages by state, retry distribution; from memory, whatever there is to count."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request

from app.api import fields, schemas
from app.api.service import service_of
from app.errors import documented
from app.store.figures import Counts
from app.store.models import STATUSES

router = APIRouter(tags=["recovery"])


@router.get("/stats", summary="Read the figures", responses=documented(404, 422, 503))
async def get_stats(
    request: Request,
    queue: Annotated[fields.QueueName | None, Query(description="Only this queue's. Null: all queues'.", examples=["default"])] = None,
) -> schemas.Stats:
    """Return the newest background count. A queue that is younger than it has no `as_of` yet, and zeros."""
    service = service_of(request)
    figures = service.store.figures
    counts = figures.of_queue((await service.queue_named(queue)).id) if queue else figures.overall
    return _shown(counts or Counts(), figures.as_of if counts else None, figures.refresh_s)


def _shown(counts: Counts, as_of: datetime | None, refresh: float) -> schemas.Stats:
    attempt_counts = sorted({attempt_count for _, attempt_count in counts.retries})
    return schemas.Stats(
        as_of=as_of,
        refresh=refresh,
        leases=schemas.LeaseHealth(**{health: counts.leases[health] for health in schemas.LeaseHealth.model_fields}),
        messages=schemas.MessageCounts(**{status: counts.messages[status] for status in STATUSES}),
        retries=[
            schemas.RetryCount(attempt_count=each, completed=counts.retries["completed", each], failed=counts.retries["failed", each])
            for each in attempt_counts
        ],
    )
