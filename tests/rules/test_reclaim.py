"""Every lease that runs out is reclaimed, within milliseconds, by whichever replica lives."""

import random
import statistics
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import asyncpg
import pytest
from harness.api import Api, Json
from harness.server import Server


@pytest.mark.rule(8)
def test_a_lease_that_runs_out_is_redelivered_within_milliseconds(api: Api, queue: str) -> None:
    api.put_queue(queue, visibility_timeout=0.3, extension=0.3, beat_interval=0.1, max_attempts=100)
    api.send(queue, "work")
    delays = []
    api.claim_one(queue)
    for generation in range(2, 7):
        start = time.monotonic()
        assert api.claim_one(queue, wait=5)["generation"] == generation
        delays.append(time.monotonic() - start - 0.3)
    assert statistics.median(delays) < 0.05


@pytest.mark.scar(28)
@pytest.mark.rule(8)
def test_a_beaten_lease_lives_and_runs_out_once_the_beats_stop(api: Api, queue: str) -> None:
    api.put_queue(queue, visibility_timeout=0.3, extension=0.3, beat_interval=0.05)
    api.send(queue, "work")
    receipt = api.claim_one(queue)["receipt"]
    end = time.monotonic() + 1.2
    while time.monotonic() < end:
        assert api.beat(receipt)[0]["status"] in {"extended", "held"}
        assert api.claim(queue) == []
        time.sleep(0.02)
    assert api.claim_one(queue, wait=5)["generation"] == 2
    assert api.beat(receipt)[0]["status"] == "lost"


@pytest.mark.scar(4)
@pytest.mark.rule(8)
async def test_a_renewal_that_slips_in_before_the_reclaim_keeps_its_lease(
    api: Api, queue: str, sql: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    """Hold the lease's row while it is due, renew it, and let go: whoever waited or looked before must find it renewed."""
    (message_id,) = api.send(queue, "work")
    receipt = api.claim_one(queue, visibility_timeout=0.2)["receipt"]
    async with sql.transaction():
        await sql.execute("select from lease where message_id = $1 for update", int(message_id))
        await sql.execute("select pg_sleep(0.4)")
        await sql.execute("update lease set expires_at = now() + interval '1 minute' where message_id = $1", int(message_id))
    await sql.execute("select pg_sleep(0.2)")
    assert api.message(message_id)["status"] == "in_progress"
    assert api.message(message_id)["expired_count"] == 0
    assert api.beat(receipt)[0]["status"] == "extended"


@pytest.mark.rule(8)
def test_delayed_messages_are_promoted_on_time(api: Api, queue: str) -> None:
    start = time.monotonic()
    api.send(queue, "later", delay=0.4)
    api.send(queue, "sooner", delay=0.2)
    assert api.claim(queue) == []
    assert api.claim_one(queue, wait=5)["message"]["body"] == "sooner"
    assert 0.2 <= time.monotonic() - start < 0.35
    assert api.claim_one(queue, wait=5)["message"]["body"] == "later"
    assert 0.4 <= time.monotonic() - start < 0.55


@pytest.mark.rule(8)
def test_a_restart_re_arms_nothing(start_server: Callable[..., Server]) -> None:
    first = start_server()
    api = first.api
    api.send("default", "leased")
    api.claim_one("default", visibility_timeout=0.5)
    api.send("default", "delayed", delay=0.5)
    first.kill()
    time.sleep(0.6)
    api = start_server().api
    delivered = {lease["message"]["body"] for lease in (api.claim_one("default", wait=2), api.claim_one("default", wait=2))}
    assert delivered == {"leased", "delayed"}


@pytest.mark.rule(8)
def test_any_replica_reclaims_what_another_granted(start_server: Callable[..., Server]) -> None:
    one, two = start_server(), start_server()
    one.api.send("default", *range(20))
    one.api.claim("default", max_messages=20, visibility_timeout=1.5)
    one.kill()
    start = time.monotonic()
    api = two.api
    redelivered = Counter[str]()
    while redelivered.total() < 20:
        redelivered.update(lease["message"]["id"] for lease in api.claim("default", wait=10, max_messages=20, visibility_timeout=60))
    assert time.monotonic() - start < 1.7
    assert set(redelivered.values()) == {1}


@pytest.mark.rule(8)
def test_two_replicas_reclaim_each_lease_once_and_each_replicas_wakes_the_others_callers(start_server: Callable[..., Server]) -> None:
    one, two = start_server(), start_server()
    ids = one.api.send("default", *range(200), max_attempts=10)
    one.api.claim("default", max_messages=200, visibility_timeout=0.5)

    def redelivered(server: Server) -> list[str]:
        api, found = server.api, []
        while leases := api.claim("default", wait=1.5, max_messages=10, visibility_timeout=60):
            found += [lease["message"]["id"] for lease in leases]
        return found

    with ThreadPoolExecutor(2) as pool:
        shares = list(pool.map(redelivered, (one, two)))
    assert sorted(shares[0] + shares[1], key=int) == ids
    assert {two.api.message(each)["expired_count"] for each in ids} == {1}


@pytest.mark.rule(6, 8)
def test_acks_that_race_the_expiry_are_final_and_everything_else_comes_again(start_server: Callable[..., Server]) -> None:
    """500 leases of 1 s, each acked at a random moment between 0.9 and 1.1 s."""
    server = start_server()
    api = server.api
    api.put_queue("race", visibility_timeout=1, extension=1, beat_interval=0.4, max_attempts=10)
    ids = set(api.send("race", *range(500)))
    # A competitor takes whatever runs out, as any second worker would.
    leases = api.claim("race", max_messages=500)
    granted = time.monotonic()
    moments = [random.uniform(0.9, 1.1) for _ in leases]
    again: list[str] = []

    def compete() -> None:
        while time.monotonic() < granted + 2.5:
            again.extend(
                lease["message"]["id"] for lease in api.claim("race", "competitor", wait=0.2, max_messages=50, visibility_timeout=120)
            )

    def ack(each: tuple[float, Json]) -> str:
        moment, lease = each
        time.sleep(max(0.0, granted + moment - time.monotonic()))
        return str(api.ack(lease["receipt"])[0]["status"])

    with ThreadPoolExecutor(65) as pool:
        competing = pool.submit(compete)
        answers = list(pool.map(ack, zip(moments, leases, strict=True)))
        competing.result()

    acked = {lease["message"]["id"] for lease, answer in zip(leases, answers, strict=True) if answer == "acked"}
    assert set(answers) <= {"acked", "lost"}
    assert acked, "no ack came in time: the race was not one"
    assert len(again) == len(set(again))
    assert acked.isdisjoint(again)
    assert acked | set(again) == ids
    for message_id in acked:
        assert api.message(message_id)["status"] == "completed"
    for message_id in again:
        assert api.message(message_id)["status"] == "in_progress"
    assert {lease["message_id"] for lease in api.call("GET", "/leases?queue=race&limit=1000")["items"]} == set(again)


@pytest.mark.scar(29)
@pytest.mark.rule(8)
def test_a_thousand_leases_that_run_out_together_are_all_redelivered_to_parked_claims(
    start_server: Callable[..., Server], record_testsuite_property: Callable[[str, object], None]
) -> None:
    server = start_server()
    api = server.api
    api.send("default", *range(1000))
    leases = api.claim("default", max_messages=1000, visibility_timeout=2)
    expiry = time.monotonic() + leases[0]["expires_in"]
    arrivals: list[float] = []

    def take(_: int) -> None:
        while got := api.claim("default", wait=4, max_messages=25, visibility_timeout=120):
            arrivals.extend([time.monotonic() - expiry] * len(got))

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(take, range(20)))
    assert len(arrivals) == 1000
    spread = f"first {min(arrivals):.3f} s, median {statistics.median(arrivals):.3f} s, last {max(arrivals):.3f} s"
    record_testsuite_property("from expiry to redelivery", spread)
    assert max(arrivals) < 1
