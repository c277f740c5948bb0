"""Who is compared: Leasebeat, the queues that live in Postgres, and others shown beside them."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from harness.postgres import execute

from bench.peers import install, servers
from bench.peers.turn import Mode, Running, client
from bench.world import World, serving

Run = Callable[[World], AbstractContextManager[Running]]

SINGLES = Mode("single calls", 32, 1)


@dataclass(frozen=True)
class Contender:
    name: str
    run: Run
    modes: tuple[Mode, ...]
    beside: bool = False
    note: str = ""


def _batches(callers: int) -> Mode:
    """Return batches of 100, from as many callers as serve the contender best: `python -m bench.peers.callers` shows it."""
    return Mode("batches of 100", callers, 100)


def _leasebeat(processes: int) -> Run:
    """Return how to run that many servers over one database. Who drives them is not counted."""

    @contextlib.contextmanager
    def run(here: World) -> Iterator[Running]:
        with contextlib.ExitStack() as stack:
            url = stack.enter_context(_database(here, here.database))
            running = [stack.enter_context(serving(url)) for _ in range(processes)]
            running[0].api.put_queue("bench")
            worker = stack.enter_context(client("leasebeat", [*install.python("leasebeat"), *(server.url for server in running)]))
            yield Running(worker, [server.process.pid for server in running], [here.postgres.pid], [worker.process.pid])

    return run


def _library(name: str, command: Callable[[str], list[str]]) -> Run:
    """Return how to run a library: the process that calls it is its service."""

    @contextlib.contextmanager
    def run(here: World) -> Iterator[Running]:
        with _database(here, here.databases.create_empty) as url, client(name, [*command(name), url]) as worker:
            yield Running(worker, [worker.process.pid], [here.postgres.pid], [])

    return run


def _server(name: str, start: servers.Start) -> Run:
    """Return how to run a server that needs no Postgres. Who drives it is not counted."""

    @contextlib.contextmanager
    def run(_: World) -> Iterator[Running]:
        with start() as (pid, address), client(name, [*install.python(name), address]) as worker:
            yield Running(worker, [pid], [], [worker.process.pid])

    return run


@contextlib.contextmanager
def _database(here: World, make: Callable[[], str]) -> Iterator[str]:
    """Make a new database, with nothing left to write back of what others have done, and drop it in the end."""
    url = make()
    execute(here.postgres.url, "checkpoint")
    try:
        yield url
    finally:
        here.databases.drop(url)


LEASEBEAT = Contender("Leasebeat", _leasebeat(1), (SINGLES, _batches(32)))

OTHERS = (
    Contender("Leasebeat of two processes", _leasebeat(2), (SINGLES, _batches(32)), beside=True),
    Contender("pgmq", _library("pgmq", install.python), (SINGLES, _batches(4))),
    Contender("pgqueuer", _library("pgqueuer", install.python), (SINGLES, _batches(4))),
    Contender("pg-boss", _library("pgboss", install.node), (SINGLES, _batches(2))),
    Contender("graphile-worker", _library("graphile", install.node), (SINGLES, _batches(8)), note="no lease to keep alive"),
    Contender("procrastinate", _library("procrastinate", install.python), (SINGLES, _batches(8)), note="one heartbeat for all jobs"),
    Contender("awa", _library("awa", install.python), (SINGLES, _batches(2)), note="one heartbeat for all jobs"),
    Contender("moto SQS", _server("moto", servers.moto), (SINGLES, _batches(1)), beside=True, note="in memory"),
    Contender("NATS JetStream", _server("nats", servers.nats), (SINGLES, _batches(8)), beside=True, note="synced"),
    Contender("beanstalkd", _server("beanstalkd", servers.beanstalkd), (SINGLES,), beside=True, note="synced"),
)
