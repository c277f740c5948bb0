"""Whether the client is still there (design rule 14, scar 21)."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.types import Message

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


async def unless_gone_by_then(request: Request, work: Awaitable[T], undo: Callable[[T], Awaitable[None]]) -> T | None:
    """Return what `work` returns, which is soon done, at a fraction of the cost; if the client has gone by then, undo it.

    The request's body must have been read.
    """
    done = await work
    await asyncio.sleep(0)  # a disconnect that came together with the result is heard in this turn of the loop
    if not _is_gone(request):
        return done
    await undo(done)
    return None


def _is_gone(request: Request) -> bool:
    """Tell whether the event loop has heard that the client is gone, by one step of a wait for it.

    That step must get as far as the server's own `receive`: no middleware may wait for anything before it.
    """
    waiting = request.receive().__await__()
    try:
        next(waiting)
    except StopIteration as heard:
        message: Message = heard.value
        return bool(message["type"] == "http.disconnect")
    finally:
        waiting.close()
    return False


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
