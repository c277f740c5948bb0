"""Figures for people, counted in the background and never in a request (scar 47)."""

import asyncio

import structlog

from app.store.faults import UnavailableError
from app.store.reads import Reads

_INTERVAL_S = 10.0

log = structlog.get_logger(__name__)


class Figures:
    """The number of active leases by queue, as of the last count."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads
        self.active_leases: dict[str, int] = {}

    async def run(self) -> None:
        while True:
            try:
                self.active_leases = await self._reads.lease_counts()
            except UnavailableError as error:
                log.warning("figures not counted", reason=str(error))
            await asyncio.sleep(_INTERVAL_S)
