"""Faults that other systems had in public, and that no other file here keeps out."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import asyncpg
import pytest
from harness.api import Api, Json
from harness.metrics import value
from harness.operating import RARELY, messages, sweep_that_it_begins_with
from harness.postgres import execute, transactions_a_second
from harness.postgres_of_own import OwnPostgres
from harness.server import Server
from harness.wait import until

import leasebeat
from app.timers.supervise import supervise

LONG = 50


# --- 27: the reclaimer stalled, or ended for ever


def timer_lag(api: Api) -> float:
    return float(api.client.get("/readyz").json()["timer_lag"])


@pytest.mark.scar(27)
@pytest.mark.rule(8)
def test_a_timer_whose_statements_fail_says_how_late_it_is_and_goes_on_afterwards(
    start_server: Callable[..., Server], database_url: str
) -> None:
    server = start_server()
    api = server.api
    (message_id,) = api.send("default", "work")
    execute(database_url, "alter table checkpoint rename to gone")
    api.claim_one("default", visibility_timeout=1)
    until(lambda: timer_lag(api) > 3, LONG)
    assert value(api, "leasebeat_timer_lag_seconds") > 3
    assert api.message(message_id)["status"] == "in_progress"
    # It is tried again at growing intervals, at most a sweep interval apart.
    failures = until(lambda: (count := server.log.count("sweep failed")) >= 3 and count)
    assert failures < 20 + timer_lag(api)
    execute(database_url, "alter table gone rename to checkpoint")
    assert api.claim_one("default", wait=LONG)["generation"] == 2
    until(lambda: timer_lag(api) < 1, LONG)


@pytest.mark.scar(27)
@pytest.mark.rule(8)
def test_a_timer_whose_postgres_crashes_says_how_late_it_is_and_goes_on_afterwards(postgres_of_own: OwnPostgres) -> None:
    with Server(postgres_of_own.url) as server:
        server.api.send("default", "work")
        server.api.claim_one("default", visibility_timeout=3)
        postgres_of_own.crash()
        until(lambda: timer_lag(server.api) > 3, LONG)
        assert server.api.client.get("/readyz").status_code == 503
        postgres_of_own.start()
        until(lambda: server.ready, LONG)
        assert server.api.claim_one("default", wait=LONG)["generation"] == 2
        until(lambda: timer_lag(server.api) < 1, LONG)


@pytest.mark.scar(27, 35)
@pytest.mark.rule(10)
@pytest.mark.parametrize(("table", "column"), [("checkpoint", "facts"), ("lease", "claim_slot")], ids=["reclaim", "claim"])
async def test_a_statement_that_fails_for_no_row_s_sake_is_not_repeated_ever_faster(
    start_server: Callable[..., Server], database_url: str, table: str, column: str
) -> None:
    """Nothing is due and nothing is ready, so there is no row to set aside."""
    api = start_server().api
    sql = await asyncpg.connect(database_url)
    await sql.execute(f"alter table {table} rename column {column} to gone")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(api.client.post, "/queues/default/leases", json={"worker_id": "worker", "wait": 5})
        await sql.execute("select pg_sleep(1.5)")
        assert await transactions_a_second(sql) < 60
    await sql.close()


@pytest.mark.scar(27)
@pytest.mark.parametrize("end", ["returns", "fails"])
async def test_a_background_task_that_ends_is_started_anew(end: str) -> None:
    started = 0
    again = asyncio.Event()

    async def run() -> None:
        nonlocal started
        started += 1
        if started == 1 and end == "fails":
            raise ZeroDivisionError
        if started == 2:
            again.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(supervise("task", run))
    with anyio.fail_after(60):
        await again.wait()
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# --- 31, 32: what is no attempt


@pytest.mark.scar(31)
@pytest.mark.rule(9, 14)
def test_deliveries_that_reach_nobody_use_up_no_attempt(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, "work", max_attempts=1)
    for _ in range(3):
        assert api.claim_one(queue, confirm_within=0.05, wait=LONG)["attempt"] == 1
    until(lambda: api.message(message_id)["unconfirmed_count"] == 3)
    message = api.message(message_id)
    assert [message[name] for name in ("attempt_count", "expired_count", "failed_count", "failed_workers")] == [0, 0, 0, []]
    assert {each["kind"] for each in api.checkpoints(message_id)} == {"unconfirmed"}
    receipt = api.claim_one(queue, confirm_within=60, wait=LONG)["receipt"]
    assert api.beat(receipt)[0]["status"] == "extended"
    assert api.nack(receipt)[0]["status"] == "failed"


STRANDED = textwrap.dedent(
    """
    import os, sys
    from leasebeat import Worker

    def handle(message, context):
        os.write(1, b"begun\\n")  # whole, also beside the other handlers'
        context.lost.wait()

    Worker(sys.argv[1], sys.argv[2], handle, worker_id="stopped", concurrency=3, drain_timeout=0.2).run()
    """
)


@pytest.mark.scar(32)
@pytest.mark.rule(9)
def test_a_worker_process_that_is_stopped_gives_its_leases_back_uncounted(server: Server, queue: str) -> None:
    """All that it holds; the leases would last for another five minutes."""
    api = server.api
    ids = api.send(queue, *range(3))
    environment = {**os.environ, "PYTHONPATH": str(Path(leasebeat.__file__).parents[1])}
    command = [sys.executable, "-c", STRANDED, server.url, queue]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(3)] == [b"begun\n"] * 3
            process.send_signal(signal.SIGTERM)
            assert process.wait(LONG) == 0
        finally:
            process.kill()
    found = [api.message(each) for each in ids]
    assert {(each["status"], each["released_count"], each["attempt_count"]) for each in found} == {("pending", 1, 0)}
    assert [lease["attempt"] for lease in api.claim(queue, max_messages=3)] == [1] * 3


# --- 34, 37, 38: big numbers


@pytest.mark.scar(34)
@pytest.mark.rule(10)
@pytest.mark.parametrize("end", ["nack", "release", "run out", "unconfirmed"])
def test_counters_at_their_end_hold_up_nobody_in_their_batch(start_server: Callable[..., Server], database_url: str, end: str) -> None:
    """One statement ends five leases, and one of the messages has been tried as often as numbers go."""
    api = start_server(sweep_interval=RARELY).api
    sweep_that_it_begins_with(api)
    api.put_queue("default", max_attempts=1_000_000, backoff={"initial": 1000, "factor": 10, "max": 1000, "jitter": False})
    ids = api.send("default", *range(5))
    counters = "attempt_count", "nacked_count", "expired_count", "released_count", "unconfirmed_count"
    full = ", ".join(f"{each} = 2147483647" for each in counters)
    before = "attempts_before = 2147483000, unconfirmed_before = 2147483647"
    execute(database_url, f"update message set {full}, {before} where id = {ids[2]}")
    receipts = [lease["receipt"] for lease in api.claim("default", max_messages=5, confirm_within=300 if end == "unconfirmed" else None)]
    match end:
        case "nack":
            assert {each["status"] for each in api.nack(*receipts)} == {"requeued"}
        case "release":
            assert {each["status"] for each in api.release(*receipts)} == {"released"}
        case _:
            execute(database_url, "update lease set expires_at = now(), check_at = now()")
            stats = api.call("POST", "/recovery/sweep", {})
            assert (stats["recovered"], stats["failed"], stats["errors"]) == (5, 0, 0)
    found = [api.message(each) for each in ids]
    assert {each["status"] for each in found} == {"scheduled" if end in {"nack", "run out"} else "pending"}
    counted = {"nack": "failed_count", "release": "released_count", "run out": "expired_count", "unconfirmed": "unconfirmed_count"}[end]
    assert [each[counted] for each in found] == [1, 1, 2**31 - 1, 1, 1]


@pytest.mark.scar(37)
def test_a_message_that_fails_for_ever_has_a_bounded_history(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, "work", max_attempts=1000)
    for n in range(110):
        api.nack(api.claim_one(queue, f"worker-{n}")["receipt"], error="e" * 1000)
    assert len(api.message(message_id)["failed_workers"]) == 20

    def trimmed() -> list[Json]:
        api.call("POST", "/recovery/sweep", {})
        return found if len(found := api.checkpoints(message_id)) == 100 else []

    assert [each["generation"] for each in until(trimmed, LONG)] == list(range(110, 10, -1))


@pytest.mark.scar(38)
@pytest.mark.parametrize("last", [2**53, 2**63 - 5], ids=["beyond doubles", "the last of all"])
def test_ids_that_no_double_holds_work_everywhere(start_server: Callable[..., Server], database_url: str, last: int) -> None:
    execute(database_url, "select setval('message_id_seq', $1)", last)
    api = start_server().api
    ids = api.send("default", *range(4))
    assert ids == [str(last + n) for n in range(1, 5)]
    assert messages(api, "default") == ids
    leases = api.claim("default", max_messages=4)
    assert [lease["message"]["id"] for lease in leases] == ids
    page = api.call("GET", "/leases", params={"limit": 2})
    rest = api.call("GET", "/leases", params={"cursor": page["next_cursor"]})
    assert [item["message_id"] for item in page["items"] + rest["items"]] == ids
    receipts = [lease["receipt"] for lease in leases]
    assert {each["status"] for each in api.beat(*receipts)} == {"extended"}
    acked, nacked, released, _ = receipts
    results = api.ack(acked) + api.nack(nacked, retryable=False) + api.release(released)
    assert [each["status"] for each in results] == ["acked", "failed", "released"]
    execute(database_url, "update lease set expires_at = now(), check_at = now()")
    until(lambda: api.message(ids[3])["status"] == "pending")
    assert [api.message(each)["status"] for each in ids] == ["completed", "failed", "pending", "pending"]
    assert [each["generation"] for each in api.checkpoints(ids[3])] == [1]
