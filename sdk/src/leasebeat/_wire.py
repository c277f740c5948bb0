"""How the JSON of an answer becomes a frozen dataclass, and how a request becomes JSON."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list.

    Attributes:
        items: The entries.
        next_cursor: Pass it as `cursor` for the next page. None on the last.
    """

    items: tuple[T, ...]
    next_cursor: str | None = None


def build(kind: Callable[..., T], data: Mapping[str, Any], **more: Any) -> T:
    """Make a result from an answer. What a newer service adds is ignored; what ends in `_at` is a moment."""
    known = {name: _value(name, data[name]) for name in _field_names(kind) if name in data}
    return kind(**{**known, **more})


def build_page(make: Callable[[Mapping[str, Any]], T], data: Mapping[str, Any]) -> Page[T]:
    """Make one page of results."""
    return Page(tuple(map(make, data["items"])), data.get("next_cursor"))


def without_none(**fields: Any) -> dict[str, Any]:
    """Leave out what is None, so that the service's default applies."""
    return {name: value for name, value in fields.items() if value is not None}


def encode(body: object) -> bytes:
    """Write a request's JSON.

    Raises:
        TypeError: If a value has no JSON form.
        ValueError: If a number is not finite, or the value refers to itself.
    """
    return json.dumps(body, allow_nan=False, separators=(",", ":")).encode()


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def _value(name: str, value: Any) -> Any:
    is_moment = name.endswith("_at") and value is not None
    return datetime.fromisoformat(value) if is_moment else value
