"""Faults that touch one row, one caller or one queue stay there."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg
import httpx
import psutil
import pytest
from harness.api import Api
from harness.holding import holding, other_falls_to_a_deadlock, until_somebody_waits, waiting_for_a_lock
from harness.metrics import value
from harness.operating import RARELY, pause, resume
from harness.postgres import execute, number, transactions_a_second
from harness.problems import assert_problem
from harness.removals import LARGEST, removals_held
from harness.server import Server
from harness.wait import until


def refuse_lease(database_url: str, message_id: str) -> None:
    """Make Postgres refuse to lease one message, as a row can be that is damaged."""
    execute(database_url, "create function refuse() returns trigger language plpgsql as $$ begin raise exception 'refused'; end $$")
    condition = f"when (new.message_id = {message_id})"
    execute(database_url, f"create trigger refuse before insert on lease for each row {condition} execute function refuse()")


@pytest.mark.scar(34, 35)
@pytest.mark.rule(10)
@pytest.mark.parametrize("batch", [1, 100])
def test_a_message_that_cannot_be_leased_is_set_aside_and_the_rest_is_delivered(
    start_server: Callable[..., Server], database_url: str, batch: int
) -> None:
    server = start_server()
    ids = server.api.send("default", *range(20))
    refuse_lease(database_url, ids[3])
    delivered: list[str] = []
    while len(delivered) < 19:
        leases = server.api.claim("default", max_messages=batch, wait=40)
        assert leases
        delivered += [lease["message"]["id"] for lease in leases]
    assert sorted(delivered, key=int) == ids[:3] + ids[4:]
    assert server.api.message(ids[3])["status"] == "pending"
    assert server.log.count("row set aside") == 1
    assert "Traceback" not in server.log


@pytest.mark.rule(10)
def test_where_postgres_refuses_whatever_is_ready_a_claim_that_does_not_wait_is_answered(
    start_server: Callable[..., Server], database_url: str
) -> None:
    server = start_server()
    ids = server.api.send("default", *range(20))
    refuse_lease(database_url, f"any (array[{', '.join(ids)}])")
    assert server.api.claim("default", max_messages=20) == []
    assert 0 < server.log.count("row set aside") < len(ids)


@pytest.mark.scar(35)
@pytest.mark.rule(10)
def test_a_message_that_has_a_lease_though_it_is_ready_is_set_aside_too(start_server: Callable[..., Server], database_url: str) -> None:
    server = start_server()
    leased, sound = server.api.send("default", "leased", "sound")
    server.api.claim_one("default", "one")
    execute(database_url, "update message set status = 'pending', ended_by = 'released' where id = $1", int(leased))
    assert [lease["message"]["id"] for lease in server.api.claim("default", "other", max_messages=2)] == [sound]
    assert server.log.count("row set aside") == 1


@pytest.mark.scar(34, 35)
@pytest.mark.rule(10)
def test_a_message_that_cannot_be_leased_slows_those_before_it_little_and_nobody_is_told_that_none_is_ready(
    start_server: Callable[..., Server], database_url: str
) -> None:
    server = start_server()
    ids = server.api.send("default", *range(1000))
    refuse_lease(database_url, ids[400])

    def drain(worker: str) -> list[list[str]]:
        answers = []
        while leases := server.api.claim("default", worker, max_messages=1000):
            answers.append([lease["message"]["id"] for lease in leases])
        return answers

    with ThreadPoolExecutor(2) as pool:
        answers = [answer for answers in pool.map(drain, ("one", "other")) for answer in answers]
    assert sorted((each for answer in answers for each in answer), key=int) == ids[:400] + ids[401:]
    assert len(answers) <= 20  # each has half of what is left before it
    assert server.log.count("row set aside") == 1


@pytest.mark.scar(35)
@pytest.mark.rule(10)
def test_a_claim_that_is_refused_after_some_leases_leaves_the_rest_to_those_who_wait(
    start_server: Callable[..., Server], database_url: str
) -> None:
    """One key has more than its half of the first statement; what the second picks of it is refused, and the call ends with what it has."""
    server = start_server(sweep_interval=RARELY)
    pause(server.api, "default")
    with ThreadPoolExecutor(2) as pool:
        calls = []
        for wanted in (100, 1):
            calls.append(pool.submit(server.api.claim, "default", f"worker-{wanted}", max_messages=wanted, wait=10))
            until(lambda: value(server.api, "leasebeat_parked_claims") == len(calls))
        server.api.send("default", "only", fairness_key="a")
        ids = server.api.send("default", *range(200), fairness_key="b")
        refuse_lease(database_url, ids[74])
        resume(server.api, "default")
        first, second = (len(call.result()) for call in calls)
    assert (first < 75, second) == (True, 1)
    assert "row set aside" not in server.log


@pytest.mark.rule(10, 14)
async def test_claims_repeated_together_with_one_whose_lease_is_damaged_get_theirs(
    start_server: Callable[..., Server], database_url: str
) -> None:
    server = start_server()
    api = server.api
    api.send("default", *range(3))
    leases = {name: api.claim_one("default", claim_id=name) for name in ("first", "damaged", "sound")}
    api.send("default", "ready")
    damage = "update message set attempts_before = -9223372036854775808 where id = $1"  # what is left of its count is no number then
    await asyncio.to_thread(execute, database_url, damage, int(leases["damaged"]["message"]["id"]))

    def repeat(name: str) -> httpx.Response:
        return api.client.post("/queues/default/leases", json={"worker_id": "worker", "claim_id": name, "wait": 20})

    async with holding(database_url, "lock table lease in access exclusive mode") as sql:
        with ThreadPoolExecutor(3) as pool:
            calls = {"first": pool.submit(repeat, "first")}
            await until_somebody_waits(sql)
            calls |= {name: pool.submit(repeat, name) for name in ("damaged", "sound")}
            await asyncio.to_thread(until, lambda: value(api, "leasebeat_parked_claims") == 3)
            await sql.execute("commit")
            answers = {name: call.result() for name, call in calls.items()}
    assert_problem(answers["damaged"], 500, "row-refused")
    for name in ("first", "sound"):
        assert [lease["receipt"] for lease in answers[name].json()["leases"]] == [leases[name]["receipt"]]
    assert api.claim_one("default")["message"]["body"] == "ready"
    assert ("verb=repeat" in server.log, "verb=claim" in server.log) == (True, False)
    assert "damaged" not in server.log


@pytest.mark.scar(31, 35)
@pytest.mark.rule(10, 14)
def test_a_claim_for_which_postgres_is_full_takes_nothing_from_those_it_was_tried_with(
    start_server: Callable[..., Server], database_url: str
) -> None:
    """All are refused together; then each is tried by itself, and the first has its lease before the last fails for no row's sake."""
    server = start_server()
    execute(database_url, "create sequence refusals")
    execute(
        database_url,
        "create function refuse() returns trigger language plpgsql as $$ begin "
        "raise exception 'refused' using errcode = case nextval('refusals') when 1 then 'raise_exception' else 'disk_full' end; end $$",
    )
    condition = "when (new.worker_id = 'last')"
    execute(database_url, f"create trigger refuse before insert on lease for each row {condition} execute function refuse()")
    with ThreadPoolExecutor(2) as pool:
        calls = []
        for worker in ("first", "last"):
            calls.append(pool.submit(server.api.client.post, "/queues/default/leases", json={"worker_id": worker, "wait": 30}))
            until(lambda: value(server.api, "leasebeat_parked_claims") == len(calls))
        server.api.send("default", "one", "two")
        first, last = (call.result() for call in calls)
    assert [lease["message"]["body"] for lease in first.json()["leases"]] == ["one"]
    assert_problem(last, 503, "database-unavailable")
    assert len(server.api.call("GET", "/leases")["items"]) == 1


@pytest.mark.rule(13, 14)
def test_one_claim_id_names_different_leases_on_different_queues(api: Api, queue: str) -> None:
    api.put_queue(f"{queue}-2")
    api.send(queue, "one")
    api.send(f"{queue}-2", "two")
    assert api.claim_one(queue, claim_id="same")["message"]["body"] == "one"
    assert api.claim_one(f"{queue}-2", claim_id="same")["message"]["body"] == "two"
    api.call("DELETE", f"/queues/{queue}-2?force=true", expect=204)


@pytest.mark.rule(14)
def test_a_claim_id_whose_lease_ran_out_grants_nothing_until_it_is_reclaimed(api: Api, queue: str, run_out: Callable[[str], None]) -> None:
    first, _ = api.send(queue, "one", "two")
    assert api.claim_one(queue, claim_id="same")["message"]["id"] == first
    run_out(first)
    assert api.claim(queue, claim_id="same") == []
    assert api.claim_one(queue, claim_id="other")["message"]["body"] == "two"


@pytest.mark.rule(14)
def test_many_claim_ids_repeated_on_two_replicas_at_once_are_all_answered(start_server: Callable[..., Server]) -> None:
    apis = [start_server().api, start_server().api]
    for round_ in range(8):
        apis[0].send("default", *range(40))
        calls = [(api, f"{round_}-{n}") for api, numbers in zip(apis, (range(40), reversed(range(40))), strict=True) for n in numbers]
        with ThreadPoolExecutor(80) as pool:
            answers = list(pool.map(lambda call: (call[1], call[0].claim("default", claim_id=call[1])), calls))
        held = Counter(lease["receipt"] for _, leases in answers for lease in leases)
        by_claim: dict[str, set[str]] = {}
        for claim_id, leases in answers:
            by_claim.setdefault(claim_id, set()).update(lease["receipt"] for lease in leases)
        assert max(map(len, by_claim.values())) == 1
        assert sum(map(len, by_claim.values())) == len(held)
        while apis[0].claim("default", max_messages=100):
            pass


@pytest.mark.rule(11, 12)
async def test_deleting_a_large_queue_delays_nobody_and_leaves_nothing(start_server: Callable[..., Server], database_url: str) -> None:
    api = start_server().api
    api.put_queue("large")
    api.put_queue("busy", beat_interval=0)
    api.send("busy", "work")
    receipt = api.claim_one("busy")["receipt"]
    api.send("large", *range(10))
    stale = [lease["receipt"] for lease in api.claim("large", max_messages=5)]
    fill = (
        "insert into message (shard, queue_id, body, priority, fairness_key, status) "
        "select 0, id, '1', 0, '', 'pending' from queue, generate_series(1, 100000) where name = 'large'"
    )
    await asyncio.to_thread(execute, database_url, fill)
    async with removals_held(database_url) as sql:
        api.call("DELETE", "/queues/large?force=true", expect=204)
        assert {answer["status"] for verb in (api.beat, api.ack, api.nack, api.release) for answer in verb(*stale)} == {"unknown"}
        await until_somebody_waits(sql)
        assert api.beat(receipt)[0]["status"] == "extended"
        api.send("busy", "more")
        assert api.claim_one("busy")["message"]["body"] == "more"
    async with asyncio.timeout(60):
        while await asyncio.to_thread(number, database_url, "select count(*) from message") > 2:
            assert api.beat(receipt)[0]["status"] == "extended"
            await asyncio.sleep(0.05)  # the count reads what is still there: all the time, it would hold up the removals
    assert await asyncio.to_thread(number, database_url, LARGEST) <= 1000, "all is removed by and by"
    api.put_queue("large")
    assert api.claim("large") == []


@pytest.mark.rule(11)
async def test_readyz_answers_while_operators_calls_wait(start_server: Callable[..., Server], database_url: str) -> None:
    server = start_server()
    server.api.put_queue("held")
    answered_meanwhile, codes = False, {503}
    while not answered_meanwhile or codes != {200}:  # they wait for five seconds at most, which a machine may stand still for
        assert codes <= {200, 503}
        async with holding(database_url, "select from queue where name = 'held' for update") as sql:
            with ThreadPoolExecutor(3) as pool:
                waiting = [pool.submit(server.api.client.put, "/queues/held", json={}) for _ in range(3)]
                await until_somebody_waits(sql, 2)
                answered_meanwhile = server.ready and not any(call.done() for call in waiting)
                await sql.execute("commit")
                codes = {call.result().status_code for call in waiting}


@pytest.mark.rule(11)
async def test_queues_are_read_while_those_who_change_them_wait_and_none_waits_for_long(
    start_server: Callable[..., Server], database_url: str
) -> None:
    api = start_server().api
    answered_meanwhile = False
    while not answered_meanwhile:  # a machine may stand still for as long as they wait
        async with holding(database_url, "select from queue where name = 'default' for update") as sql:
            with ThreadPoolExecutor(3) as pool:
                waiting = [pool.submit(api.client.post, "/queues/default/pause", timeout=60) for _ in range(3)]
                await until_somebody_waits(sql, 2)
                assert api.client.get("/queues/default").status_code == 200
                assert api.client.get("/queues").status_code == 200
                answered_meanwhile = not any(call.done() for call in waiting)
                refused = [call.result() for call in waiting]
        assert {answer.json()["code"] for answer in refused} == {"database-unavailable"}
    assert api.call("GET", "/queues/default")["paused"] is False


@pytest.mark.rule(12)
async def test_a_change_of_a_queue_that_falls_to_a_deadlock_is_carried_out_all_the_same(
    start_server: Callable[..., Server], database_url: str
) -> None:
    api = start_server().api
    api.put_queue("dead")
    config = {"dead_letter_queue": "dead", "max_attempts": 7}
    fell, code = False, 503
    while not fell or code != 200:  # a machine may stand still for longer than the call waits, or looks for deadlocks
        assert code in {200, 503}
        async with holding(database_url, "select from queue where name = 'default' for update") as sql:
            with ThreadPoolExecutor(1) as pool:
                putting = pool.submit(api.client.put, "/queues/default", json=config)
                await waiting_for_a_lock(sql, "insert into queue")
                fell = await other_falls_to_a_deadlock(sql, "select from queue where name = 'dead' for update")
                await sql.execute("commit")
                code = putting.result().status_code
    assert api.call("GET", "/queues/default")["max_attempts"] == 7


async def test_a_replica_that_freezes_as_it_changes_a_queue_holds_its_claims_up_for_seconds_only(
    start_server: Callable[..., Server], database_url: str
) -> None:
    frozen, other = (start_server() for _ in range(2))
    other.api.send("default", "work")
    async with holding(database_url, "select from queue where name = 'default' for share") as sql:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(frozen.api.client.post, "/queues/default/pause", timeout=60)
            await waiting_for_a_lock(sql, "update queue")
            frozen.process.send_signal(signal.SIGSTOP)
            try:
                await sql.execute("commit")
                assert len(other.api.claim("default")) == 1
            finally:
                frozen.process.send_signal(signal.SIGCONT)


@pytest.mark.rule(7, 10)
def test_a_postgres_that_only_reads_is_unavailable_and_no_row_is_blamed(start_server: Callable[..., Server], database_url: str) -> None:
    first = start_server()
    (message_id,) = first.api.send("default", "work")
    receipt = first.api.claim_one("default")["receipt"]
    name = database_url.rpartition("/")[2]
    execute(database_url, f"alter database {name} set default_transaction_read_only = on")
    calls = [
        ("/queues/default/messages", {"messages": [{"body": 1}] * 100}),
        ("/queues/default/leases", {"worker_id": "w"}),
        *((path, {"leases": [{"receipt": receipt}]}) for path in ("/beat", "/ack", "/nack", "/release")),
    ]
    with Server(database_url) as server:
        for path, body in calls:
            answer = server.api.client.post(path, json=body)
            assert (answer.status_code, answer.json()["code"]) == (503, "database-unavailable"), path
        assert "row set aside" not in server.log
    # Those of its sessions that are younger only read, too.
    acks = {"leases": [{"receipt": receipt}]}
    until(lambda: first.api.client.post("/ack", json=acks).status_code == 200)
    assert first.api.message(message_id)["status"] == "completed"


async def test_a_due_lease_in_another_sessions_hands_does_not_make_the_timer_spin(
    start_server: Callable[..., Server], database_url: str
) -> None:
    server = start_server()
    server.api.send("default", "work")
    server.api.claim("default", visibility_timeout=0.1)

    connection = await asyncpg.connect(database_url)
    try:
        async with connection.transaction():
            await connection.execute("select from lease for update")
            await connection.execute("select pg_sleep(1.2)")
            assert await transactions_a_second(connection) < 60
    finally:
        await connection.close()
    assert server.api.claim_one("default", wait=40)["generation"] == 2


@pytest.mark.rule(11)
def test_a_claim_parked_on_a_queue_that_is_deleted_hears_of_it_or_goes_on_with_its_successor(api: Api, queue: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(api.client.post, f"/queues/{queue}/leases", json={"worker_id": "w", "wait": 30})
        until(lambda: value(api, "leasebeat_parked_claims") >= 1)
        api.call("DELETE", f"/queues/{queue}?force=true", expect=204)
        assert (waiting.result().status_code, waiting.result().json()["code"]) == (404, "queue-not-found")
    for turn in range(2):
        name = f"{queue}-{turn}"
        api.put_queue(name)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(api.client.post, f"/queues/{name}/leases", json={"worker_id": "w", "wait": 30})
            until(lambda: value(api, "leasebeat_parked_claims") >= 1)
            api.call("DELETE", f"/queues/{name}?force=true", expect=204)
            api.put_queue(name)
            api.send(name, turn)
            answer = waiting.result()
        assert answer.status_code in {200, 404}
        if answer.status_code == 200:
            assert [lease["message"]["body"] for lease in answer.json()["leases"]] == [turn]
        api.call("DELETE", f"/queues/{name}?force=true", expect=204)


@pytest.mark.rule(2, 14)
def test_a_claim_id_is_its_workers_own(api: Api, queue: str) -> None:
    api.send(queue, "one", "two")
    alice, bob = (api.claim_one(queue, worker, claim_id="1") for worker in ("alice", "bob"))
    assert alice["receipt"] != bob["receipt"]
    assert api.claim_one(queue, "alice", claim_id="1")["receipt"] == alice["receipt"]


@pytest.mark.scar(1)
@pytest.mark.rule(6)
def test_a_stale_workers_result_outlasts_its_error(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, "work")
    stale = api.claim_one(queue, visibility_timeout=0.05)["receipt"]
    assert api.claim_one(queue, wait=40)["generation"] == 2
    reports = []
    for verb, report in ((api.nack, {"error": "E"}), (api.ack, {"output": "PRECIOUS"}), (api.nack, {"error": "F"})):
        assert verb(stale, **report)[0]["status"] == "lost"
        reports.append([each["facts"] for each in api.checkpoints(message_id) if each["kind"] == "late_report"])
    assert reports[0] == [{"verb": "nack", "error": "E"}]
    assert reports[1] == reports[2] == [{"verb": "ack", "output": "PRECIOUS"}]


@pytest.mark.rule(5)
@pytest.mark.parametrize("config", [{"extension_enabled": False}, {"max_lease": 120}])
def test_where_no_beat_can_extend_the_next_one_is_not_asked_for(api: Api, queue: str, config: dict[str, object]) -> None:
    api.put_queue(queue, beat_interval=0, **config)
    api.send(queue, "work")
    receipt = api.claim_one(queue)["receipt"]
    for _ in range(2):
        (beat,) = api.beat(receipt)
        assert beat["next_beat_in"] == beat["expires_in"] > 30


def test_beats_that_share_a_statement_keep_the_detail_of_the_furthest(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, "work")
    receipt = api.claim_one(queue)["receipt"]
    beats = [{"receipt": receipt, "progress": progress, "detail": progress} for progress in (5, 3, 9, 1)]
    api.call("POST", "/beat", {"leases": beats})
    message = api.message(message_id)
    assert (message["progress"], message["detail"]) == (9, 9)


def postmaster(data: Path) -> int | None:
    """Return the process id of an embedded Postgres, None while it starts."""
    lines = file.read_text().split() if (file := data / "postgres" / "postmaster.pid").exists() else []
    return int(lines[0]) if lines else None


@pytest.mark.rule(7, 8)
def test_the_embedded_postgres_is_started_anew_when_it_dies(tmp_path: Path) -> None:
    with Server(None, data_dir=tmp_path) as server:
        server.api.send("default", "kept")
        first = postmaster(tmp_path)
        assert first is not None
        os.kill(first, signal.SIGKILL)
        until(lambda: postmaster(tmp_path) not in {None, first})
        until(lambda: server.ready)
        assert server.api.claim_one("default", wait=40)["message"]["body"] == "kept"
        assert server.stop() == 0


@pytest.mark.rule(7)
def test_while_postgres_hangs_readyz_says_so_soon_and_all_goes_on_afterwards(tmp_path: Path) -> None:
    with Server(None, data_dir=tmp_path) as server:
        server.api.send("default", "kept")
        first = postmaster(tmp_path)
        assert first is not None
        hanging = [psutil.Process(first), *psutil.Process(first).children(recursive=True)]
        for process in hanging:
            process.suspend()
        for _ in range(2):
            answer = server.api.client.get("/readyz", timeout=60)
            assert (answer.status_code, answer.json()["database"]) == (503, "unreachable")
        assert server.api.client.get("/healthz", timeout=60).status_code == 200
        for process in hanging:
            process.resume()
        until(lambda: server.ready)
        assert server.api.claim_one("default", wait=40)["message"]["body"] == "kept"
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("variable", "setting"),
    [
        ("DATABASE_URL", "mysql://u:hush@h/d"),
        ("DATABASE_URL", "nonsense"),
        ("DATABASE_URL", "postgresql://u:hush@[bad/x"),
        ("LEASEBEAT_PORT", "abc"),
        ("LEASEBEAT_POSTGRES_BIN", "/nope"),
    ],
)
def test_a_wrong_setting_is_said_in_a_line_without_its_value(variable: str, setting: str) -> None:
    (line,) = refusal("serve", **{variable: setting}).splitlines()
    assert line.startswith("leasebeat-server: a setting is wrong: ")


@pytest.mark.parametrize("command", [["migrate"], ["serve", "--migrate"]], ids=" ".join)
def test_a_database_that_is_not_there_to_be_migrated_is_said_in_a_line(command: list[str]) -> None:
    said = refusal(*command, DATABASE_URL="postgresql://u:hush@127.0.0.1:1/d")
    assert said.endswith("\nleasebeat-server: the database does not answer: ConnectionRefusedError\n")
    assert "Traceback" not in said


def refusal(*command: str, **variables: str) -> str:
    """Return what a command that fails says, which has no password in it."""
    environment = {**os.environ, **variables}
    done = subprocess.run([sys.executable, "-m", "app", *command], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "hush" not in done.stderr
    return done.stderr


@pytest.mark.rule(11)
async def test_beats_do_not_wait_for_sends_and_settles_that_are_stuck(start_server: Callable[..., Server], database_url: str) -> None:
    """Every send waits for a queue's row that is locked, and every connection that is not the beats' own is taken."""
    api = start_server().api
    for n in range(12):
        api.put_queue(f"stuck-{n}")
    api.send("default", "work")
    receipt = api.claim_one("default")["receipt"]
    connection = await asyncpg.connect(database_url)
    try:
        async with connection.transaction():
            await connection.execute("select from queue where name like 'stuck-%' for update")
            await connection.execute("lock table message in access exclusive mode")
            waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
            with ThreadPoolExecutor(40) as pool:
                calls = [pool.submit(api.claim, f"stuck-{n}") for n in range(12)] + [pool.submit(api.send, "stuck-0", n) for n in range(20)]
                while await connection.fetchval(waiting) < 8:
                    await connection.execute("select pg_sleep(0.02), pg_stat_clear_snapshot()")
                for _ in range(5):
                    begin = time.monotonic()
                    assert api.beat(receipt)[0]["status"] in {"extended", "held"}
                    assert time.monotonic() - begin < 20
                assert not any(call.done() for call in calls)
                await connection.execute("rollback")
                for call in calls:
                    call.result()
    finally:
        await connection.close()
