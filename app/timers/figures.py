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
                counted = await self._reads.lease_counts()
                # A queue that had leases and has none now goes on as 0, so that its line in a chart does not just end.
                self.active_leases = dict.fromkeys(self.active_leases, 0) | counted
            except UnavailableError as error:
                log.warning("figures not counted", reason=str(error))
            await asyncio.sleep(_INTERVAL_S)
