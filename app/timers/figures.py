"""Keeps this replica's figures new."""

import asyncio
import time

import asyncpg
import structlog

from app.store.faults import UnavailableError
from app.store.figures import REST, SHORTEST_REFRESH_S, Figures

_SHORTEST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 300.0

log = structlog.get_logger(__name__)


async def run_figures(figures: Figures) -> None:
    """Look whenever the next count is due. One that fails has cost as much time as any other, and is tried again after as long a rest."""
    while True:
        began = time.monotonic()
        try:
            due_in = await figures.refresh()
            pause = min(SHORTEST_REFRESH_S, max(_SHORTEST_PAUSE_S, due_in))
        except (UnavailableError, asyncpg.PostgresError) as error:
            pause = min(_LONGEST_PAUSE_S, max(SHORTEST_REFRESH_S, REST * (time.monotonic() - began)))
            log.warning("figures not counted", reason=str(error) or type(error).__name__, again_in=pause)
        await asyncio.sleep(pause)
