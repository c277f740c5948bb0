"""Fixtures of what operators do to queues."""

from collections.abc import Iterator

import pytest
from harness.api import Api
from harness.operating import RARELY
from harness.postgres import Databases
from harness.server import Server


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
