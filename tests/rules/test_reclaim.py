"""Every lease that runs out is reclaimed, within milliseconds, by whichever replica lives."""

import random
import statistics
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter

import anyio
import asyncpg
import pytest
from harness.api import Api, Json
from harness.holding import holding
from harness.operating import RARELY, purge
from harness.plans import fill
from harness.postgres import RunOut, execute, number
from harness.server import Server
from harness.wait import until

from app.store.database import open_database
from app.store.store import Store
from app.timers.timer import Timer


@pytest.mark.rule(8)
def test_a_lease_that_runs_out_is_redelivered_within_milliseconds(
    start_server: Callable[..., Server], database_url: str, record_testsuite_property: Callable[[str, object], None]
) -> None:
    """By the times in the database, from its end to the next one's beginning."""
    api = start_server(sweep_interval=RARELY).api
    api.send("default", "work", max_attempts=100)
    delay = (
        "select extract(epoch from started_at - (facts ->> 'expires_at')::timestamptz) * 1000 "
        "from message join checkpoint on message_id = id where checkpoint.generation ="
    )
    delays: list[int] = []
    api.claim_one("default", visibility_timeout=0.3)
    for generation in range(2, 40):
        assert api.claim_one("default", wait=RARELY - 10, visibility_timeout=0.3)["generation"] == generation
        delays.append(number(database_url, f"{delay} {generation - 1}"))
        if generation > 8 and min(delays) < 100:
            break
    record_testsuite_property("from expiry to redelivery, one lease", f"best {min(delays)} ms, median {statistics.median(delays)} ms")
    # A busy machine delays some of them, a slow service all.
    assert min(delays) < 100


@pytest.mark.scar(28)
@pytest.mark.rule(8)
def test_a_beaten_lease_lives_and_runs_out_once_the_beats_stop(api: Api, queue: str, expire: RunOut) -> None:
    def beaten_in_time() -> Json | None:
        """Lease a message and beat for it, in vain if the machine stood still for as long as the lease was to last."""
        api.send(queue, "work")
        lease = api.claim_one(queue, visibility_timeout=2)
        if api.beat(lease["receipt"])[0]["status"] == "extended":
            return lease
        api.ack(lease["receipt"])
        return None

    lease = until(beaten_in_time)
    assert lease is not None
    assert api.claim(queue, wait=2.5) == []  # it outlasts its first end
    assert api.beat(lease["receipt"])[0]["status"] == "held"
    expire(lease["message"]["id"])
    assert api.claim_one(queue, wait=40)["generation"] == lease["generation"] + 1
    assert api.beat(lease["receipt"])[0]["status"] == "lost"


@pytest.mark.scar(4)
@pytest.mark.rule(8)
async def test_a_renewal_that_slips_in_before_the_reclaim_keeps_its_lease(
    api: Api, queue: str, sql: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    """Hold the lease's row while it is due, renew it, and let go: whoever waited or looked before must find it renewed."""
    lease = "from lease where message_id = $1"
    (message_id,) = api.send(queue, "work", max_attempts=100)
    held, expires_at = None, None
    while expires_at is None:  # it ran out before its row was had
        held = api.claim_one(queue, wait=40, visibility_timeout=2)
        async with sql.transaction():
            expires_at = await sql.fetchval(f"select expires_at {lease} for update", int(message_id))
            await sql.execute("select pg_sleep(extract(epoch from $1 - clock_timestamp()) + 0.2)", expires_at)
            await sql.execute(
                "update lease set expires_at = clock_timestamp() + interval '1 hour' "
                "where message_id = $1 and clock_timestamp() > expires_at",
                int(message_id),
            )
    # The reclaimer has looked at it since when it has left it to later looks.
    looked_at = f"select check_at = 'infinity' and expires_at > $2 {lease}"
    with anyio.fail_after(60):
        while not await sql.fetchval(looked_at, int(message_id), expires_at):  # noqa: ASYNC110
            await anyio.sleep(0.005)
    assert api.message(message_id)["status"] == "in_progress"
    assert held is not None
    assert api.message(message_id)["expired_count"] == held["generation"] - 1
    assert api.beat(held["receipt"])[0]["status"] == "extended"


@pytest.mark.rule(8)
@pytest.mark.parametrize("lived_on", [False, True])
async def test_a_lease_that_was_in_other_hands_for_long_when_it_ran_out_is_back_soon_after(
    start_server: Callable[..., Server], database_url: str, lived_on: bool
) -> None:
    """For longer than a sweep looks back of itself."""
    api = start_server(sweep_interval=RARELY).api
    api.put_queue("long", visibility_timeout=2, extension=4, beat_interval=0.1)
    (message_id,) = api.send("long", "work")
    receipt = api.claim_one("long")["receipt"]
    if lived_on:
        api.beat(receipt)
        await anyio.sleep(2.5)
    async with holding(database_url, "select from lease for update") as sql:
        await sql.execute("select pg_sleep(6)")
    free = time.monotonic()
    until(lambda: api.message(message_id)["status"] == "pending")
    assert time.monotonic() - free < 30


@pytest.mark.rule(8)
def test_delayed_messages_are_promoted_on_time(start_server: Callable[..., Server]) -> None:
    api = start_server(sweep_interval=RARELY).api
    delays = {"later": 3, "sooner": 0.4}

    def sooner_came_first() -> bool:
        """Return False if both had come due before anybody asked, as after a machine stood still."""
        start = time.monotonic()
        for body, delay in delays.items():
            assert api.call("POST", "/queues/default/messages", {"messages": [{"body": body, "delay": delay}]}, expect=201)
        arrived = []
        for _ in delays:
            arrived.append(api.claim_one("default", wait=RARELY - 10)["message"]["body"])
            assert time.monotonic() - start >= delays[arrived[-1]]
        assert sorted(arrived) == sorted(delays)
        return arrived == ["sooner", "later"]

    until(sooner_came_first)


@pytest.mark.rule(8)
def test_a_restart_re_arms_nothing(start_server: Callable[..., Server], database_url: str) -> None:
    first = start_server()
    api = first.api
    api.send("default", "leased")
    api.claim_one("default")
    api.send("default", "delayed", delay=600)
    first.kill()
    waiting = "(select count(*) from lease) + (select count(*) from message where status = 'scheduled')"
    assert number(database_url, f"select {waiting}") == 2
    execute(database_url, "update lease set expires_at = now(), check_at = now()")
    execute(database_url, "update message set available_at = now() where status = 'scheduled'")
    api = start_server(sweep_interval=RARELY).api
    delivered = {api.claim_one("default", wait=RARELY - 10)["message"]["body"] for _ in range(2)}
    assert delivered == {"leased", "delayed"}


@pytest.mark.rule(8)
def test_any_replica_reclaims_what_another_granted_when_it_runs_out(start_server: Callable[..., Server], database_url: str) -> None:
    one = start_server(sweep_interval=RARELY)
    one.api.send("default", *range(20))
    one.api.claim("default", max_messages=20)
    execute(database_url, "update lease set expires_at = now() + interval '5 seconds', check_at = now() + interval '5 seconds'")
    # It finds the leases when it starts, as a rule before they have run out, and looks again by itself only long after.
    two = start_server(sweep_interval=RARELY)
    one.kill()
    api = two.api
    redelivered = Counter[str]()
    while redelivered.total() < 20:
        leases = api.claim("default", wait=RARELY - 10, max_messages=20, visibility_timeout=60)
        assert leases
        redelivered.update(lease["message"]["id"] for lease in leases)
    assert set(redelivered.values()) == {1}
    assert {api.message(each)["expired_count"] for each in redelivered} == {1}


@pytest.mark.rule(8)
def test_two_replicas_reclaim_each_lease_once(start_server: Callable[..., Server], database_url: str) -> None:
    apis = [start_server(sweep_interval=0.2).api for _ in range(2)]
    ids = apis[0].send("default", *range(200), max_attempts=10)
    assert [len(api.claim("default", max_messages=100)) for api in apis] == [100, 100]
    # Both know the moment that the leases run out by then, and both go for them.
    execute(database_url, "update lease set expires_at = now() + interval '1 second', check_at = now() + interval '1 second'")
    redelivered: list[str] = []

    def take(api: Api) -> None:
        while len(redelivered) < 200:
            redelivered.extend(lease["message"]["id"] for lease in api.claim("default", wait=0.5, max_messages=10, visibility_timeout=120))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(take, apis))
    assert sorted(redelivered, key=int) == ids
    assert {apis[1].message(each)["expired_count"] for each in ids} == {1}


@pytest.mark.scar(20)
@pytest.mark.rule(8, 11)
def test_what_one_replica_reclaims_wakes_the_callers_of_another(start_server: Callable[..., Server]) -> None:
    # Neither looks by itself in time; only the one that grants the lease knows when it runs out.
    one, two = (start_server(sweep_interval=RARELY) for _ in range(2))
    one.api.send("default", "work")
    one.api.claim_one("default", visibility_timeout=1)
    assert two.api.claim_one("default", wait=RARELY - 10)["generation"] == 2


@pytest.mark.rule(6, 8)
def test_acks_that_race_the_expiry_are_final_and_everything_else_comes_again(start_server: Callable[..., Server]) -> None:
    api = start_server().api
    api.put_queue("race", visibility_timeout=1, extension=1, beat_interval=0.4, max_attempts=10)
    until(lambda: race(api))


def race(api: Api) -> bool:
    """Ack 500 leases of 1 s, each at a random moment between 0.9 and 1.1 s.

    Returns whether some acks came in time, and some too late: where one side stands still, it is no race.
    """
    ids = set(api.send("race", *range(500)))
    # A competitor takes whatever runs out, as any second worker would.
    leases = api.claim("race", max_messages=500)
    granted = time.monotonic()
    moments = [random.uniform(0.9, 1.1) for _ in leases]
    answers: dict[str, str] = {}
    again: list[str] = []

    def compete() -> None:
        deadline = time.monotonic() + 60
        while len(again) + list(answers.values()).count("acked") < len(leases) and time.monotonic() < deadline:
            again.extend(
                lease["message"]["id"] for lease in api.claim("race", "competitor", wait=0.2, max_messages=50, visibility_timeout=300)
            )

    def ack(each: tuple[float, Json]) -> None:
        moment, lease = each
        time.sleep(max(0.0, granted + moment - time.monotonic()))
        answers[lease["message"]["id"]] = api.ack(lease["receipt"])[0]["status"]

    with ThreadPoolExecutor(65) as pool:
        competing = pool.submit(compete)
        list(pool.map(ack, sorted(zip(moments, leases, strict=True), key=itemgetter(0))))
        competing.result()

    acked = {message_id for message_id, answer in answers.items() if answer == "acked"}
    assert set(answers.values()) <= {"acked", "lost"}
    assert api.claim("race", max_messages=500) == []
    assert len(again) == len(set(again))
    assert acked.isdisjoint(again)
    assert acked | set(again) == ids
    for message_id in acked:
        assert api.message(message_id)["status"] == "completed"
    for message_id in again:
        assert api.message(message_id)["status"] == "in_progress"
    left = api.call("GET", "/leases?queue=race&limit=1000")["items"]
    assert {lease["message_id"] for lease in left} == set(again)
    api.call("DELETE", "/workers/competitor", expect=204)
    purge(api, "race")
    return bool(acked and again)


@pytest.mark.scar(29)
@pytest.mark.rule(8)
def test_a_thousand_leases_that_run_out_together_are_all_redelivered_to_parked_claims(
    start_server: Callable[..., Server], record_testsuite_property: Callable[[str, object], None]
) -> None:
    api = start_server(sweep_interval=RARELY).api

    def last_of_a_thousand() -> float:
        ids = api.send("default", *range(1000))
        leases = api.claim("default", max_messages=1000, visibility_timeout=2)
        expiry = time.monotonic() + leases[0]["expires_in"]
        arrivals: list[float] = []
        redelivered: list[str] = []

        def take(_: int) -> None:
            while len(redelivered) < 1000:
                got = api.claim("default", wait=4, max_messages=25, visibility_timeout=300)
                arrivals.extend([time.monotonic() - expiry] * len(got))
                redelivered.extend(lease["message"]["id"] for lease in got)

        with ThreadPoolExecutor(20) as pool:
            list(pool.map(take, range(20)))
        assert sorted(redelivered, key=int) == ids
        spread = f"first {min(arrivals):.3f} s, median {statistics.median(arrivals):.3f} s, last {max(arrivals):.3f} s"
        record_testsuite_property("from expiry to redelivery", spread)
        return max(arrivals)

    # A fraction of a second as a rule. A hundred per pass, and one pass per second, would take ten each time.
    assert any(last_of_a_thousand() < 9 for _ in range(3))


@pytest.mark.rule(8)
async def test_a_backlog_of_one_kind_is_worked_off_by_turns_with_the_others(database_url: str) -> None:
    """Else a delayed message would wait for as long as the leases of a whole outage take."""
    sql = await asyncpg.connect(database_url)
    await fill(sql, ready=0, leased=2500, delayed=2500)
    await sql.execute("update lease set expires_at = now(), check_at = now()")
    await sql.execute("update message set available_at = now() where status = 'scheduled'")
    database = await open_database(database_url)
    timer = Timer(Store(database, shards=1, poll=1, queue_limit=1), database.timer, longest_sleep=1)
    stats = await timer.sweep()
    assert (stats.expired_found, stats.recovered) == (2500, 2500)
    assert await sql.fetchval("select count(*) from message where status = 'pending'") == 5000
    # Each batch is a transaction, and bears the number of its turn among them.
    made_by = "select {}(xmin::text::bigint) from message where ended_by is {} null"
    first_promoted, first_reclaimed = [await sql.fetchval(made_by.format("min", which)) for which in ("", "not")]
    last_promoted, last_reclaimed = [await sql.fetchval(made_by.format("max", which)) for which in ("", "not")]
    assert max(first_promoted, first_reclaimed) < min(last_promoted, last_reclaimed)
    await sql.close()
    await database.close()
