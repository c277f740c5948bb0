"""Calls about leases.

Calls for one lease raise if it is over. Their forms for many return a verdict per lease, in order, and raise for none. Given a `Lease`
that still lasts, and not only its receipt, no attempt takes longer than is useful for it (`time_to_answer`).
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from leasebeat._call import Call, Reply
from leasebeat._calls.lists import list_call
from leasebeat._calls.paths import queue_path
from leasebeat._leases import (
    Ack,
    AckResult,
    ActiveLease,
    Beat,
    BeatResult,
    BeatResults,
    Lease,
    LeaseRef,
    Leases,
    Nack,
    NackResult,
    ReleaseResult,
    Verdict,
    message_id_of,
    receipt_of,
)
from leasebeat._wire import Page, build, encode, listed, one_each, without_none

V = TypeVar("V", bound=Verdict)


def claim(
    queue: str,
    *,
    worker_id: str,
    max_messages: int = 1,
    visibility_timeout: float | None = None,
    wait: float = 0.0,
    claim_id: str | None = None,
    confirm_within: float | None = None,
    work_types: str | Iterable[str] | None = None,
    task_id: str | None = None,
    host: str | None = None,
    version: str | None = None,
    timeout: float | None = None,
) -> Call[Leases]:
    """Lease up to `max_messages` messages. Empty if there is no work, or if the worker is to `drain`.

    Args:
        queue: The queue to take from.
        worker_id: Who asks. For people and figures.
        max_messages: The most leases to grant, 1 to 1000.
        visibility_timeout: Length of the leases in seconds. None takes the queue's.
        wait: Seconds to wait for work if there is none, at most 50.
        claim_id: A name for this claim: repeating it returns the same leases while they live. Made up if left out.
        confirm_within: The leases run out after this many seconds unless a first beat confirms them.
        work_types: Only messages of this work type, or of one of these up to 20. None: any, or none.
        task_id: Only messages of this task. None: any, or none.
        host: Where the worker runs, for the registry.
        version: The worker's version, for the registry.
        timeout: Seconds to wait for the answer beyond `wait`. None takes the client's.

    Raises:
        NotFoundError: If there is no such queue.
        InvalidRequestError: If an argument is out of range.
    """
    request = without_none(
        worker_id=worker_id,
        max_messages=max_messages,
        visibility_timeout=visibility_timeout,
        wait=wait,
        claim_id=claim_id or uuid.uuid4().hex,
        confirm_within=confirm_within,
        work_types=listed(work_types),
        task_id=task_id,
        host=host,
        version=version,
    )
    return Call(
        method="POST",
        path=queue_path(queue, "leases"),
        content=encode(request),
        wait=wait,
        timeout=timeout,
        parse=_claimed,
    )


def beat(lease: LeaseRef, *, progress: int | None = None, detail: Any = None, worker_id: str | None = None) -> Call[BeatResult]:
    """Prove progress for one lease, which extends it when its interval has passed.

    Args:
        lease: The lease or its receipt.
        progress: How much real work is done: any number that grows with it.
        detail: Where the work stands, for whoever resumes it: any JSON value of at most 8 KiB.
        worker_id: Who beats.

    Raises:
        LeaseLostError: The subclass that says why the lease is over.
        ServerError: If the service could not beat for it.
    """
    return _single(beat_many([Beat(lease, progress, detail)], worker_id=worker_id), lease)


def beat_many(beats: Iterable[Beat], *, worker_id: str | None = None, timeout: float | None = None) -> Call[BeatResults]:
    """Prove progress for 1 to 1000 leases. `drain` beside the results tells the worker to stop taking work.

    Args:
        beats: The leases, with what they report.
        worker_id: Who beats.
        timeout: Seconds to wait for the answer. None takes the client's.
    """
    given = list(beats)
    items = [without_none(receipt=receipt_of(item.lease), progress=item.progress, detail=item.detail) for item in given]
    return Call(
        method="POST",
        path="/beat",
        content=encode(without_none(worker_id=worker_id, leases=items)),
        timeout=timeout,
        lease_until=_first_end(item.lease for item in given),
        parse=partial(_beaten, items),
    )


def ack(lease: LeaseRef, output: Any = None) -> Call[AckResult]:
    """Complete a message, for good. A late ack is accepted if nobody has leased the message since.

    Args:
        lease: The lease or its receipt.
        output: The result: any JSON value of at most 256 KiB.

    Raises:
        LeaseLostError: The subclass that says why the ack was refused.
        ServerError: If the service could not complete it.
    """
    return _single(ack_many([Ack(lease, output)]), lease)


def ack_many(acks: Iterable[Ack]) -> Call[tuple[AckResult, ...]]:
    """Complete 1 to 1000 messages, for good."""
    given = list(acks)
    items = [without_none(receipt=receipt_of(item.lease), output=item.output) for item in given]
    return _settle("/ack", AckResult, items, _first_end(item.lease for item in given))


def nack(lease: LeaseRef, error: str | None = None, *, delay: float | None = None, retryable: bool = True) -> Call[NackResult]:
    """End a failed attempt. The message is delivered again unless it has used up its attempts.

    Args:
        lease: The lease or its receipt.
        error: What went wrong, at most 8192 characters.
        delay: Seconds before the message becomes ready again. None takes the queue's backoff.
        retryable: False gives the message up at once.

    Raises:
        LeaseLostError: The subclass that says why the nack was refused.
        ServerError: If the service could not end it.
    """
    return _single(nack_many([Nack(lease, error, delay, retryable)]), lease)


def nack_many(nacks: Iterable[Nack]) -> Call[tuple[NackResult, ...]]:
    """End 1 to 1000 failed attempts."""
    given = list(nacks)
    items = [without_none(receipt=receipt_of(item.lease), error=item.error, delay=item.delay, retryable=item.retryable) for item in given]
    return _settle("/nack", NackResult, items, _first_end(item.lease for item in given))


def release(lease: LeaseRef) -> Call[ReleaseResult]:
    """Give a message back untouched, at once. It does not count as an attempt.

    Args:
        lease: The lease or its receipt.

    Raises:
        LeaseLostError: The subclass that says why the release was refused.
        ServerError: If the service could not give it back.
    """
    return _single(release_many([lease]), lease)


def release_many(leases: Iterable[LeaseRef]) -> Call[tuple[ReleaseResult, ...]]:
    """Give 1 to 1000 messages back untouched, at once."""
    given = list(leases)
    items = [{"receipt": receipt_of(lease)} for lease in given]
    return _settle("/release", ReleaseResult, items, max(_ends(given), default=None))  # one that runs out meanwhile is as good as released


def list_leases(
    *,
    queue: str | None = None,
    worker_id: str | None = None,
    overdue: bool | None = None,
    cursor: str | None = None,
    limit: int | None = None,
) -> Call[Page[ActiveLease]]:
    """List active leases, by message id; with `overdue=True`, the longest overdue first. The page says `as_of` when.

    Args:
        queue: Only leases of this queue.
        worker_id: Only leases of this worker.
        overdue: True for only those that have run out, False for only those that have not.
        cursor: `next_cursor` of the page before.
        limit: The most entries to return.
    """
    only_overdue = None if overdue is None else str(overdue).lower()
    return list_call("/leases", ActiveLease, cursor=cursor, limit=limit, queue=queue, worker_id=worker_id, overdue=only_overdue)


def _claimed(data: Mapping[str, Any], reply: Reply) -> Leases:
    """The leases, each valid from a moment that surely was before its grant: a parked call was sent long before that."""
    granted_at = min(reply.sent_at + float(data.get("waited", 0.0)), reply.answered_at)
    leases = (build(Lease, lease, valid_until=granted_at + float(lease["expires_in"])) for lease in data["leases"])
    return Leases(leases, drain=data.get("drain", False))


def _beaten(items: Sequence[object], data: Mapping[str, Any], reply: Reply) -> BeatResults:
    answered = one_each(items, data["results"])
    results = (build(BeatResult, result, valid_until=_valid_until(result, reply)) for result in answered)
    return BeatResults(results, drain=data.get("drain", False))


def _valid_until(result: Mapping[str, Any], reply: Reply) -> float | None:
    expires_in = result.get("expires_in")
    return None if expires_in is None else reply.sent_at + float(expires_in)


def _ends(leases: Iterable[LeaseRef]) -> list[float]:
    """When those of the leases end that still last, as far as is known."""
    return [lease.valid_until for lease in leases if isinstance(lease, Lease) and lease.remaining() > 0]


def _first_end(leases: Iterable[LeaseRef]) -> float | None:
    return min(_ends(leases), default=None)


def _settle(path: str, kind: type[V], items: Sequence[Mapping[str, Any]], lease_until: float | None) -> Call[tuple[V, ...]]:
    return Call(
        method="POST",
        path=path,
        content=encode({"leases": items}),
        lease_until=lease_until,
        parse=lambda data, _: tuple(build(kind, result) for result in one_each(items, data["results"])),
    )


def _single(many: Call[tuple[V, ...]], lease: LeaseRef) -> Call[V]:
    """The call for one lease, which raises where the one for many returns another verdict than success."""

    def parse(data: Any, reply: Reply) -> V:
        (verdict,) = many.parse(data, reply)
        verdict.raise_if_refused(message_id_of(lease))
        return verdict

    return Call(method=many.method, path=many.path, content=many.content, lease_until=many.lease_until, parse=parse)
