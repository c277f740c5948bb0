"""What replicas tell each other: what they need to know, over connections that may fall silent, in texts that not all may read."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Self
from urllib.parse import urlsplit

import asyncpg
import pytest
from harness.operating import RARELY, parked_on
from harness.postgres import execute
from harness.server import Server
from harness.wait import until

from app.store.claim import Claim, GrantedLease
from app.store.database import Database, open_database
from app.store.queues import QueueRef
from app.store.sending import NewMessage, Sent
from app.store.store import Store
from app.store.wakeups import Wakeups, read_payload

FOREIGN = ("", "news", "7", "[]", '{"version": 2}', '["replica", 5]', '["replica", [1, [2]]]')


class Cable:
    """A way to Postgres that can be cut as a network is: what is connected stays so at both ends, and hears nothing any more."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._server: asyncio.Server | None = None
        self._cut = asyncio.Event()
        self._ends: list[asyncio.StreamWriter] = []
        self._passing: set[asyncio.Task[None]] = set()
        self.url = ""

    def cut(self) -> None:
        """Let nothing more through on the connections there are. New ones are not affected."""
        self._cut.set()
        self._cut = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = self._target._replace(netloc=self._target.netloc.replace(f":{self._target.port}", f":{port}")).geturl()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server
        self._server.close()
        for end in self._ends:
            end.close()
        await asyncio.gather(*self._passing, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward_reader, onward_writer = await asyncio.open_connection(self._target.hostname, self._target.port)
        self._ends += (writer, onward_writer)
        for source, drain in ((reader, onward_writer), (onward_reader, writer)):
            passing = asyncio.create_task(_pass_on(source, drain, self._cut))
            self._passing.add(passing)
            passing.add_done_callback(self._passing.discard)


async def _pass_on(source: asyncio.StreamReader, drain: asyncio.StreamWriter, cut: asyncio.Event) -> None:
    """Copy until one side ends, then end the other."""
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            if not cut.is_set():
                drain.write(data)
    if not cut.is_set():
        drain.close()


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await open_database(database_url)
    yield opened
    await opened.close()


@contextlib.asynccontextmanager
async def background(*tasks: "asyncio.Task[None]") -> AsyncIterator[None]:
    """End tasks with the block."""
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def replica(database: Database) -> Store:
    """A store without the background tasks of a replica, whose parked claims are served because they are woken."""
    return Store(database, shards=1, poll=RARELY, queue_limit=1000)


async def default_queue(store: Store) -> QueueRef:
    found = await store.queues.find("default")
    assert found
    return found


async def send(store: Store, queue: QueueRef, *delays: float) -> list[int]:
    sent = await store.send(queue, [NewMessage("1", None, 0, delay, "", None, None, None, None) for delay in delays])
    assert isinstance(sent, Sent)
    return [message.id for message in sent.messages]


def test_a_notification_that_cannot_be_read_is_passed_over(start_server: Callable[..., Server], database_url: str) -> None:
    here, there = (start_server(sweep_interval=RARELY) for _ in range(2))
    with ThreadPoolExecutor(1) as pool:
        parked = pool.submit(here.api.claim_one, "default", wait=40)
        until(lambda: parked_on(here) == 1)
        for payload in FOREIGN:
            execute(database_url, "select pg_notify('leasebeat_ready', $1)", payload)
        there.api.send("default", 1)
        assert parked.result()["message"]["body"] == 1
    assert "Traceback" not in here.log


async def test_only_messages_that_are_ready_are_told_of(database: Database) -> None:
    """Else each replica would look in vain for what has to wait."""
    store = replica(database)
    queue = await default_queue(store)
    told: asyncio.Queue[str] = asyncio.Queue()
    connection = await asyncpg.connect(database.url)
    await connection.add_listener("leasebeat_ready", lambda _connection, _pid, _channel, payload: told.put_nowait(str(payload)))
    async with background(asyncio.create_task(store.wakeups.notify())):
        await send(store, queue, 500, 600)
        _, ready, _ = await send(store, queue, 500, 0, 0)
        _, first = read_payload(await asyncio.wait_for(told.get(), 60))
    await connection.close()
    assert first == {queue.id: {None: ready}}


@pytest.mark.scar(44)
async def test_a_listener_whose_connection_has_fallen_silent_makes_another(database: Database) -> None:
    """After a failover or a cut of the network the other end may never say that it has gone, and who only listens never asks."""
    here, there = replica(database), replica(database)
    queue = await default_queue(here)

    async def wakes() -> list[GrantedLease]:
        """Park a claim here, send through the other replica, and return what the claim gets before it polls."""
        parked = asyncio.create_task(here.claim(queue, Claim("worker", 1), 30))
        assert (await here.claim(queue, Claim("other", 1), 0)).leases == [], "the parked one has looked in vain, too"
        await send(there, queue, 0)
        return (await parked).leases

    async with Cable(database.url) as cable:
        listener = Wakeups(replace(database, url=cable.url), here.parking, here.registry, patience=0.5)
        async with background(asyncio.create_task(listener.listen()), asyncio.create_task(there.wakeups.notify())):
            assert len(await wakes()) == 1
            cable.cut()
            assert len(await wakes()) == 1
