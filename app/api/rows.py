"""From database rows to answers. JSON values stay the text that they are stored as."""

from typing import Any

import orjson

from app.leases.receipts import Receipts
from app.store.claim import GrantedLease
from app.store.database import Row


def raw(text: str | None) -> orjson.Fragment | None:
    return None if text is None else orjson.Fragment(text)


def message_view(row: Row) -> dict[str, Any]:
    """Shape a row as `schemas.Message`."""
    return _with_json(row, "body", "detail", "output") | {"id": str(row["id"]), "headers": _headers(row["headers"])}


def checkpoint_view(row: Row) -> dict[str, Any]:
    """Shape a row as `schemas.Checkpoint`."""
    return _with_json(row, "facts")


def active_lease_view(row: Row) -> dict[str, Any]:
    """Shape a row as `schemas.ActiveLease`."""
    return _with_json(row, "detail") | {"message_id": str(row["message_id"])}


def worker_view(row: Row, held_leases: int) -> dict[str, Any]:
    """Shape a row as `schemas.Worker`."""
    return dict(row.items()) | {"held_leases": held_leases}


def lease_view(lease: GrantedLease, queue: str, receipts: Receipts) -> dict[str, Any]:
    """Shape a lease as `schemas.Lease`."""
    return {
        "receipt": receipts.issue(lease.shard, lease.message_id, lease.generation),
        "generation": lease.generation,
        "attempt": lease.attempt,
        "expires_at": lease.expires_at,
        "expires_in": lease.expires_in,
        "deadline_in": lease.deadline_in,
        "beat_interval": lease.beat_interval,
        "extension": lease.extension,
        "message": {
            "id": str(lease.message_id),
            "queue": queue,
            "body": orjson.Fragment(lease.body),
            "headers": _headers(lease.headers),
            "priority": lease.priority,
            "fairness_key": lease.fairness_key,
            "work_type": lease.work_type,
            "task_id": lease.task_id,
            "created_at": lease.created_at,
            "attempt_count": lease.attempt_count,
            "max_attempts": lease.max_attempts,
            "source_queue": lease.source_queue,
            "progress": lease.progress,
            "detail": raw(lease.detail),
        },
    }


def page(items: list[dict[str, Any]], limit: int, cursor: str) -> dict[str, Any]:
    """Shape one page of a list, read with one item more than it shows: if that is there, there is a next page."""
    return {"items": items[:limit], "next_cursor": items[limit - 1][cursor] if len(items) > limit else None}


def _with_json(row: Row, *names: str) -> dict[str, Any]:
    return dict(row.items()) | {name: raw(row[name]) for name in names}


def _headers(text: str | None) -> orjson.Fragment | dict[str, str]:
    return orjson.Fragment(text) if text else {}
