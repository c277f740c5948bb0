"""The remover: takes away what deleted queues have left behind."""

import asyncio

import structlog

from app.store.faults import UnavailableError
from app.store.store import Store

_INTERVAL_S = 5.0
_BREATH_S = 0.01

log = structlog.get_logger(__name__)


async def run_remover(store: Store) -> None:
    """Look for deleted queues every few seconds, and remove their messages batch by batch."""
    while True:
        try:
            while await store.remove():  # noqa: ASYNC110 - each turn does a part of the work
                await asyncio.sleep(_BREATH_S)
        except UnavailableError as error:
            log.warning("removal put off", reason=str(error))
        await asyncio.sleep(_INTERVAL_S)
