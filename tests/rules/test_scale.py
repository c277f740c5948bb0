"""What a claim reads, and how soon leases that ran out are back, whatever else is in the tables. In rows and pages, never in time."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import asyncpg
import pytest
from harness.plans import CLAIM_KINDS, Node, buffers, execution, explain, explain_prepared, fill, rows_left_out, rows_read
from harness.postgres import Databases
from harness.server import Server

from app.leases.floors import Floors
from app.store.claim import CLAIMS
from app.store.database import HOT_SESSION
from app.store.pick import PICK_ANY
from app.store.purge import NEWEST, PURGE
from app.store.reads import MESSAGES
from app.store.redrive import REDRIVE

SLOTS = 10
PLANS = ("made on empty tables", "made while nothing was ready", "made for the tables as they are")

_ADD_LIMITED_QUEUE = """
insert into queue (shard, name, visibility_timeout, extension, beat_interval, extension_enabled, max_lease, max_attempts,
                   progress_required, weights, max_in_flight)
select shard, 'limited', visibility_timeout, extension, beat_interval, extension_enabled, max_lease, max_attempts,
       progress_required, weights, 20
from queue
where name = 'default'
returning id
"""

Observed: TypeAlias = dict[tuple[str, str], list[Node]]
"""What each kind of claim did with each plan."""


@pytest.fixture(scope="module")
def crowd(postgres: Databases) -> Iterator[Observed]:
    """Claims of messages that stand behind as many others as a busy queue gathers in a day."""
    yield from observed(postgres, ready=500, of_others=500, delayed=100_000, leased=40_000, completed=200_000)


@pytest.fixture(scope="module")
def few_keys(postgres: Databases) -> Iterator[Observed]:
    yield from observed(postgres, ready=1000, keys=10, completed=100)


@pytest.fixture(scope="module")
def many_keys(postgres: Databases) -> Iterator[Observed]:
    yield from observed(postgres, ready=100_000, keys=10_000, completed=100)


@pytest.mark.scar(39)
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("kind", CLAIM_KINDS)
def test_a_claim_reads_no_row_that_is_not_ready(crowd: Observed, kind: str, plan: str) -> None:
    """A claim of 10 from 1,000 ready messages beside 100,000 delayed, 40,000 leased and 200,000 finished ones."""
    nodes = crowd[kind, plan]
    assert rows_left_out(nodes, "message") == 0
    # Each row is found by its index and again by its key; a claim by type finds more of each type than it takes.
    assert SLOTS <= rows_read(nodes, "message") <= 6 * SLOTS
    assert buffers(nodes) <= 50 * SLOTS


@pytest.mark.scar(39)
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("kind", CLAIM_KINDS)
def test_ten_thousand_keys_cost_a_claim_no_more_than_ten(few_keys: Observed, many_keys: Observed, kind: str, plan: str) -> None:
    """A claim of 10 from 100,000 ready messages under 10,000 keys, against one from 1,000 under ten."""
    few, many = few_keys[kind, plan], many_keys[kind, plan]
    assert rows_left_out(many, "message") == 0
    assert SLOTS <= rows_read(many, "message") <= rows_read(few, "message") <= 20 * SLOTS
    assert buffers(many) <= 2 * buffers(few)  # the indexes have one level more


@pytest.mark.scar(39)
@pytest.mark.parametrize("vacuumed", [False, True])
async def test_calls_that_go_by_state_read_no_message_of_another(database_url: str, vacuumed: bool) -> None:
    """Where Postgres takes all messages to be in one state of one queue, also a walk through all of them would seem good to it."""
    sql = await asyncpg.connect(database_url, server_settings=HOT_SESSION)
    await fill(sql, ready=0, completed=100_000)
    await sql.execute("vacuum (analyze) message" if vacuumed else "analyze message")
    await fill(sql, ready=20)
    states = ["pending", "failed"]
    people = await asyncpg.connect(database_url)
    for session, statement, arguments in (
        (sql, NEWEST, (0, 1, states)),
        (sql, PURGE, (0, 1, states, 0, 10**9)),
        (sql, REDRIVE, (0, 1, 0, 1000, "default", "default")),
        (people, MESSAGES, (0, 1, states, 0, 10)),
    ):
        nodes = await explain(session, statement, *arguments)
        assert rows_left_out(nodes, "message") == 0
        assert rows_read(nodes, "message") <= 5 * 20
    for session in (sql, people):
        await session.close()


@pytest.mark.scar(48)
@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
async def test_a_claim_from_a_limited_queue_counts_its_own_leases_only(database_url: str, mode: str) -> None:
    sql = await asyncpg.connect(database_url, server_settings=HOT_SESSION | {"plan_cache_mode": mode})
    limited = await sql.fetchval(_ADD_LIMITED_QUEUE)
    await fill(sql, ready=1000, leased=20_000)
    await fill(sql, ready=1000, leased=15, queue_id=limited)
    await sql.execute("analyze")
    nodes = await explain(sql, CLAIMS[PICK_ANY], *claim_arguments("any", queue_id=limited, holding=True))
    await sql.close()
    assert rows_left_out(nodes, "lease") == 0
    assert rows_read(nodes, "lease") == 15


@pytest.mark.scar(29)
@pytest.mark.rule(8)
async def test_a_thousand_leases_that_run_out_together_are_back_within_a_second(
    start_server: Callable[..., Server], database_url: str, record_testsuite_property: Callable[[str, object], None]
) -> None:
    """By the times in the database: from the expiry of each lease to its checkpoint, and to the next lease of its message."""
    api = start_server().api
    api.send("default", *range(1000), max_attempts=100)
    sql = await asyncpg.connect(database_url)
    lags: list[tuple[float, int, float]] = []
    for generation in range(2, 20, 2):
        assert len(api.claim("default", max_messages=1000, visibility_timeout=1)) == 1000
        taken: list[str] = []
        while len(taken) < 1000:
            taken += [lease["receipt"] for lease in api.claim("default", max_messages=1000, wait=40)]
        (lag,) = await sql.fetch(_LAG, generation)
        lags.append(tuple(lag))
        api.release(*taken)
        if lags[-1][2] <= 1:
            break
    await sql.close()
    record_testsuite_property("from expiry to checkpoint and to redelivery, the last of 1,000 leases", lags)
    assert {noted for _, noted, _ in lags} == {1000}
    # A busy machine delays some of them, a slow service all.
    assert lags[-1][2] <= 1


_LAG = """
select
    max(extract(epoch from checkpoint.created_at - earlier.expires_at))::float8 as to_checkpoint, count(*),
    max(extract(epoch from lease.granted_at - earlier.expires_at))::float8 as to_redelivery
from lease
join checkpoint on checkpoint.message_id = lease.message_id and checkpoint.generation = lease.generation - 1
cross join lateral (select (checkpoint.facts ->> 'expires_at')::timestamptz as expires_at) as earlier
where lease.generation = $1 and checkpoint.kind = 'lease_expired'
"""


def observed(postgres: Databases, **crowd: int) -> Iterator[Observed]:
    """Return what claims do in a database that has these messages, `of_others` in front of them: ready, but of another type or task."""
    url = postgres.create()
    yield asyncio.run(_observe(url, **crowd))
    postgres.drop(url)


async def _observe(
    url: str, *, ready: int, of_others: int = 0, keys: int = 1, delayed: int = 0, leased: int = 0, completed: int = 0
) -> Observed:
    sql = await asyncpg.connect(url, server_settings=HOT_SESSION)
    found: Observed = {}

    async def plan_all(mode: str) -> None:
        """Make the plans that are kept."""
        await sql.execute(f"set plan_cache_mode = {mode}")
        for n, kind in enumerate(CLAIM_KINDS):
            await sql.execute(f"explain {execution(f'kind_{n}', *claim_arguments(kind))}")

    async def make_ready() -> None:
        for work_type, task_id in (("z", "z"), ("z", "t"), ("a", "z")):
            await fill(sql, ready=of_others, keys=keys, work_type=work_type, task_id=task_id)
        await fill(sql, ready=ready, keys=keys)

    async def run_all(plan: str) -> None:
        for n, kind in enumerate(CLAIM_KINDS):
            found[kind, plan] = await explain_prepared(sql, f"kind_{n}", *claim_arguments(kind))

    for table in ("message", "lease"):
        await sql.execute(f"alter table {table} set (autovacuum_enabled = off)")  # it would have the plans made anew
    for n, (pick, _) in enumerate(CLAIM_KINDS.values()):
        await sql.execute(f"prepare kind_{n} as {CLAIMS[pick]}")
    await plan_all("force_generic_plan")
    await fill(sql, ready=0, delayed=delayed, leased=leased, completed=completed, keys=keys)
    await make_ready()
    await run_all("made on empty tables")
    await sql.execute("delete from message where status = 'pending'")
    await sql.execute("vacuum (analyze) message, lease")
    await plan_all("force_generic_plan")
    await make_ready()
    await run_all("made while nothing was ready")
    await sql.execute("analyze message, lease")
    await run_all("made for the tables as they are")
    await sql.close()
    return found


def claim_arguments(kind: str, *, queue_id: int = 1, holding: bool = False) -> tuple[Any, ...]:
    """Return the arguments of a claim of ten, on behalf of one call, by a replica at some key in the middle."""
    nothing = [None] * SLOTS
    _, wanted = CLAIM_KINDS[kind]
    return (
        0,
        queue_id,
        "key-5",
        0,
        holding,
        [],
        ["worker"] * SLOTS,
        *Floors().stretches(),
        *wanted,
        nothing,
        nothing,
        nothing,
        list(range(SLOTS)),
    )
