"""Has claims look for what they have left behind, now and then."""

import asyncio
import time

from app.store.database import Pool
from app.store.parking import Parking
from app.store.rest import rest_after


async def run_floors(parking: Parking, pool: Pool) -> None:
    while True:
        began = time.monotonic()
        await parking.look_below(pool)
        await asyncio.sleep(rest_after(time.monotonic() - began))
