"""How the JSON of an answer becomes a frozen dataclass, and how a request becomes JSON."""

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")

_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # as JSON writes it, and not a backslash that comes before "u0000"


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list.

    Attributes:
        items: The entries.
        next_cursor: Pass it as `cursor` for the next page. None on the last.
        as_of: When the entries were read or counted, for lists that say so.
    """

    items: tuple[T, ...]
    next_cursor: str | None = None
    as_of: datetime | None = None


def build(kind: Callable[..., T], data: Mapping[str, Any], **more: Any) -> T:
    """Make a result from an answer, each field as its type says. What a newer service adds is ignored."""
    known = {name: read(data[name]) for name, read in _readers(kind).items() if name in data}
    return kind(**{**known, **more})


def one_each(given: Iterable[object], answered: Iterable[T]) -> Iterator[T]:
    """Pass on what was answered for each item of a request.

    Raises:
        ValueError: If that is for more items, or fewer.
    """
    return (answer for _, answer in zip(given, answered, strict=True))


def build_page(kind: Callable[..., T], data: Mapping[str, Any]) -> Page[T]:
    """Make one page of results."""
    return build(Page, data, items=tuple(build(kind, item) for item in data["items"]))


def without_none(**fields: Any) -> dict[str, Any]:
    """Leave out what is None, so that the service's default applies."""
    return {name: value for name, value in fields.items() if value is not None}


def listed(texts: str | Iterable[str] | None) -> list[str] | None:
    """One text or several, as a list."""
    if texts is None:
        return None
    return [texts] if isinstance(texts, str) else list(texts)


def encode(body: object) -> bytes:
    """Write a request's JSON.

    Raises:
        TypeError: If a value has no JSON form.
        ValueError: If a number is not finite, or the value refers to itself.
    """
    return json.dumps(body, allow_nan=False, separators=(",", ":")).encode()


def storable_text(value: object, name: str) -> str:
    """Write as JSON, in ASCII, what the service can store. `name` is what an error calls it.

    Raises:
        TypeError: If a value has no JSON form.
        ValueError: If a number in it is not finite, or it has U+0000 or half of a surrogate pair in it.
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    if _NUL.search(text):
        raise ValueError(f"{name} has U+0000 in it, which the service cannot store")
    if "\\ud" in text:
        json.dumps(value, ensure_ascii=False).encode()  # refuses what is half of a pair
    return text


@cache
def _readers(kind: Any) -> dict[str, Callable[[Any], Any]]:
    hints = get_type_hints(kind)
    return {field.name: _reader(hints[field.name]) for field in dataclasses.fields(kind)}


def _reader(hint: Any) -> Callable[[Any], Any]:
    """What makes a field of this type from its JSON: results, tuples and moments are made, all else is as it came."""
    if get_origin(hint) is UnionType:
        (some,) = [_reader(member) for member in get_args(hint) if member is not NoneType]
        return lambda value: None if value is None else some(value)
    if get_origin(hint) is tuple:
        item = _reader(get_args(hint)[0])
        return lambda values: tuple(map(item, values))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return partial(build, hint)
    return datetime.fromisoformat if hint is datetime else _as_it_came


def _as_it_came(value: Any) -> Any:
    return value
