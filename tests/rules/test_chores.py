"""What runs in the background: by one replica at a time, with plans that are good at any size, and nothing ends it."""

from collections.abc import AsyncIterator, Callable

import asyncpg
import pytest
from harness.plans import Connection, execution, explain, goes_by_key, reads
from harness.postgres import execute, number
from harness.server import Server
from harness.wait import until

from app.store.chores import Chore
from app.store.database import HOT_SESSION
from app.store.derive import DERIVE
from app.store.retain import FORGET, RETAIN
from app.store.trim import TRIM

STATEMENTS = {
    Chore.TRIM: (TRIM, (0, None, 3600, 1000), {"checkpoint_made", "checkpoint_of_history", "checkpoint_pkey"}),
    Chore.RETAIN: (RETAIN, (0, 1000), {"message_finished", "message_pkey", "checkpoint_pkey"}),
    Chore.FORGET: (FORGET, (0, 1000), {"send_request_made", "send_request_pkey"}),
    Chore.DERIVE: (DERIVE, (0, 0), {"message_finished", "queue_pkey"}),
}

LONG_HISTORY = """
insert into checkpoint (shard, message_id, generation, kind, facts, history)
select 0, 1000000, n, 'nacked', '{}', 'task' from generate_series(1, 120) n
"""
FINISHED = """
insert into message (shard, queue_id, body, priority, fairness_key, status, started_at, finished_at)
select 0, id, '1', 0, '', 'completed', now() - interval '{0} seconds', now() - interval '{0} seconds' from queue, generate_series(1, 20)
"""
OLD_REQUEST = """
insert into send_request (shard, queue_id, key, digest, message_ids, created_at) values (0, 1, 'key', '', '{}', now() - interval '2 days')
"""

# Something to do for each chore, and a query that says how much of it is left.
WORK = {
    Chore.TRIM: (LONG_HISTORY, "select count(*) - 100 from checkpoint"),
    Chore.RETAIN: (FINISHED.format(700_000), "select count(*) from message"),
    Chore.FORGET: (OLD_REQUEST, "select count(*) from send_request"),
    Chore.DERIVE: (FINISHED.format(10), "select count(*) from queue where adaptive and derived_samples is null"),
}


@pytest.fixture
async def own_sql(database_url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(database_url, server_settings=HOT_SESSION)
    yield connection
    await connection.close()


@pytest.mark.parametrize("chore", STATEMENTS, ids=lambda chore: chore.name.lower())
async def test_plans_made_on_an_empty_database_go_by_the_index(planning: Connection, chore: Chore) -> None:
    statement, arguments, indexes = STATEMENTS[chore]
    found = reads(await explain(planning, statement, *arguments))
    assert {node["Index Name"] for node in found if "Index Name" in node} == indexes
    assert [node for node in found if "Index Name" in node and not goes_by_key(node)] == []
    assert {node["Relation Name"] for node in found if "Index Name" not in node} <= {"queue"}  # a few rows, each of which is looked at


@pytest.mark.parametrize("chore", WORK, ids=lambda chore: chore.name.lower())
async def test_a_chore_is_left_alone_while_another_replica_is_at_it(own_sql: Connection, database_url: str, chore: Chore) -> None:
    do, left = WORK[chore]
    statement, arguments, _ = STATEMENTS[chore]
    await own_sql.execute("update queue set adaptive = true")
    await own_sql.execute(do)
    await own_sql.execute(f"prepare chore as {statement}")
    before = await own_sql.fetchval(left)
    assert before > 0
    other = await asyncpg.connect(database_url)
    async with other.transaction():
        await other.execute("select pg_advisory_xact_lock($1, 0)", chore.value)
        await own_sql.execute(execution("chore", *arguments))
        assert await own_sql.fetchval(left) == before
    await other.close()
    await own_sql.execute(execution("chore", *arguments))
    assert await own_sql.fetchval(left) == 0


@pytest.mark.scar(27)
def test_a_chore_that_fails_holds_up_no_other_and_is_tried_again(start_server: Callable[..., Server], database_url: str) -> None:
    do, left = WORK[Chore.TRIM]
    execute(database_url, do)
    execute(database_url, FINISHED.format(700_000))
    execute(database_url, "create function refuse() returns trigger language plpgsql as $$ begin raise exception 'refused'; end $$")
    execute(database_url, "create trigger refuse before delete on checkpoint for each row execute function refuse()")
    server = start_server()
    until(lambda: "chore put off" in server.log, pause=0.1)
    until(lambda: number(database_url, "select count(*) from message") == 0, pause=0.1)
    assert number(database_url, left) == 20
    execute(database_url, "drop trigger refuse on checkpoint")
    until(lambda: number(database_url, left) == 0, pause=0.1)
    assert "Traceback" not in server.log
