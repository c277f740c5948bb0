"""The key to receipts: a replica that may not read it yet says so, and serves as soon as it may."""

from harness.postgres import execute
from harness.server import Server
from harness.wait import until


def test_a_key_that_postgres_refuses_is_asked_for_until_it_is_given(database_url: str) -> None:
    execute(database_url, "alter table secret rename column value to hidden")
    server = Server(database_url)
    try:
        until(lambda: "UndefinedColumnError" in server.log or 'column "value" does not exist' in server.log)
        assert not server.ready
        execute(database_url, "alter table secret rename column hidden to value")
        until(lambda: server.ready)
        assert server.api.send("default", 1)
        assert server.api.claim_one("default")
    finally:
        server.__exit__(None, None, None)
