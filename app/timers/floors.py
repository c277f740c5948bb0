"""Has claims look for what they have left behind, now and then."""

import asyncio

from app.store.database import Pool
from app.store.parking import Parking

_INTERVAL_S = 0.5


async def run_floors(parking: Parking, pool: Pool) -> None:
    while True:
        await asyncio.sleep(_INTERVAL_S)
        await parking.look_below(pool)
