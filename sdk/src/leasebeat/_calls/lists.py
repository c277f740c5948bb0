"""Calls that return one page of a list."""

from collections.abc import Callable
from typing import TypeVar

from leasebeat._call import Call
from leasebeat._wire import Page, build_page, without_none

T = TypeVar("T")


def list_call(
    path: str, kind: Callable[..., T], *, cursor: str | None = None, limit: int | None = None, **only: str | None
) -> Call[Page[T]]:
    """Read one page of what `path` lists, each entry as a `kind`. `only` are the filters that the list offers; None filters nothing."""
    query = without_none(**only, cursor=cursor, limit=None if limit is None else str(limit))
    return Call(method="GET", path=path, query=query, parse=lambda data, _: build_page(kind, data))
