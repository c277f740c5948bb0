"""The recovery sweep (seed 003): what one does, and totals that count each once."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.api import Api, Json
from harness.operating import RARELY, sweep_that_it_begins_with
from harness.postgres import execute, number
from harness.problems import assert_problem
from harness.server import Server
from harness.wait import until

NOTHING = {"expired_found": 0, "recovered": 0, "failed": 0, "checkpoints_created": 0, "errors": 0}


def sweep(api: Api) -> Json:
    """Sweep, and return what it did but for how long that took."""
    answer = api.call("POST", "/recovery/sweep", {})
    assert answer.pop("scan_duration_ms") > 0
    return answer


def run_out_unseen(database_url: str) -> None:
    """Make all leases run out, with no timer knowing of it."""
    execute(database_url, "update lease set expires_at = now(), check_at = now()")


def test_recovery_sweep_expired_lease_detection(start_server: Callable[..., Server], database_url: str) -> None:
    api = start_server(sweep_interval=RARELY).api
    sweep_that_it_begins_with(api)
    assert sweep(api) == NOTHING
    once, often, more, alive = api.send("default", 0, max_attempts=1) + api.send("default", *range(3))
    api.claim("default", max_messages=3)
    run_out_unseen(database_url)
    api.claim("default")
    assert sweep(api) == {"expired_found": 3, "recovered": 2, "failed": 1, "checkpoints_created": 3, "errors": 0}
    states = {each: api.message(each)["status"] for each in (once, often, more, alive)}
    assert states == {once: "failed", often: "pending", more: "pending", alive: "in_progress"}
    assert sweep(api) == NOTHING
    totals = api.call("GET", "/recovery")
    assert totals | {"total_expired": 3, "total_recovered": 2, "total_failed": 1, "total_checkpoints": 3, "total_errors": 0} == totals
    assert totals["recovery_rate"] == pytest.approx(2 / 3)
    assert totals["is_running"] is True
    assert totals["last_scan"] | NOTHING == totals["last_scan"]
    assert totals["last_scan"]["ended_at"] <= totals["as_of"]


def test_error_checkpoint_creation(start_server: Callable[..., Server], database_url: str) -> None:
    api = start_server(sweep_interval=RARELY).api
    sweep_that_it_begins_with(api)
    (message_id,) = api.send("default", "work", max_attempts=2)
    for retry in (1, 2):
        lease = api.claim_one("default", "worker-7")
        api.beat(lease["receipt"], progress=1)
        run_out_unseen(database_url)
        assert sweep(api)["checkpoints_created"] == 1
        newest = api.checkpoints(message_id)[0]
        assert (newest["kind"], newest["reason"], newest["generation"]) == ("error_boundary", "lease_expired", retry)
        facts = newest["facts"]
        expected = {"error": "Lease expired", "retry_count": retry, "max_retries": 2, "will_retry": retry < 2, "worker_id": "worker-7"}
        assert facts | expected == facts
        assert facts["acquired_at"] <= facts["last_heartbeat"] <= facts["expires_at"]
    assert len(api.checkpoints(message_id)) == 2


@pytest.mark.scar(35)
@pytest.mark.rule(10)
def test_a_row_that_postgres_refuses_is_an_error_and_the_rest_is_recovered(start_server: Callable[..., Server], database_url: str) -> None:
    api = start_server(sweep_interval=RARELY).api
    sweep_that_it_begins_with(api)
    ids = api.send("default", *range(5))
    api.claim("default", max_messages=5)
    run_out_unseen(database_url)
    execute(database_url, "create function refuse() returns trigger language plpgsql as $$ begin raise exception 'refused'; end $$")
    condition = f"when (new.id = {ids[2]})"
    execute(database_url, f"create trigger refuse before update on message for each row {condition} execute function refuse()")
    assert sweep(api) == {"expired_found": 4, "recovered": 4, "failed": 0, "checkpoints_created": 4, "errors": 1}
    assert api.call("GET", "/recovery")["total_errors"] == 1


@pytest.mark.scar(33)
@pytest.mark.rule(8)
def test_each_lease_is_counted_once_however_many_sweep(start_server: Callable[..., Server], database_url: str) -> None:
    apis = [start_server().api for _ in range(2)]
    apis[0].send("default", *range(80), max_attempts=100)
    apis[0].send("default", *range(40), max_attempts=1)
    for api in apis:
        assert len(api.claim("default", max_messages=60)) == 60

    def sweep_on_demand(api: Api) -> None:
        until_ = time.monotonic() + 1.5
        while time.monotonic() < until_:
            sweep(api)

    run_out_unseen(database_url)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(sweep_on_demand, apis * 2))
    until(lambda: all(api.call("GET", "/recovery")["total_expired"] >= 120 for api in apis))
    for api in apis * 2:
        totals = api.call("GET", "/recovery")
        assert totals | {"total_expired": 120, "total_recovered": 80, "total_failed": 40, "total_checkpoints": 120} == totals
        assert totals["recovery_rate"] == pytest.approx(2 / 3)


@pytest.mark.scar(33)
def test_each_scan_is_counted_once_and_totals_survive_restarts(start_server: Callable[..., Server], database_url: str) -> None:
    first = start_server(sweep_interval=RARELY)
    assert first.api.call("GET", "/recovery")["recovery_rate"] is None
    scans = sweep_that_it_begins_with(first.api)
    for _ in range(7):
        sweep(first.api)
    assert first.api.call("GET", "/recovery")["total_scans"] == scans + 7
    first.api.send("default", 1)
    first.api.claim("default")
    run_out_unseen(database_url)
    assert sweep(first.api)["expired_found"] == 1  # not read, so that only the shutdown brings it into the totals
    assert first.stop() == 0
    totals = start_server(sweep_interval=RARELY).api.call("GET", "/recovery")
    assert totals["total_expired"] == totals["total_recovered"] == 1
    assert scans + 8 <= totals["total_scans"] <= scans + 8 + 3  # and what the timers did when they started, or were woken
    assert totals["recovery_rate"] == 1


def test_what_one_replica_did_reaches_the_others_by_itself(start_server: Callable[..., Server], database_url: str) -> None:
    one, two = (start_server(sweep_interval=RARELY).api for _ in range(2))
    for each in (one, two):
        sweep_that_it_begins_with(each)
    one.send("default", 1)
    one.claim("default")
    run_out_unseen(database_url)
    assert sweep(one)["expired_found"] == 1
    until(lambda: two.call("GET", "/recovery")["total_expired"] == 1, pause=0.1)


@pytest.mark.rule(13)
def test_a_sweep_takes_nothing_but_an_empty_object(api: Api) -> None:
    assert_problem(api.client.post("/recovery/sweep", json={"dry_run": True}), 422, "invalid-request")
    assert_problem(api.client.post("/recovery/sweep", content=b"{}"), 415, "unsupported-media-type")


@pytest.mark.scar(33)
def test_what_a_sweep_found_is_kept_if_its_replica_is_killed_soon_after(start_server: Callable[..., Server], database_url: str) -> None:
    """What is found of nothing is saved every five seconds. A busy machine delays some of these, a slow service all but the first."""
    server = start_server()

    def saved_after(wanted: int) -> float:
        server.api.send("default", *range(20), max_attempts=1)
        server.api.claim("default", max_messages=20, visibility_timeout=0.1)
        began = time.monotonic()
        until(lambda: number(database_url, "select expired from recovery") == wanted)
        return time.monotonic() - began

    saved_after(20)
    expired = next((wanted for wanted in range(40, 220, 20) if saved_after(wanted) < 4), None)
    assert expired is not None
    server.kill()
    assert start_server().api.call("GET", "/recovery")["total_expired"] == expired
