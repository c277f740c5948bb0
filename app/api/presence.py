"""Whether the client is still there (design rule 14, scar 21)."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request

T = TypeVar("T")


async def unless_gone(request: Request, work: Coroutine[Any, Any, T], undo: Callable[[T], Awaitable[None]] | None = None) -> T | None:
    """Return what `work` returns; if the client goes away first, cancel it, and undo what it did all the same.

    The request's body must have been read: what comes after it can only be the disconnect.
    """
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_disconnect(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0)  # a disconnect that came together with the result is heard in this turn of the loop
        if not leaving.done():
            return working.result()
        if working.done() and undo is not None:
            await undo(working.result())
        return None
    finally:
        leaving.cancel()
        working.cancel()


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
