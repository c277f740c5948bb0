"""Looks for messages that claims have left behind, now and then, and never for more than a fiftieth of one connection's time."""

import asyncio
import time

import asyncpg
import structlog

from app.store.database import Pool
from app.store.faults import UnavailableError
from app.store.parking import Parking

_SHORTEST_REST_S = 1.0
_REST = 50
"""How many times longer than a look the time from one to the next is."""

log = structlog.get_logger(__name__)


async def run_floors(parking: Parking, pool: Pool) -> None:
    while True:
        began = time.monotonic()
        try:
            await parking.look_below(pool)
        except (UnavailableError, asyncpg.PostgresError) as error:
            log.warning("floors not looked below", reason=str(error) or type(error).__name__)
        await asyncio.sleep(max(_SHORTEST_REST_S, _REST * (time.monotonic() - began)))
