import uuid
from collections.abc import Iterator

import pytest
from harness.server import Server
from sdk.cli.command import Command

from leasebeat import Client


@pytest.fixture
def command(server: Server) -> Command:
    return Command(server.url)


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture
def queue(client: Client) -> Iterator[str]:
    """A queue of its own, whose leases last until they are settled, and whose beats all reach the service."""
    name = f"cli-{uuid.uuid4().hex[:8]}"
    client.put_queue(name, visibility_timeout=300, beat_interval=0)
    yield name
    client.delete_queue(name, force=True)


@pytest.fixture
def short_queue(client: Client, queue: str) -> str:
    """The same with leases that run out in the test."""
    client.put_queue(queue, visibility_timeout=6, extension=6, beat_interval=0, max_attempts=100)
    return queue
