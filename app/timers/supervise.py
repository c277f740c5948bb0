"""Keep a background task going: it cannot die silently (scar 27)."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

_RESTART_S = 1.0

log = structlog.get_logger(__name__)


async def supervise(name: str, run: Callable[[], Awaitable[None]]) -> None:
    """Run a task that never ends, and start it anew, a second later, should it end or fail all the same."""
    while True:
        try:
            await run()
            log.error("background task ended", task=name)
        except Exception:
            log.exception("background task failed", task=name)
        await asyncio.sleep(_RESTART_S)
