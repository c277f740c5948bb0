"""Leases: claim, beat, ack, nack, release, list."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Protocol, TypeVar

from fastapi import APIRouter, Query, Request, Response

from app.api import fields, schemas
from app.api.hot import hot_router, json_response
from app.api.params import MessageCursor, PageLimit, QueuePath, id_number
from app.api.presence import unless_gone, unless_gone_by_then
from app.api.rows import active_lease_view, lease_view, page
from app.api.service import Service, service_of
from app.errors import documented, invalid_request
from app.leases import outcomes
from app.leases.receipts import LeaseName
from app.store.ack import Ack
from app.store.beat import Beat, Beaten
from app.store.claim import Claim
from app.store.faults import RowFaultError
from app.store.line import Claimed
from app.store.nack import Nack
from app.store.pick import Filter
from app.store.queues import QueueGoneError
from app.store.release import Release
from app.store.settle import Settled

hot = hot_router("leases")
router = APIRouter(tags=["leases"])


class _HasReceipt(Protocol):
    @property
    def receipt(self) -> str: ...


ItemT = TypeVar("ItemT", bound=_HasReceipt)
RowT = TypeVar("RowT")
VerdictT = TypeVar("VerdictT")


@hot.post(
    "/queues/{queue}/leases", response_model=schemas.ClaimResponse, summary="Claim messages", responses=documented(404, 413, 415, 422, 503)
)
async def claim(queue: QueuePath, body: schemas.ClaimRequest, request: Request) -> Response:
    """Lease up to `max_messages` ready messages. With `wait`, the call is parked until there is work or the time is over.

    A draining worker is answered at once, with no new leases and `drain: true`.
    """
    came_at = time.monotonic()
    service = service_of(request)
    receipts, registry = service.receipts, service.store.registry
    present = unless_gone if body.wait else unless_gone_by_then
    claimed = await present(request, _claim(service, queue, body), service.store.give_back)
    if claimed is None:
        return Response(status_code=204)  # nobody is there to read it
    leases = [lease_view(lease, queue, receipts) for lease in claimed.leases]
    waited = max(0.0, claimed.tried_at - came_at)
    return json_response({"leases": leases, "waited": waited, "drain": claimed.drain or registry.is_draining(body.worker_id)})


@hot.post("/beat", response_model=schemas.BeatResponse, summary="Beat for leases", responses=documented(413, 415, 422, 503))
async def beat(body: schemas.BeatRequest, request: Request) -> Response:
    """Prove progress: each lease is extended if its interval has passed. A beat never shortens a lease, nor revives one that ran out."""
    service = service_of(request)
    registry = service.store.registry
    if body.worker_id is not None:
        registry.seen(body.worker_id)

    def row(lease: LeaseName, item: schemas.LeaseBeat) -> Beat:
        return Beat(lease.message_id, lease.generation, item.progress, item.detail)

    verdicts = await _for_each(service, body.leases, row, service.store.beat)
    results = [_beat_result(item.receipt, verdict) for item, verdict in zip(body.leases, verdicts, strict=True)]
    return json_response({"results": results, "drain": registry.is_draining(body.worker_id)})


@hot.post("/ack", response_model=schemas.AckResponse, summary="Ack leases", responses=documented(413, 415, 422, 503))
async def ack(body: schemas.AckRequest, request: Request) -> Response:
    """Complete messages, for good. A late ack is accepted as long as nobody else has leased the message since."""
    service = service_of(request)

    def row(lease: LeaseName, item: schemas.LeaseAck) -> Ack:
        return Ack(lease.message_id, lease.generation, item.output)

    verdicts = await _for_each(service, body.leases, row, service.store.ack)
    results = [
        {
            "receipt": item.receipt,
            "status": _word(verdict, outcomes.ACK),
            "late": isinstance(verdict, Settled) and verdict.fate == "acked_late",
        }
        for item, verdict in zip(body.leases, verdicts, strict=True)
    ]
    return json_response({"results": results})


@hot.post("/nack", response_model=schemas.NackResponse, summary="Nack leases", responses=documented(413, 415, 422, 503))
async def nack(body: schemas.NackRequest, request: Request) -> Response:
    """Report failed attempts: each message is delivered again, after `delay`, or given up at its last attempt."""
    service = service_of(request)

    def row(lease: LeaseName, item: schemas.LeaseNack) -> Nack:
        return Nack(lease.message_id, lease.generation, item.error, item.delay, item.retryable)

    verdicts = await _for_each(service, body.leases, row, service.store.nack)
    return _settled(body.leases, verdicts, outcomes.NACK)


@hot.post("/release", response_model=schemas.ReleaseResponse, summary="Release leases", responses=documented(413, 415, 422, 503))
async def release(body: schemas.ReleaseRequest, request: Request) -> Response:
    """Give messages back untouched: they are ready again at once, and it does not count as an attempt."""
    service = service_of(request)

    def row(lease: LeaseName, _item: schemas.LeaseRelease) -> Release:
        return Release(lease.message_id, lease.generation)

    verdicts = await _for_each(service, body.leases, row, service.store.release)
    return _settled(body.leases, verdicts, outcomes.RELEASE)


@router.get("/leases", response_model=schemas.ActiveLeaseList, summary="List active leases", responses=documented(404, 422, 503))
async def list_leases(
    request: Request,
    queue: Annotated[fields.QueueName | None, Query(description="Only leases on this queue's messages.", examples=["default"])] = None,
    worker_id: Annotated[fields.WorkerId | None, Query(description="Only leases that this worker holds.", examples=["worker-1"])] = None,
    overdue: Annotated[
        bool | None,
        Query(description="Only leases that have run out and wait to be reclaimed, or only those that have not.", examples=[True]),
    ] = None,
    cursor: MessageCursor = "",
    limit: PageLimit = 100,
) -> Response:
    """List active leases by message id: who holds what, since when, until when. Never a receipt.

    With `overdue=true`, the longest overdue come first, on one page.
    """
    service = service_of(request)
    reads = service.store.reads
    queue_id = (await service.queue_named(queue)).id if queue else None
    if overdue:
        if cursor:
            raise invalid_request([{"loc": ("query", "cursor"), "msg": "There is one page of overdue leases: leave it out."}])
        as_of, rows = await reads.overdue_leases(queue_id=queue_id, worker_id=worker_id, limit=limit)
    else:
        as_of, rows = await reads.leases(queue_id=queue_id, worker_id=worker_id, overdue=overdue, after=id_number(cursor), limit=limit + 1)
    return json_response(page([active_lease_view(row) for row in rows], limit, "message_id") | {"as_of": as_of})


def _filter(body: schemas.ClaimRequest) -> Filter:
    work_types = tuple(sorted(set(body.work_types))) if body.work_types else None
    return Filter(work_types, body.task_id)


async def _claim(service: Service, name: str, body: schemas.ClaimRequest) -> Claimed:
    """Claim from the queue of this name; if it is deleted meanwhile, from its successor.

    Raises:
        ProblemError: 404, there is none, or no more.

    """
    until = time.monotonic() + body.wait
    wanted = Claim(body.worker_id, body.max_messages, body.visibility_timeout, body.confirm_within, body.claim_id, _filter(body))
    queue = await service.queue_named(name)
    service.store.registry.seen(body.worker_id, body.host, body.version)
    while True:
        try:
            return await service.store.claim(queue, wanted, max(0.0, until - time.monotonic()))
        except QueueGoneError:
            queue = await service.queue_named(name, fresh=True)


async def _for_each(
    service: Service,
    items: Sequence[ItemT],
    row: Callable[[LeaseName, ItemT], RowT],
    verb: Callable[[Sequence[tuple[int, RowT]]], Awaitable[list[VerdictT | RowFaultError]]],
) -> list[VerdictT | RowFaultError | None]:
    """Carry out a verb on the leases that the receipts name, and return a verdict per item: None where a receipt names none."""
    leases = service.leases_named(item.receipt for item in items)
    rows = [(lease.shard, row(lease, item)) for lease, item in zip(leases, items, strict=True) if lease]
    verdicts = iter(await verb(rows) if rows else ())
    return [next(verdicts) if lease else None for lease in leases]


def _beat_result(receipt: str, verdict: Beaten | RowFaultError | None) -> dict[str, object]:
    if not isinstance(verdict, Beaten):
        verdict = Beaten("unknown" if verdict is None else "error")
    return {
        "receipt": receipt,
        "status": verdict.status,
        "expires_at": verdict.expires_at,
        "expires_in": verdict.expires_in,
        "next_beat_in": verdict.next_beat_in,
    }


def _settled(
    items: Sequence[_HasReceipt], verdicts: Sequence[Settled | RowFaultError | None], words: Mapping[outcomes.Fate, str]
) -> Response:
    results = [{"receipt": item.receipt, "status": _word(verdict, words)} for item, verdict in zip(items, verdicts, strict=True)]
    return json_response({"results": results})


def _word(verdict: Settled | RowFaultError | None, words: Mapping[outcomes.Fate, str]) -> str:
    match verdict:
        case Settled():
            return words[verdict.fate]
        case None:
            return "unknown"
        case _:
            return "error"
