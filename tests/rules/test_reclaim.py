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
from harness.operating import RARELY
from harness.plans import fill
from harness.postgres import execute, number
from harness.server import Server
from harness.wait import until

from app.store.database import open_database
from app.store.store import Store
from app.timers.timer import Timer


@pytest.mark.rule(8)
def test_a_lease_that_runs_out_is_redelivered_within_milliseconds(
    start_server: Callable[..., Server], record_testsuite_property: Callable[[str, object], None]
) -> None:
    api = start_server(sweep_interval=RARELY).api
    api.send("default", "work", max_attempts=100)
    delays = []
    api.claim_one("default", visibility_timeout=0.3)
    for generation in range(2, 10):
        start = time.monotonic()
        assert api.claim_one("default", wait=RARELY - 10, visibility_timeout=0.3)["generation"] == generation
        delays.append(time.monotonic() - start - 0.3)
    record_testsuite_property("from expiry to redelivery, one lease", f"best {min(delays):.3f} s, median {statistics.median(delays):.3f} s")
    # A busy machine delays some of them, a slow service all.
    assert min(delays) < 0.05


@pytest.mark.scar(28)
@pytest.mark.rule(8)
def test_a_beaten_lease_lives_and_runs_out_once_the_beats_stop(api: Api, queue: str) -> None:
    api.put_queue(queue, visibility_timeout=4, extension=4, beat_interval=0.1)
    api.send(queue, "work")
    receipt = api.claim_one(queue)["receipt"]
    end = time.monotonic() + 5
    while time.monotonic() < end:
        assert api.beat(receipt)[0]["status"] in {"extended", "held"}
        assert api.claim(queue) == []
        time.sleep(0.1)
    assert api.claim_one(queue, wait=40, visibility_timeout=60)["generation"] == 2
    assert api.beat(receipt)[0]["status"] == "lost"


@pytest.mark.scar(4)
@pytest.mark.rule(8)
async def test_a_renewal_that_slips_in_before_the_reclaim_keeps_its_lease(
    api: Api, queue: str, sql: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    """Hold the lease's row while it is due, renew it, and let go: whoever waited or looked before must find it renewed."""
    (message_id,) = api.send(queue, "work")
    receipt = api.claim_one(queue, visibility_timeout=4)["receipt"]
    lease = "from lease where message_id = $1"
    async with sql.transaction():
        expires_at = await sql.fetchval(f"select expires_at {lease} for update", int(message_id))
        await sql.execute("select pg_sleep(extract(epoch from $1 - clock_timestamp()) + 0.2)", expires_at)
        await sql.execute(
            "update lease set expires_at = clock_timestamp() + interval '1 hour' where message_id = $1 and clock_timestamp() > expires_at",
            int(message_id),
        )
    # The reclaimer has looked at it since when it has left it to later looks.
    looked_at = f"select check_at = 'infinity' and expires_at > $2 {lease}"
    with anyio.fail_after(60):
        while not await sql.fetchval(looked_at, int(message_id), expires_at):  # noqa: ASYNC110
            await anyio.sleep(0.005)
    assert api.message(message_id)["status"] == "in_progress"
    assert api.message(message_id)["expired_count"] == 0
    assert api.beat(receipt)[0]["status"] == "extended"


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
    assert time.monotonic() - free < 20


@pytest.mark.rule(8)
def test_delayed_messages_are_promoted_on_time(start_server: Callable[..., Server]) -> None:
    api = start_server(sweep_interval=RARELY).api
    start = time.monotonic()
    api.send("default", "later", delay=4)
    assert api.claim("default") == []
    api.send("default", "sooner", delay=0.4)
    assert api.claim_one("default", wait=RARELY - 10)["message"]["body"] == "sooner"
    assert time.monotonic() - start >= 0.4
    assert api.claim_one("default", wait=RARELY - 10)["message"]["body"] == "later"
    assert time.monotonic() - start >= 4


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
    one = start_server()
    one.api.send("default", *range(20))
    one.api.claim("default", max_messages=20, visibility_timeout=10)
    # It finds the leases when it starts, and looks again by itself only long after they have run out.
    two = start_server(sweep_interval=RARELY)
    one.kill()
    assert number(database_url, "select count(*) from lease where expires_at > now()") == 20
    api = two.api
    redelivered = Counter[str]()
    while redelivered.total() < 20:
        leases = api.claim("default", wait=RARELY - 10, max_messages=20, visibility_timeout=60)
        assert leases
        redelivered.update(lease["message"]["id"] for lease in leases)
    assert set(redelivered.values()) == {1}
    assert {api.message(each)["expired_count"] for each in redelivered} == {1}


@pytest.mark.rule(8)
def test_two_replicas_reclaim_each_lease_once(start_server: Callable[..., Server]) -> None:
    apis = [start_server().api for _ in range(2)]
    ids = apis[0].send("default", *range(200), max_attempts=10)
    with ThreadPoolExecutor(2) as pool:
        # Both know the moment that the leases run out, and both go for them then.
        list(pool.map(lambda api: api.claim("default", max_messages=100, visibility_timeout=4), apis))
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
    """500 leases of 1 s, each acked at a random moment between 0.9 and 1.1 s."""
    server = start_server()
    api = server.api
    api.put_queue("race", visibility_timeout=1, extension=1, beat_interval=0.4, max_attempts=10)
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
    assert acked, "no ack came in time: the race was not one"
    assert again, "every ack came in time: the race was not one"
    assert api.claim("race", max_messages=500) == []
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
    api = start_server(sweep_interval=RARELY).api
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
    # A fraction of a second as a rule. A hundred per pass, and one pass per second, would take ten.
    assert max(arrivals) < 9


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
