"""How the statements use Postgres: heap-only beats, no row read in vain, no deadlock, one clock, one bad row alone."""

import random
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from harness.plans import Connection, explain, fill, goes_by_key, reads, rows_read, scans
from harness.postgres import execute, refuse
from harness.server import Server
from harness.wait import until

import app
from app.leases.floors import Floors
from app.store.ack import ACK
from app.store.beat import BEAT
from app.store.cancel import CANCEL
from app.store.claim import CLAIMS, REPEATED
from app.store.database import HOT_SESSION
from app.store.derive import DERIVE
from app.store.due import NEXT_DUE
from app.store.fate import FATE
from app.store.nack import NACK
from app.store.pick import PICK_ANY, PICK_BY_BOTH, PICK_BY_TASK, PICK_BY_TYPE
from app.store.promote import PROMOTE
from app.store.purge import NEWEST, PURGE
from app.store.recheck import RECHECK
from app.store.reclaim import RECLAIM
from app.store.redrive import REDRIVE
from app.store.release import RELEASE
from app.store.remove import REMOVE
from app.store.retain import FORGET, RETAIN
from app.store.send_once import SEND_ONCE
from app.store.trim import TRIM
from app.store.workers import COUNT_HELD, FORGET_SILENT, HOLDINGS


@pytest.fixture
async def own_sql(database_url: str) -> Any:
    connection = await asyncpg.connect(database_url, server_settings=HOT_SESSION)
    yield connection
    await connection.close()


@pytest.mark.scar(40)
async def test_beats_are_heap_only_updates(start_server: Callable[..., Server], own_sql: Connection) -> None:
    """In one of three rounds at least: no page is tidied up while some other session stands still in a statement."""

    async def updates() -> tuple[int, int]:
        row = await own_sql.fetchrow("select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'lease'")
        assert row is not None
        return row["n_tup_upd"], row["n_tup_hot_upd"]

    async def beaten() -> tuple[int, int]:
        before = await updates()
        server = start_server()
        server.api.put_queue("busy", beat_interval=0)
        server.api.send("busy", *range(200))
        receipts = [lease["receipt"] for lease in server.api.claim("busy", max_messages=200)]
        for round_ in range(20):
            assert {beat["status"] for beat in server.api.beat(*receipts, progress=round_, detail={"round": round_})} == {"extended"}
        server.api.ack(*receipts)
        assert server.stop() == 0  # its sessions report their figures as they end
        while (after := await updates())[0] < before[0] + 4000:
            await own_sql.execute("select pg_sleep(0.05), pg_stat_clear_snapshot()")
        return after[0] - before[0], after[1] - before[1]

    found = [await beaten()]
    while found[-1] != (4000, 4000) and len(found) < 3:
        found.append(await beaten())
    assert found[-1] == (4000, 4000), found


@pytest.mark.scar(39)
async def test_a_reclaim_reads_no_lease_that_is_not_due(own_sql: Connection) -> None:
    await fill(own_sql, ready=0, leased=20000, completed=5000)
    await own_sql.execute("analyze")
    await own_sql.execute(
        "update lease set check_at = now(), expires_at = now() where message_id in (select message_id from lease limit 20)"
    )
    nodes = await explain(own_sql, RECLAIM, 0, 1000, [], None)
    found = scans(nodes, "lease", "message")
    assert {node["Node Type"] for node in found} <= {"Index Scan", "Index Only Scan", "Bitmap Heap Scan"}
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in found) <= 20 * 6


@pytest.mark.scar(39)
@pytest.mark.parametrize(
    "verb",
    [
        "ack",
        "beat",
        "below",
        "below by both",
        "cancel",
        "claim",
        "claim by type",
        "claim by task",
        "claim by both",
        "derive",
        "fate",
        "forget",
        "forget silent",
        "held",
        "holdings",
        "nack",
        "newest",
        "next due",
        "promote",
        "purge",
        "recheck",
        "reclaim",
        "redrive",
        "release",
        "remove",
        "repeated",
        "retain",
        "send_once",
        "trim",
    ],
)
async def test_plans_made_on_an_empty_database_stay_good_as_it_grows(planning: Connection, verb: str) -> None:
    """Postgres keeps such plans. Each must reach rows by the keys they have, and must not join two batches with one another."""
    ids, words, nothing = [1, 2, 3], ["1", "2", "3"], [None] * 3
    turn: tuple[Any, ...] = (1, "", 0, True, [], ["w"] * 3, *Floors().stretches())
    own_indexes = {
        "below": {"message_ready"},
        "below by both": {"message_ready_by_both"},
        "claim": {"message_ready"},
        "claim by type": {"message_ready_by_type"},
        "claim by task": {"message_ready_by_task"},
        "claim by both": {"message_ready_by_both"},
        "derive": {"message_finished"},
        "forget": {"send_request_made", "send_request_pkey"},
        "forget silent": {"worker_pkey"},
        "newest": {"message_status"},
        "next due": {"message_due", "recheck_due"},
        "promote": {"message_due"},
        "purge": {"message_status", "checkpoint_pkey"},
        "redrive": {"message_status", "queue_name_key"},
        "recheck": {"recheck_due", "recheck_pkey"},
        "reclaim": {"recheck_pkey"},
        "remove": {"message_status", "checkpoint_pkey", "deleted_queue_pkey"},
        "retain": {"message_finished", "checkpoint_pkey"},
        "send_once": {"message_dedup", "send_request_pkey"},
        "trim": {"checkpoint_made", "checkpoint_of_history", "checkpoint_pkey"},
    }.get(verb, set())
    statement, arguments = {
        "ack": (ACK, (ids, ids, nothing)),
        "beat": (BEAT, (ids, ids, nothing, nothing)),
        "below": (PICK_ANY.below, (1, words, ids, ids, [])),
        "below by both": (PICK_BY_BOTH.below, (1, words, ids, ids, [], ["a", "b"], "t")),
        "cancel": (CANCEL, (1,)),
        "claim": (CLAIMS[PICK_ANY], (*turn, nothing, nothing, nothing, ids)),
        "claim by type": (CLAIMS[PICK_BY_TYPE], (*turn, ["a", "b"], nothing, nothing, nothing, ids)),
        "claim by task": (CLAIMS[PICK_BY_TASK], (*turn, "t", nothing, nothing, nothing, ids)),
        "claim by both": (CLAIMS[PICK_BY_BOTH], (*turn, ["a", "b"], "t", nothing, nothing, nothing, ids)),
        "derive": (DERIVE, (0,)),
        "fate": (FATE, (ids, ids)),
        "forget": (FORGET, (1000,)),
        "forget silent": (FORGET_SILENT, ()),
        "held": (COUNT_HELD, ()),
        "holdings": (HOLDINGS, (0, None, 1000)),
        "nack": (NACK, (ids, ids, nothing, [0.0] * 3, [True] * 3)),
        "newest": (NEWEST, (1, ["scheduled", "pending"])),
        "next due": (NEXT_DUE, ([], None, 1.0)),
        "promote": (PROMOTE, (1000, [], None)),
        "purge": (PURGE, (1, ["scheduled", "pending"], 0, 1000)),
        "recheck": (RECHECK, (60, [], 1000, None)),
        "reclaim": (RECLAIM, (1000, [], None)),
        "redrive": (REDRIVE, (1, 0, 1000, None, "default")),
        "release": (RELEASE, (ids, ids)),
        "remove": (REMOVE, ()),
        "repeated": (REPEATED, (["w"] * 3, ["a", "b", "c"], 1)),
        "retain": (RETAIN, (1000,)),
        "send_once": (SEND_ONCE, ([1], ids, words, [b""] * 3, *[ids] * 4, words, words, nothing, ids, ids, words, *[nothing] * 3)),
        "trim": (TRIM, (None, 3600, 1000)),
    }[verb]
    first = {"forget silent": (), "held": ("w",), "holdings": ("w",), "remove": (1000,)}.get(verb, (0,))
    whole = {
        "forget silent": {"queue", "worker"},
        "held": {"queue"},
        "holdings": {"queue"},
        "remove": {"deleted_queue"},
        "retain": {"queue"},
    }
    nodes = await explain(planning, statement, *first, *arguments)
    found = [node for node in reads(nodes) if goes_by_key(node) or node["Relation Name"] not in whole.get(verb, set())]
    assert found
    assert {node["Node Type"] for node in found} <= {"Index Scan", "Index Only Scan"}
    assert {node["Index Name"] for node in found} <= own_indexes | {
        "lease_pkey",
        "message_pkey",
        "queue_pkey",
        "lease_due",
        "lease_of_worker",
        "worker_draining",
    }
    assert [node for node in found if not goes_by_key(node)] == []
    joins = [node for node in nodes if "Join" in node["Node Type"] or node["Node Type"] == "Nested Loop"]
    assert {node["Node Type"] for node in joins} <= {"Nested Loop"}
    for join in joins:
        (inner,) = (plan for plan in join["Plans"] if plan["Parent Relationship"] == "Inner")
        with_one_row = verb == "cancel" or any(plan.get("CTE Name") in {"offer", "mine"} for plan in join["Plans"])
        assert with_one_row or inner["Node Type"] not in {"CTE Scan", "Materialize", "Function Scan"}, inner


@pytest.mark.scar(39)
async def test_to_forget_a_silent_worker_reads_no_lease_of_another(own_sql: Connection) -> None:
    await fill(own_sql, ready=0, leased=3000)
    await own_sql.execute(
        "insert into worker (worker_id, last_seen_at) select 'gone-' || n, now() - interval '2 days' from generate_series(1, 5) n"
    )
    nodes = await explain(own_sql, FORGET_SILENT)
    assert len(scans(nodes, "lease")) == 1
    assert rows_read(nodes, "lease") == 0


@pytest.mark.scar(42)
@pytest.mark.rule(12)
async def test_beats_settles_claims_and_reclaims_never_deadlock(start_server: Callable[..., Server], own_sql: Connection) -> None:
    apis = [start_server().api, start_server().api]
    apis[0].put_queue("busy", beat_interval=0, visibility_timeout=0.4, extension=0.4, max_attempts=1_000_000)
    apis[0].send("busy", *range(300))
    end = time.monotonic() + 4
    receipts: list[str] = []
    lock = threading.Lock()
    wanted = {"extended", "requeued", "released", "acked"}
    statuses: set[str] = set()

    def work(seed: int) -> None:
        choose = random.Random(seed)
        while time.monotonic() < end or (not wanted <= statuses and time.monotonic() < end + 60):
            api = choose.choice(apis)
            granted = [lease["receipt"] for lease in api.claim("busy", max_messages=50)]
            with lock:
                receipts.extend(granted)
                mine = choose.sample(receipts, min(60, len(receipts)))
                del receipts[:-1500]
            verb = choose.choice([api.beat, api.beat, api.nack, api.release, api.ack])
            answers = verb(*mine) if mine else []
            statuses.update(answer["status"] for answer in answers)
            if verb == api.ack:
                api.send("busy", *range(sum(answer["status"] == "acked" for answer in answers) or 1))

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(work, seed) for seed in range(8)]:
            future.result()
    assert "error" not in statuses
    assert wanted <= statuses
    assert await own_sql.fetchval("select deadlocks from pg_stat_database where datname = current_database()") == 0


@pytest.mark.timeout(300)
@pytest.mark.scar(46)
@pytest.mark.rule(1)
def test_replicas_whose_clocks_are_wrong_judge_leases_alike(start_server: Callable[..., Server]) -> None:
    right, ahead, behind = (start_server(wrong_clock_s=seconds).api for seconds in (0, 3600, -3600))
    for api in (right, ahead, behind):
        right.send("default", "work")
        lease = api.claim_one("default", visibility_timeout=60)
        assert lease["expires_in"] == 60
        for other in (right, ahead, behind):
            (beat,) = other.beat(lease["receipt"])
            assert beat["status"] in {"extended", "held"}
            assert 250 < beat["expires_in"] <= 300
        assert other.nack(lease["receipt"], delay=0.3)[0]["status"] == "requeued"
        again = behind.claim_one("default", wait=40, visibility_timeout=0.3)
        last = ahead.claim_one("default", wait=40, visibility_timeout=60)
        assert last["generation"] == again["generation"] + 1
        assert right.ack(last["receipt"])[0]["status"] == "acked"


@pytest.mark.scar(46)
@pytest.mark.rule(1)
def test_no_module_of_the_service_reads_the_wall_clock() -> None:
    sources = {path: path.read_text() for path in Path(app.__file__).parent.rglob("*.py")}
    assert len(sources) > 40
    assert [path.name for path, source in sources.items() if re.search(r"\btime\.time|datetime\.(now|utcnow|today)", source)] == []


@pytest.mark.rule(10)
def test_one_bad_row_stops_nothing(start_server: Callable[..., Server], database_url: str) -> None:
    """A trigger refuses one message whatever is done with it: as a row can that is damaged, or that meets a bug."""
    server = start_server()
    api = server.api
    bad, *good = api.send("default", *range(40))
    receipts = {lease["message"]["id"]: lease["receipt"] for lease in api.claim("default", max_messages=40)}
    refuse(database_url, "lease", f"new.message_id = {bad}", "update")
    answers = api.beat(*receipts.values())
    assert {receipt: answer["status"] for receipt, answer in zip(receipts.values(), answers, strict=True)} == {
        receipt: "error" if message_id == bad else "extended" for message_id, receipt in receipts.items()
    }
    refuse(database_url, "message", f"new.id = {bad}", "update")
    answers = api.ack(*receipts.values())
    assert [answer["status"] for answer in answers].count("error") == 1
    assert {api.message(message_id)["status"] for message_id in good} == {"completed"}
    assert api.message(bad)["status"] == "in_progress"
    assert "row set aside" in server.log


@pytest.mark.rule(10)
def test_one_bad_message_fails_only_the_call_that_sent_it(start_server: Callable[..., Server], database_url: str) -> None:
    api = start_server().api
    refuse(database_url, "message", "new.body #>> '{}' = 'poison'", "insert")

    def send(body: str) -> int:
        return api.client.post("/queues/default/messages", json={"messages": [{"body": "fine"}, {"body": body}]}).status_code

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(send, ["fine"] * 10 + ["poison"] + ["fine"] * 10))
    assert answers == [201] * 10 + [500] + [201] * 10
    assert len(api.claim("default", max_messages=100)) == 40


@pytest.mark.scar(35)
@pytest.mark.rule(10)
def test_a_lease_that_cannot_be_reclaimed_is_set_aside_and_the_rest_are_reclaimed(
    start_server: Callable[..., Server], database_url: str
) -> None:
    server = start_server()
    api = server.api
    ids = api.send("default", *range(30))
    delayed, *_ = api.send("default", *range(5), delay=600)
    api.claim("default", max_messages=30)
    refuse(database_url, "message", f"new.status = 'pending' and new.id in ({ids[11]}, {delayed})", "update")
    execute(database_url, "update lease set expires_at = now(), check_at = now()")
    execute(database_url, "update message set available_at = now() where status = 'scheduled'")
    until(lambda: sum(api.message(message_id)["status"] == "pending" for message_id in ids) == 29)
    until(lambda: api.message(str(int(delayed) + 4))["status"] == "pending")
    assert api.message(ids[11])["status"] == "in_progress"
    assert api.message(delayed)["status"] == "scheduled"
    assert server.log.count("row set aside") == 2
