"""Later looks at leases that live on: they cost next to nothing, and miss none that runs out."""

import asyncio
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

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


def live_on(api: Api, url: str, *lasting: float) -> list[str]:
    """Claim a message for so many seconds each, and have their leases' first look find them alive; the second is due at their ends."""
    api.put_queue("long", max_attempts=100)
    ids = api.send("long", *range(len(lasting)))
    for seconds in lasting:
        api.claim_one("long", visibility_timeout=seconds)
    execute(url, "update lease set check_at = now()")
    api.call("POST", "/recovery/sweep", {})
    until(lambda: number(url, LIVING_ON) == len(lasting))
    return ids


@pytest.mark.scar(28)
@pytest.mark.rule(8)
async def test_looks_at_a_lease_that_lives_on_leave_its_row_alone(start_server: Callable[..., Server], database_url: str) -> None:
    """After the first. Those of a block are looked at together, and no more once all have ended and its time has come."""
    api = start_server().api
    api.put_queue("long", visibility_timeout=5, extension=5, beat_interval=0.5)
    api.send("long", *range(20))
    receipts = [lease["receipt"] for lease in api.claim("long", max_messages=20)]
    sql = await asyncpg.connect(database_url)
    looks = "select count(*) as blocks, min(check_at) as earliest, (select min(expires_at) from lease) as first_end from recheck"
    changes = "select n_tup_upd - n_tup_hot_upd from pg_stat_user_tables where relname = 'lease'"
    moments: set[datetime] = set()
    while len(moments) < 3:
        assert {answer["status"] for answer in api.beat(*receipts)} <= {"extended", "held"}
        (row,) = await sql.fetch(looks)
        assert row["blocks"] in {0, 1}
        assert row["blocks"] == 0 or row["earliest"] <= row["first_end"]
        moments.add(row["earliest"])
        await sql.execute("select pg_sleep(0.1), pg_stat_clear_snapshot()")
    async with asyncio.timeout(60):
        while await sql.fetchval(changes) < 20:  # sessions report what they have done within a second or so
            await sql.execute("select pg_sleep(0.1), pg_stat_clear_snapshot()")
    await sql.execute("select pg_sleep(1.2), pg_stat_clear_snapshot()")
    assert await sql.fetchval(changes) < 40  # the first look, and maybe a beat that found its page full; not two looks each
    assert {answer["status"] for answer in api.ack(*receipts)} == {"acked"}
    async with asyncio.timeout(60):
        while await sql.fetchval("select count(*) from recheck"):  # noqa: ASYNC110 - nothing tells when they are gone
            await asyncio.sleep(0.05)
    await sql.close()


@pytest.mark.rule(8)
def test_a_lease_that_lived_on_is_redelivered_within_milliseconds_of_its_end(
    start_server: Callable[..., Server], database_url: str
) -> None:
    api = start_server(sweep_interval=RARELY).api
    live_on(api, database_url, *(6 + 0.3 * n for n in range(10)))
    leases: list[str] = []
    while len(leases) < 10:
        leases += [lease["message"]["id"] for lease in api.claim("long", max_messages=10, wait=RARELY - 10, visibility_timeout=300)]
    late = "select max(extract(epoch from created_at - (facts ->> 'expires_at')::timestamptz) * 1000)::int from checkpoint"
    # A busy machine delays some of them, a slow service all.
    assert number(database_url, late) < 10_000
    assert number(database_url, late.replace("max(", "min(")) < 50


@pytest.mark.rule(8)
def test_a_restart_forgets_no_lease_that_lived_on(start_server: Callable[..., Server], database_url: str) -> None:
    first = start_server()
    ids = live_on(first.api, database_url, *[15] * 5)  # longer than a server takes to start
    first.kill()
    api = start_server(sweep_interval=RARELY).api
    assert {api.message(message_id)["status"] for message_id in ids} == {"in_progress"}
    until(lambda: {api.message(message_id)["status"] for message_id in ids} == {"pending"}, timeout=40)
    assert {api.message(message_id)["expired_count"] for message_id in ids} == {1}


@pytest.mark.scar(35)
@pytest.mark.rule(10)
def test_a_lease_that_cannot_be_left_to_the_reclaim_holds_up_no_neighbour(start_server: Callable[..., Server], database_url: str) -> None:
    server = start_server()
    ids = live_on(server.api, database_url, *[6] * 30)
    refuse(database_url, "lease", f"new.message_id = {ids[11]}", "update")
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
