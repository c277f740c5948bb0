"""Fixtures of what operators do to queues, and of what Postgres may take the tables for."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest
from harness.api import Api
from harness.operating import RARELY
from harness.plans import Connection, empty_out
from harness.postgres import Databases
from harness.server import Server

from app.store.database import HOT_SESSION


@pytest.fixture
def dead_letters(api: Api, queue: str) -> Iterator[str]:
    """A dead-letter queue, named as that of the test's queue."""
    name = f"{queue}.dead"
    api.put_queue(name)
    api.put_queue(queue, dead_letter_queue=name)
    yield name
    api.client.delete(f"/queues/{name}", params={"force": True})


@pytest.fixture(scope="module")
def replicas(postgres: Databases) -> Iterator[tuple[Server, Server]]:
    """Two servers on one database, whose parked claims are served because they are woken, not because they poll."""
    url = postgres.create()
    with Server(url, sweep_interval=RARELY) as one, Server(url, sweep_interval=RARELY) as other:
        yield one, other


@pytest.fixture(scope="module", params=["new", "vacuumed", "emptied"])
def small_database(request: pytest.FixtureRequest, postgres: Databases) -> Iterator[str]:
    """Return a database whose tables Postgres takes to be small, and why it does."""
    url = postgres.create()
    asyncio.run(_make_small(url, request.param))
    yield url
    postgres.drop(url)


async def _make_small(url: str, state: str) -> None:
    sql = await asyncpg.connect(url)
    if state == "vacuumed":
        await sql.execute("vacuum (analyze)")
    elif state == "emptied":
        await empty_out(sql)
    await sql.close()


@pytest.fixture
async def planning(small_database: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(small_database, server_settings=HOT_SESSION)
    yield connection
    await connection.close()
