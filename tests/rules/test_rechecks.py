"""Later looks at leases that live on: they cost next to nothing, and miss none that runs out."""

import asyncio
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import asyncpg
import pytest
from harness.api import Api
from harness.operating import RARELY
from harness.plans import explain, fill, rows_read
from harness.postgres import execute, number, refuse
from harness.server import Server
from harness.wait import until

from app.store.database import HOT_SESSION
from app.store.recheck import BLOCK, RECHECK

LIVING_ON = "select count(*) from lease where check_at = 'infinity'"
END_IN = "update lease set expires_at = now() + interval '{0}'; update recheck set check_at = now() + interval '{0}'"
"""Has leases that live on end so much later, and the next look at them come by then."""


def live_on(api: Api, url: str, *lasting: float) -> dict[str, str]:
    """Claim a message for so many seconds each, and have their leases' first look find them alive; the second is due at their ends.

    Returns the receipts by message. Where the machine stands still for as long as one of them lasts, others are claimed instead.
    """
    api.put_queue("long", beat_interval=0, max_attempts=100)
    receipts: dict[str, str] = {}

    def all_live() -> bool:
        receipts.clear()
        api.send("long", *range(len(lasting)))
        for seconds in lasting:
            lease = api.claim_one("long", visibility_timeout=seconds)
            receipts[lease["message"]["id"]] = lease["receipt"]
        execute(url, "update lease set check_at = now()")
        api.call("POST", "/recovery/sweep", {})
        until(lambda: number(url, "select count(*) from lease where check_at <> 'infinity'") == 0)
        if number(url, f"{LIVING_ON} and generation = 1") == len(lasting):
            return True
        api.ack(*receipts.values())
        return False

    until(all_live)
    return receipts


@pytest.mark.scar(28)
@pytest.mark.rule(8)
async def test_looks_at_a_lease_that_lives_on_leave_its_row_alone(start_server: Callable[..., Server], database_url: str) -> None:
    """After the first. Those of a block are looked at together, and no more once all have ended and its time has come."""
    api = start_server(sweep_interval=0.1).api
    receipts = (await asyncio.to_thread(live_on, api, database_url, *[300] * 20)).values()
    sql = await asyncpg.connect(database_url)
    rows = "select message_id, xmin::text as written_by from lease order by message_id"
    looks = "select count(*) as blocks, min(check_at) as earliest, (select min(expires_at) from lease) as first_end from recheck"
    look_now = "update recheck set check_at = now() returning check_at"
    for _ in range(3):
        assert {answer["status"] for answer in api.beat(*receipts)} == {"extended"}
        before, asked_at = await sql.fetch(rows), await sql.fetchval(look_now)
        async with asyncio.timeout(60):
            while (row := await sql.fetchrow(looks)) and row["earliest"] == asked_at:
                await sql.execute("select pg_sleep(0.01)")
        assert row is not None
        assert (row["blocks"], row["earliest"]) == (1, row["first_end"])
        assert await sql.fetch(rows) == before
    assert {answer["status"] for answer in api.ack(*receipts)} == {"acked"}
    await sql.execute(look_now)
    async with asyncio.timeout(60):
        while await sql.fetchval("select count(*) from recheck"):  # noqa: ASYNC110 - nothing tells when they are gone
            await asyncio.sleep(0.05)
    await sql.close()


@pytest.mark.rule(8)
def test_a_lease_that_lived_on_is_redelivered_within_milliseconds_of_its_end(
    start_server: Callable[..., Server], database_url: str
) -> None:
    api = start_server(sweep_interval=RARELY).api
    live_on(api, database_url, *(3 + 0.3 * n for n in range(10)))
    leases: list[str] = []
    while len(leases) < 10:
        leases += [lease["message"]["id"] for lease in api.claim("long", max_messages=10, wait=RARELY - 10, visibility_timeout=300)]
    late = "select max(extract(epoch from created_at - (facts ->> 'expires_at')::timestamptz) * 1000)::int from checkpoint"
    # A busy machine delays some of them, a slow service all.
    assert number(database_url, late) < 30_000
    assert number(database_url, late.replace("max(", "min(")) < 50


@pytest.mark.rule(8)
def test_a_restart_forgets_no_lease_that_lived_on(start_server: Callable[..., Server], database_url: str) -> None:
    first = start_server()
    ids = live_on(first.api, database_url, *[300] * 5)
    first.kill()
    execute(database_url, END_IN.format("5 seconds"))  # longer than a server takes to start, as a rule
    api = start_server(sweep_interval=RARELY).api
    until(lambda: {api.message(message_id)["status"] for message_id in ids} == {"pending"}, timeout=40)
    assert {api.message(message_id)["expired_count"] for message_id in ids} == {1}
    assert number(database_url, "select count(*) from checkpoint where created_at < (facts ->> 'expires_at')::timestamptz") == 0


@pytest.mark.scar(35)
@pytest.mark.rule(10)
def test_a_lease_that_cannot_be_left_to_the_reclaim_holds_up_no_neighbour(start_server: Callable[..., Server], database_url: str) -> None:
    server = start_server()
    ids = [*live_on(server.api, database_url, *[300] * 30)]
    refuse(database_url, "lease", f"new.message_id = {ids[11]}", "update", after=END_IN.format("0"))
    until(lambda: sum(server.api.message(message_id)["status"] == "pending" for message_id in ids) == 29)
    assert server.api.message(ids[11])["status"] == "in_progress"
    assert number(database_url, LIVING_ON) == number(database_url, "select count(*) from recheck") == 1
    assert server.log.count("row set aside") == 1


@pytest.mark.rule(8)
def test_leases_that_run_out_all_come_back_while_others_are_added_to_their_blocks(
    start_server: Callable[..., Server], database_url: str
) -> None:
    """Leases of two replicas are claimed and beaten by turns, at random; whatever is beaten lives, whatever is not comes back."""
    apis = [start_server().api for _ in range(2)]
    apis[0].put_queue("busy", visibility_timeout=2.5, extension=2.5, beat_interval=0.05, max_attempts=1_000_000)
    apis[0].send("busy", *range(300))
    end = time.monotonic() + 10

    def work(seed: int) -> int:
        choose = random.Random(seed)
        beaten = 0
        kept: list[str] = []
        before = time.monotonic()
        while time.monotonic() < end:
            began = time.monotonic()
            api = choose.choice(apis)
            kept += [lease["receipt"] for lease in api.claim("busy", max_messages=choose.randint(1, 10))]
            answers = api.beat(*kept) if kept else []
            late = time.monotonic() - before > 2  # the machine stood still for almost a lease
            lost = [answer["receipt"] for answer in answers if answer["status"] not in {"extended", "held"}]
            assert late or not lost
            before = began
            kept = [receipt for receipt in kept if receipt not in lost]
            beaten += len(answers)
            kept = choose.sample(kept, int(len(kept) * choose.choice([0.8, 1, 1, 1])))
            time.sleep(0.1)
        return beaten

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))
    assert number(database_url, "select count(*) from checkpoint") > 0, "no lease ran out while others lived"
    assert number(database_url, "select n_tup_ins from pg_stat_user_tables where relname = 'recheck'") > 0
    until(lambda: number(database_url, "select count(*) from message where status = 'pending'") == 300)
    until(lambda: number(database_url, "select count(*) from recheck") == 0)


async def test_a_look_at_a_block_reads_no_other(database_url: str) -> None:
    sql = await asyncpg.connect(database_url, server_settings=HOT_SESSION)
    await fill(sql, ready=0, leased=20_000)
    await sql.execute("update lease set check_at = 'infinity'")
    await sql.execute(
        "insert into recheck select 0, block, now() + interval '1 hour' from generate_series(0, 20000 / $1::int) as block", BLOCK
    )
    await sql.execute("analyze")
    await sql.execute("update recheck set check_at = now() where block in (7, 77)")
    nodes = await explain(sql, RECHECK, 0, 60, [], 1000, None)
    assert rows_read(nodes, "lease") == 2 * BLOCK
    assert rows_read(nodes, "recheck") <= 4 * 2  # found, locked, and looked up to be moved or dropped
    await sql.close()
