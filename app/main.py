"""The composition root: builds the service from its settings."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Any

from fastapi import Depends, FastAPI

from app import errors
from app.api import docs, health, leases, messages, queues, recovery, stats, workers
from app.api.hot import operation_id
from app.api.params import refuse_unknown
from app.api.service import Service
from app.front import Front
from app.middleware import RequestIds
from app.settings import Settings
from app.store.database import open_database
from app.store.recovery import RecoveryStats
from app.store.store import Store
from app.telemetry import Observed, Telemetry
from app.timers.figures import run_figures
from app.timers.floors import run_floors
from app.timers.housekeeper import Housekeeper
from app.timers.recovery import run_recovery
from app.timers.supervise import supervise
from app.timers.timer import Timer

_DESCRIPTION = """
Leases for long jobs. A worker **claims** a message, **beats** while it makes progress, and **settles** it: ack, nack or release. While
it beats, its lease is extended; when it stops, the lease runs out by itself and another worker gets the message.

Delivery is at least once, completion at most once. What drives a client is a duration in seconds (`expires_in`, `next_beat_in`);
moments are for people. Errors are RFC 9457 problems with a stable `code`.
"""

_GC_THRESHOLDS = (10_000, 10, 10)

_TAGS = [
    {"name": "queues", "description": "Named streams of messages, each with its own configuration."},
    {"name": "messages", "description": "Units of work: send them, read their state and history."},
    {"name": "leases", "description": "What workers do: claim, beat, ack, nack, release."},
    {"name": "workers", "description": "Who takes messages: the registry of those that claim or beat."},
    {"name": "recovery", "description": "What becomes of leases that run out, and figures on everything."},
    {"name": "platform", "description": "Health and metrics."},
]


def create_app(settings: Settings, database_url: str) -> Front:
    """Build the service. Nothing connects before the application starts."""
    telemetry = Telemetry()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        database = await open_database(database_url)
        store = Store(database, shards=settings.shards, poll=settings.sweep_interval, queue_limit=settings.queue_limit)
        timer = Timer(store, database.timer, longest_sleep=settings.sweep_interval)
        housekeeper = Housekeeper(database.work, store.shards)

        async def sweep() -> RecoveryStats:
            done = await timer.sweep()
            await housekeeper.trim()
            return done

        service = app.state.service = Service(
            database, store, settings.migrations, lambda: timer.lag, sweep, telemetry.registry, settings.queue_bytes
        )
        telemetry.observe(Observed(store.tally, store.figures, lambda: store.parking.parked, lambda: timer.lag))
        async with _background(
            {
                "timer": timer.run,
                "notifier": store.wakeups.notify,
                "listener": store.wakeups.listen,
                "registry": store.registry.run,
                "figures": partial(run_figures, store.figures),
                "floors": partial(run_floors, store.parking, database.work),
                "recovery": partial(run_recovery, store.recovery),
                "housekeeper": housekeeper.run,
            },
            service.load_key,
        ):
            _spare_what_stays()
            yield
        await store.recovery.save_at_the_end()
        await database.close()
        telemetry.shutdown()

    app = FastAPI(
        title="Leasebeat",
        version=version("leasebeat-server"),
        description=_DESCRIPTION,
        openapi_tags=_TAGS,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry=telemetry.for_fastapi(),
        generate_unique_id_function=operation_id,
    )
    app.add_middleware(RequestIds)
    app.include_router(health.router)  # first: platforms ask all the time, and routes are tried in their order
    # These stand by themselves, as they are: the front looks here for those that are hot.
    for direct in (leases.hot, messages.hot, messages.bodies, queues.bodies, workers.bodies, recovery.bodies):
        app.router.routes.extend(direct.routes)
    for router in (queues.router, messages.router, leases.router, workers.router, recovery.router, stats.router):
        app.include_router(router, dependencies=[Depends(refuse_unknown)])
    docs.install(app)
    errors.install(app)
    _describe_problems(app)
    return Front(app, telemetry)


def _spare_what_stays() -> None:
    """Keep the garbage collector from what lasts as long as the process: to walk the modules took 100 ms, about once a second."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


@asynccontextmanager
async def _background(forever: dict[str, Callable[[], Awaitable[None]]], once: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run tasks beside the service, and end them with it."""
    tasks = [asyncio.create_task(supervise(name, run), name=name) for name, run in forever.items()]
    tasks.append(asyncio.ensure_future(once()))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _describe_problems(app: FastAPI) -> None:
    """Add the problem to OpenAPI's components: every route refers to it, under a media type that FastAPI would not give it."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        schema = generate()
        problem = errors.Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schema["components"]["schemas"] |= problem.pop("$defs") | {"Problem": problem}
        return schema

    app.openapi = openapi  # type: ignore[method-assign]  # the documented way to extend it
