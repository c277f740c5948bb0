"""Brings this replica's sweeps into the totals of all replicas: at once those that found something, others every few seconds."""

import asyncio

import structlog

from app.store.faults import UnavailableError
from app.store.recovery import Recovery

_INTERVAL_S = 5.0
_BREATH_S = 0.2

log = structlog.get_logger(__name__)


async def run_recovery(recovery: Recovery) -> None:
    while True:
        await recovery.found_something(_INTERVAL_S)
        try:
            await recovery.save()
        except UnavailableError as error:
            log.warning("sweeps not counted yet", reason=str(error))
        await asyncio.sleep(_BREATH_S)
