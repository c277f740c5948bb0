"""Fixtures: a Postgres for the run, databases, a shared server, and queues of one's own on it."""

import os
import signal
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from pathlib import Path

import asyncpg
import pytest
from harness.api import Api
from harness.postgres import Databases, RunOut, databases, execute
from harness.postgres_of_own import OwnPostgres, own_postgres
from harness.server import Server
from hypothesis import HealthCheck, settings

LONGEST = (
    "tests/sdk/wink/",
    "tests/sdk/cli/test_work.py",
    "tests/rules/test_faults.py",
    "tests/api/test_bad_input.py",
    "tests/docs/test_demo.py",
    "tests/rules/test_registry.py",
    "tests/rules/test_durability.py",
    "tests/sdk/bridges/test_examples.py",
    "tests/rules/test_fairness.py",
    "tests/rules/test_reclaim.py",
    "tests/api/test_traces.py",
    "tests/docs/test_readme.py",
    "tests/sdk/test_worker_processes.py",
    "tests/api/test_random_bodies.py",
    "tests/embedded/",
)
"""The tests that take longest."""


def pytest_configure() -> None:
    """Let what tests start hear the signals that a run in the background ignores: what is handled here is not ignored there.

    And let it keep what it compiles: there are hundreds of processes, which would each compile all sources anew. How long an example
    takes says more of the machine than of what is tested.
    """
    settings.register_profile("any pace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any pace")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for number in (signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest: where several run at once, none of these is to be left when all others are done."""
    places = {item: next((place for place, name in enumerate(LONGEST) if item.nodeid.startswith(name)), len(LONGEST)) for item in items}
    items.sort(key=places.__getitem__)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Write half of a surrogate pair, which tests have logged, as an escape: reports go from process to process as UTF-8."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Databases]:
    """One Postgres for the whole run. It is fast, not crash-safe."""
    # Not among pytest's own folders, of which other runs remove those that are not the newest.
    with tempfile.TemporaryDirectory(prefix="leasebeat-tests-") as folder, databases(Path(folder) / "data") as made:
        yield made


@pytest.fixture(scope="session")
def shared_database(postgres: Databases) -> str:
    """The database of the shared server."""
    return postgres.create()


@pytest.fixture(scope="session")
def server(shared_database: str) -> Iterator[Server]:
    """One server process for all tests that leave it as it was."""
    with Server(shared_database) as running:
        yield running


@pytest.fixture
def database_url(postgres: Databases) -> Iterator[str]:
    """A database of the test's own."""
    url = postgres.create()
    yield url
    postgres.drop(url)


@pytest.fixture
def postgres_of_own(tmp_path: Path) -> Iterator[OwnPostgres]:
    """A Postgres that the test may crash."""
    with own_postgres(tmp_path / "data") as postgres:
        yield postgres


@pytest.fixture
def start_server(database_url: str) -> Iterator[Callable[..., Server]]:
    """Start server processes on the test's own database; they end with the test."""
    started: list[Server] = []

    def start(*, wrong_clock_s: float = 0, environment: Mapping[str, str] | None = None, **settings: object) -> Server:
        started.append(Server(database_url, wrong_clock_s=wrong_clock_s, environment=environment, **settings))
        return started[-1].wait_until_ready()

    yield start
    for each in started:
        each.__exit__(None, None, None)


@pytest.fixture
def api(server: Server) -> Api:
    """The shared server's interface."""
    return server.api


@pytest.fixture
def queue(api: Api) -> Iterator[str]:
    """A queue of the test's own, with the default configuration."""
    name = f"queue-{uuid.uuid4().hex[:12]}"
    api.put_queue(name)
    yield name
    api.client.delete(f"/queues/{name}", params={"force": True})


@pytest.fixture
def run_out(shared_database: str) -> RunOut:
    """Make a lease on the shared server run out without its timer noticing."""

    def run_out(message_id: str) -> None:
        execute(shared_database, "update lease set expires_at = now(), check_at = 'infinity' where message_id = $1", int(message_id))

    return run_out


@pytest.fixture
def expire(shared_database: str) -> RunOut:
    """Make a lease on the shared server run out, and be reclaimed at the timer's next look: when the test says so, not when time does."""

    def expire(message_id: str) -> None:
        execute(shared_database, "update lease set expires_at = now(), check_at = now() where message_id = $1", int(message_id))

    return expire


@pytest.fixture
async def sql(shared_database: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """A connection to the shared server's database."""
    connection = await asyncpg.connect(shared_database)
    yield connection
    await connection.close()
