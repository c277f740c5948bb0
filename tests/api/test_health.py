"""Health: what the platform hears while Postgres is away, or not migrated."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path

import asyncpg
import httpx
import pytest
from harness.api import Api, Json
from harness.postgres import FAST, MIGRATIONS, Databases, execute, programs
from harness.problems import assert_problem
from harness.server import Server
from harness.wait import until

from app.embedded import EmbeddedPostgres
from app.store.migrations import migrate


@pytest.fixture
def own_postgres(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A migrated Postgres that the test may stop."""
    postgres = EmbeddedPostgres(tmp_path / "data", programs(), FAST)
    postgres.start()
    migrate(postgres.url, MIGRATIONS)
    yield postgres
    postgres.stop()


@pytest.fixture
def empty_database(postgres: Databases) -> Iterator[str]:
    """A database without a schema."""
    url = postgres.create_empty()
    yield url
    postgres.drop(url)


BREAK = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'leasebeat' and datname = current_database()"
CALLS: list[tuple[str, str, object]] = [
    ("PUT", "/queues/default", {}),
    ("GET", "/queues", None),
    ("GET", "/queues/default", None),
    ("DELETE", "/queues/other", None),
    ("POST", "/queues/default/messages", {"messages": [{"body": 1}]}),
    ("GET", "/queues/default/messages", None),
    ("GET", "/messages/1", None),
    ("GET", "/messages/1/checkpoints", None),
    ("POST", "/queues/default/leases", {"worker_id": "worker"}),
    ("GET", "/leases", None),
]


def call_each(server: Server) -> Iterator[httpx.Response]:
    """Make a call of every kind that needs the database."""
    for method, path, body in CALLS:
        yield server.api.client.request(method, path, json=body)


def readiness(api: Api) -> Json:
    """Return what a replica says of its database, once it has heard from it in time."""
    return until(lambda: (said := api.client.get("/readyz").json())["database"] != "unreachable" and said)


def test_a_served_database_is_ready(server: Server, api: Api) -> None:
    until(lambda: server.ready)
    body = readiness(api)
    assert body | {"status": "ready", "database": "ok", "version": version("leasebeat-server")} == body
    assert 0 <= body["timer_lag"] < 30
    assert api.call("GET", "/healthz") == {"status": "ok"}


@pytest.mark.rule(7, 8)
def test_it_is_unready_while_postgres_is_stopped_and_ready_again_by_itself(own_postgres: EmbeddedPostgres) -> None:
    with Server(own_postgres.url) as server:
        api = server.api
        api.send("default", "kept")
        receipt = api.claim_one("default")["receipt"]
        own_postgres.stop()
        answer = api.client.get("/readyz")
        assert (answer.status_code, answer.json()["status"], answer.json()["database"]) == (503, "not-ready", "unreachable")
        assert api.call("GET", "/healthz") == {"status": "ok"}
        for refused in call_each(server):
            assert_problem(refused, 503, "database-unavailable")
            assert refused.headers["retry-after"] == "1"
        for verb in ("beat", "ack", "nack", "release"):
            refused = api.client.post(f"/{verb}", json={"leases": [{"receipt": receipt}]})
            assert_problem(refused, 503, "database-unavailable")
        own_postgres.start()
        until(lambda: server.ready)
        assert [result["status"] for result in api.ack(receipt)] == ["acked"]


def test_connections_that_broke_while_idle_are_an_outage_at_most(start_server: Callable[..., Server], database_url: str) -> None:
    server = start_server()
    for answer in call_each(server):
        assert answer.status_code in (200, 201, 404, 503), answer.text
        execute(database_url, BREAK)
    until(lambda: server.ready)


def test_a_connection_that_breaks_under_a_statement_is_an_outage(start_server: Callable[..., Server], database_url: str) -> None:
    server = start_server()
    server.api.put_queue("other")
    with locked_tables(database_url), ThreadPoolExecutor(1) as pool:
        for method, path, body in CALLS:
            call = pool.submit(server.api.client.request, method, path, json=body)
            until(partial(broken_call, database_url, call))
            assert_problem(call.result(), 503, "database-unavailable")
    until(lambda: server.ready)


def test_a_database_without_a_schema_is_not_migrated_and_healthy_all_the_same(empty_database: str) -> None:
    server = Server(empty_database)
    try:
        until(lambda: is_healthy(server))
        assert not server.ready
        assert readiness(server.api)["database"] == "not-migrated"
        for refused in call_each(server):
            assert_problem(refused, 503, "database-unavailable")
        migrate(empty_database, MIGRATIONS)
        until(lambda: server.ready)
        assert server.api.send("default", 1)
    finally:
        server.__exit__(None, None, None)


def test_a_schema_of_a_later_version_is_served(start_server: Callable[..., Server], database_url: str) -> None:
    server = start_server()
    execute(database_url, "update alembic_version set version_num = 'later'")
    assert readiness(server.api)["database"] == "ok"
    until(lambda: server.ready)


def broken_call(url: str, call: Future[httpx.Response]) -> bool:
    execute(url, f"{BREAK} and wait_event_type = 'Lock'")
    return call.done()


def is_healthy(server: Server) -> bool:
    try:
        return bool(server.api.client.get("/healthz").json() == {"status": "ok"})
    except httpx.TransportError:
        return False


@contextmanager
def locked_tables(url: str) -> Iterator[None]:
    """Lock the tables that calls read and write against everybody."""
    with asyncio.Runner() as runner:
        connection = runner.run(asyncpg.connect(url))
        runner.run(connection.execute("begin; lock table queue, message, lease, checkpoint in access exclusive mode"))
        try:
            yield
        finally:
            runner.run(connection.close())
