"""Parked claims: a lease starts when it is granted, reaches whoever waits, and is never lost on the way."""

import asyncio
import json
import signal
import socket
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack, asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import anyio
import asyncpg
import pytest
from harness.api import Api, Json
from harness.holding import holding as held_row
from harness.holding import until_somebody_waits
from harness.operating import RARELY, parked_on
from harness.postgres import Databases, execute
from harness.server import Server
from harness.wait import until

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

MORE_THAN_A_BATCH = 20
"""Calls in front of others, so many that one statement does not try for all of them."""

GRANTING, REPEATING = "fairness_key", "claim_id"
"""Words by which to know the statement that grants leases, and the one that looks for those of a claim id."""

_GRANTED_ELSEWHERE = """
with sent as (
    insert into message (shard, queue_id, body, priority, fairness_key, status, generation)
    select shard, id, '"work"', 0, '', 'in_progress', 1 from queue where name = $1
    returning *
)
insert into lease (shard, message_id, queue_id, generation, granted_at, expires_at, check_at, deadline, worker_id, claim_id, claim_slot)
select shard, id, queue_id, 1, now(), now() + interval '1 minute', now() + interval '1 minute', now() + interval '1 hour',
       $2, 'same', 1
from sent
"""


@pytest.fixture
def parked(server: Server) -> Callable[[], int]:
    """Count the claims that are parked on the shared server."""
    return lambda: parked_on(server)


@pytest.fixture(scope="module")
def rare_sweeper(postgres: Databases) -> Iterator[Server]:
    """A server whose parked claims are served because they are woken, not because they poll."""
    with Server(postgres.create(), sweep_interval=RARELY) as server:
        yield server


@pytest.fixture
def queue_there(rare_sweeper: Server) -> str:
    """Return a queue of the test's own on that server."""
    name = f"queue-{uuid.uuid4().hex[:12]}"
    rare_sweeper.api.put_queue(name)
    return name


def abandon_claims(server: Server, queue: str, number: int, **options: Json) -> list[socket.socket]:
    """Send claims on raw connections that never read the answer, and return the connections."""
    body = json.dumps({"worker_id": "gone", "wait": 50} | options).encode()
    head = f"POST /queues/{queue}/leases HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    connections = []
    for _ in range(number):
        connection = socket.create_connection(("127.0.0.1", server.port))
        connection.settimeout(60)
        connection.sendall(head.encode() + body)
        connections.append(connection)
    return connections


def leave(server: Server, connections: list[socket.socket]) -> None:
    """Close connections, and see to it that the server has noticed: it has closed its end too, and answered nothing."""
    with ExitStack() as closing:
        for connection in connections:
            closing.enter_context(connection).shutdown(socket.SHUT_WR)
        for connection in connections:
            assert connection.recv(1) == b""
    assert server.api.client.get("/healthz").status_code == 200


def close(connections: list[socket.socket]) -> None:
    for connection in connections:
        connection.close()


class HeldBack:
    """Statements on leases that wait, because a test has locked the table."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._transaction = connection.transaction()

    async def lock(self, mode: str) -> None:
        await self._transaction.start()
        await self._connection.execute(f"lock table lease in {mode} mode")

    async def let_go(self) -> None:
        await self._transaction.rollback()

    async def under_way(self, words: str, at_least: int = 1) -> None:
        """Wait until statements with these words in them wait for the lock."""
        query = (
            "select count(*) >= $2 from pg_stat_activity "
            "where datname = current_database() and wait_event_type = 'Lock' and query like '%' || $1 || '%'"
        )
        await self._until(query, words, at_least)

    async def all_done(self) -> None:
        """Wait until Postgres has answered every statement of the service, and no transaction is open.

        A service that has been stopped may have begun to prepare a statement: Postgres then waits for the rest, and is active in name only.
        """
        query = (
            "select count(*) = 0 from pg_stat_activity "
            "where datname = current_database() and application_name = 'leasebeat' and state <> 'idle' "
            "and (state, wait_event) is distinct from ('active', 'ClientRead')"
        )
        await self._until(query)

    async def _until(self, query: str, *arguments: object) -> None:
        with anyio.fail_after(60):
            while not await self._connection.fetchval(f"select ({query}) from pg_stat_clear_snapshot()", *arguments):  # noqa: ASYNC110
                await anyio.sleep(0.005)


@asynccontextmanager
async def held_back(database_url: str, mode: str = "share") -> AsyncIterator[HeldBack]:
    """Hold back every statement that would grant or end leases (mode `share`), or that looks at one (`access exclusive`)."""
    connection = await asyncpg.connect(database_url)
    try:
        holding = HeldBack(connection)
        await holding.lock(mode)
        yield holding
    finally:
        await connection.close()


@contextmanager
def stopped(server: Server) -> Iterator[None]:
    """Let a server see nothing for a while, and then everything that happened meanwhile at once."""
    server.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


@pytest.mark.scar(18)
@pytest.mark.rule(1, 14)
async def test_a_lease_starts_when_it_is_granted_not_when_it_was_asked_for(
    api: Api, queue: str, parked: Callable[[], int], sql: Connection
) -> None:
    with ThreadPoolExecutor(2) as pool:
        claims = {pool.submit(api.claim_one, queue, wait=RARELY - 10, visibility_timeout=120) for _ in range(2)}
        until(lambda: parked() == 2)
        while claims:
            sent_at = await sql.fetchval("select clock_timestamp()")
            api.send(queue, "work")
            # The moments are of one clock, so this holds to the microsecond, however long it takes.
            granted, claims = wait(claims, timeout=60, return_when=FIRST_COMPLETED)
            (lease,) = [claim.result() for claim in granted]
            assert datetime.fromisoformat(lease["expires_at"]) >= sent_at + timedelta(seconds=120)
            assert lease["expires_in"] == pytest.approx(120)
            assert api.beat(lease["receipt"])[0]["status"] == "extended"


@pytest.mark.scar(18)
@pytest.mark.rule(1, 9, 14)
@pytest.mark.parametrize("limits", [{}, {"max_in_flight": 5}], ids=["without a limit", "with a limit"])
async def test_a_lease_that_was_granted_after_a_wait_for_its_queue_starts_after_that(
    api: Api, queue: str, shared_database: str, sql: Connection, limits: dict[str, int]
) -> None:
    """As of a replica that froze with the queue in hand: whatever it lasts, the wait takes nothing from the lease."""
    api.put_queue(queue, **limits)
    (message_id,) = api.send(queue, "work")
    async with held_row(shared_database, "select from queue where name = $1 for no key update", queue) as holder:
        with ThreadPoolExecutor(1) as pool:
            claiming = pool.submit(api.claim_one, queue, visibility_timeout=20)
            await until_somebody_waits(holder)
            let_go_at = await sql.fetchval("select clock_timestamp()")
            await holder.execute("commit")
            lease = claiming.result()
    (stored,) = await sql.fetch(
        "select granted_at, started_at, expires_at, check_at, deadline from lease join message on id = message_id where id = $1",
        int(message_id),
    )
    assert stored["granted_at"] == stored["started_at"] >= let_go_at
    assert stored["expires_at"] == stored["check_at"] == stored["granted_at"] + timedelta(seconds=20)
    assert stored["deadline"] == stored["granted_at"] + timedelta(hours=12)
    assert (lease["expires_in"], lease["deadline_in"]) == (20, 12 * 3600)


@pytest.mark.scar(19)
@pytest.mark.rule(14)
def test_repeating_a_claim_returns_the_same_leases(api: Api, queue: str) -> None:
    api.send(queue, *range(5))
    first = api.claim(queue, max_messages=3, claim_id="call-1")
    again = api.claim(queue, max_messages=3, claim_id="call-1")
    assert [lease["receipt"] for lease in again] == [lease["receipt"] for lease in first]
    assert len(api.claim(queue, max_messages=3, claim_id="call-2")) == 2


@pytest.mark.scar(19)
@pytest.mark.rule(14)
def test_a_claim_that_is_repeated_while_it_is_parked_gets_one_set_of_leases(api: Api, queue: str, parked: Callable[[], int]) -> None:
    def claim(_: int) -> list[str]:
        return [lease["receipt"] for lease in api.claim(queue, wait=30, claim_id="same", max_messages=2)]

    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(claim, n) for n in range(4)]
        until(lambda: parked() == 4)
        api.send(queue, 1, 2, 3)
        assert len({tuple(answer.result()) for answer in answers}) == 1
    assert len(api.claim(queue, max_messages=5)) == 1


@pytest.mark.scar(19, 32)
@pytest.mark.rule(9, 14)
@pytest.mark.parametrize("wait", [0, 0.001, 5])
def test_a_claim_repeated_behind_many_parked_ones_gets_the_same_leases(
    server: Server, api: Api, queue: str, parked: Callable[[], int], wait: float
) -> None:
    api.send(queue, "work")
    receipt = api.claim_one(queue, claim_id="call-1")["receipt"]
    waiting = abandon_claims(server, queue, MORE_THAN_A_BATCH)
    until(lambda: parked() == MORE_THAN_A_BATCH)
    assert api.claim(queue) == []  # so that nothing is ready is known
    assert [lease["receipt"] for lease in api.claim(queue, claim_id="call-1", wait=wait)] == [receipt]
    leave(server, waiting)


@pytest.mark.scar(19, 32)
@pytest.mark.rule(9, 14)
def test_a_parked_claim_gets_what_was_granted_by_its_name_before_it_leaves(
    api: Api, shared_database: str, queue: str, parked: Callable[[], int]
) -> None:
    """By another replica, or by a statement that was committed only after this call had looked. As nothing is ready, no grant tells."""
    worker = f"worker-{queue}"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(api.claim, queue, worker, wait=50, claim_id="same")
        until(lambda: parked() == 1)
        assert api.claim(queue, "other") == []  # so it has looked
        execute(shared_database, _GRANTED_ELSEWHERE, queue, worker)
        api.call("POST", f"/workers/{worker}/drain", {"draining": True})
        (lease,) = waiting.result()
    assert (lease["generation"], lease["message"]["body"]) == (1, "work")


@pytest.mark.scar(19, 32)
@pytest.mark.rule(9, 14)
@pytest.mark.parametrize("wanted", [1, 2])
def test_a_claim_that_is_parked_again_behind_many_others_gets_the_leases_of_the_first(
    rare_sweeper: Server, queue_there: str, wanted: int
) -> None:
    """Whether the first gets all it wants or not."""
    api = rare_sweeper.api

    def claim() -> list[Json]:
        return api.claim(queue_there, wait=10, claim_id="same", max_messages=wanted)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(claim)
        until(lambda: parked_on(rare_sweeper) == 1)
        waiting = abandon_claims(rare_sweeper, queue_there, MORE_THAN_A_BATCH)
        until(lambda: parked_on(rare_sweeper) == 1 + MORE_THAN_A_BATCH)
        again = pool.submit(claim)
        until(lambda: parked_on(rare_sweeper) == 2 + MORE_THAN_A_BATCH)
        api.send(queue_there, "work")
        (lease,) = first.result()
        assert [each["receipt"] for each in again.result()] == [lease["receipt"]]
    leave(rare_sweeper, waiting)


@pytest.mark.scar(19)
@pytest.mark.rule(14)
def test_a_claim_repeated_on_another_replica_gets_the_same_leases(start_server: Callable[..., Server]) -> None:
    apis = [start_server().api for _ in range(2)]
    apis[0].send("default", *range(400))
    for n in range(50):
        with ThreadPoolExecutor(2) as pool:
            answers = [pool.submit(api.claim, "default", claim_id=f"call-{n}", max_messages=3) for api in apis]
            one, two = ([lease["receipt"] for lease in answer.result()] for answer in answers)
        assert one == two


@pytest.mark.scar(19, 21)
@pytest.mark.rule(14)
async def test_a_dropped_repeat_of_a_claim_takes_no_lease_from_the_worker_that_holds_it(
    start_server: Callable[..., Server], database_url: str
) -> None:
    server = start_server()
    server.api.send("default", *range(20))
    for n in range(20):
        receipt = server.api.claim_one("default", claim_id=f"call-{n}")["receipt"]
        async with held_back(database_url, "access exclusive") as holding:
            repeat = abandon_claims(server, "default", 1, worker_id="worker", claim_id=f"call-{n}")
            await holding.under_way(REPEATING)
            leave(server, repeat)
        until(lambda: parked_on(server) == 0)
        assert [server.api.beat(receipt)[0]["status"] for _ in range(2)] == ["extended", "held"]
        server.api.ack(receipt)


@pytest.mark.scar(19, 21)
@pytest.mark.rule(14)
def test_repeats_of_claims_on_connections_that_close_at_once_take_no_lease_either(server: Server, api: Api, queue: str) -> None:
    api.send(queue, *range(20))
    receipts = [api.claim_one(queue, claim_id=f"{queue}-{n}")["receipt"] for n in range(20)]
    for n in range(20):
        for connection in abandon_claims(server, queue, 1, worker_id="worker", claim_id=f"{queue}-{n}"):
            connection.close()
    until(lambda: parked_on(server) == 0)
    assert api.claim(queue) == []
    assert [answer["status"] for answer in api.beat(*receipts)] == ["extended"] * 20
    assert [answer["status"] for answer in api.beat(*receipts)] == ["held"] * 20


@pytest.mark.scar(19, 21)
@pytest.mark.rule(14)
async def test_a_claim_whose_connection_broke_and_that_is_repeated_gets_leases_that_last(
    start_server: Callable[..., Server], database_url: str
) -> None:
    server = start_server()
    api = server.api
    api.send("default", *range(20))
    with ThreadPoolExecutor(1) as pool:
        for n in range(20):
            async with held_back(database_url) as holding:
                broken = abandon_claims(server, "default", 1, worker_id="worker", claim_id=f"call-{n}")
                await holding.under_way(GRANTING)
                repeated = pool.submit(api.claim_one, "default", claim_id=f"call-{n}", wait=50)
                until(lambda: parked_on(server) == 2)
                leave(server, broken)
            receipt = repeated.result()["receipt"]
            until(lambda: parked_on(server) == 0)
            assert [api.beat(receipt)[0]["status"] for _ in range(2)] == ["extended", "held"]
            api.ack(receipt)


@pytest.mark.rule(14)
def test_unconfirmed_leases_come_back_soon_and_confirmed_ones_last(api: Api, queue: str) -> None:
    api.send(queue, "heard", "unheard")
    heard = api.claim_one(queue, confirm_within=60, visibility_timeout=600)
    unheard = api.claim_one(queue, confirm_within=0.5, visibility_timeout=600)
    assert unheard["expires_in"] == pytest.approx(0.5)
    (beat,) = api.beat(heard["receipt"])
    assert beat["expires_in"] == pytest.approx(600)
    again = api.claim_one(queue, wait=40)
    assert (again["message"]["body"], again["attempt"], again["generation"]) == ("unheard", 1, 2)
    assert api.message(again["message"]["id"])["unconfirmed_count"] == 1


@pytest.mark.scar(20)
@pytest.mark.rule(11)
@pytest.mark.parametrize("way", ["send", "delayed send", "nack", "delayed nack", "release", "expiry", "unconfirmed"])
def test_a_parked_claim_wakes_for_every_way_into_pending(rare_sweeper: Server, way: str) -> None:
    api, queue = rare_sweeper.api, f"way-{way.replace(' ', '-')}"
    api.put_queue(queue)
    receipt = ""
    if "send" not in way:
        api.send(queue, "work")
        options: dict[str, Any] = {"expiry": {"visibility_timeout": 1}, "unconfirmed": {"confirm_within": 1}}.get(way, {})
        receipt = api.claim_one(queue, **options)["receipt"]
    with ThreadPoolExecutor(1) as pool:
        # It ends before the polling that is the safety net comes for the first time.
        waiting = pool.submit(api.claim, queue, wait=RARELY - 10)
        until(lambda: parked_on(rare_sweeper) == 1 or waiting.done())
        match way:
            case "send":
                api.send(queue, "work")
            case "delayed send":
                api.send(queue, "work", delay=0.2)
            case "nack":
                api.nack(receipt)
            case "delayed nack":
                api.nack(receipt, delay=0.2)
            case "release":
                api.release(receipt)
        (lease,) = waiting.result()
    assert lease["message"]["body"] == "work"


@pytest.mark.scar(20)
@pytest.mark.rule(11)
def test_a_claim_parked_on_one_replica_wakes_for_a_send_through_another(start_server: Callable[..., Server]) -> None:
    sender, waiter = (start_server(sweep_interval=RARELY) for _ in range(2))
    for _ in range(3):
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(waiter.api.claim, "default", wait=RARELY - 10)
            until(lambda: parked_on(waiter) == 1)
            sender.api.send("default", "work")
            assert len(waiting.result()) == 1


@pytest.mark.scar(21)
@pytest.mark.rule(14)
def test_nothing_is_leased_to_a_client_that_has_gone(api: Api, server: Server, queue: str, parked: Callable[[], int]) -> None:
    leaving = abandon_claims(server, queue, 5)
    until(lambda: parked() == 5)
    assert api.claim(queue) == []  # nobody's first look is still under way
    leave(server, leaving)
    (message_id,) = api.send(queue, "work")
    assert api.message(message_id)["status"] == "pending"
    lease = api.claim_one(queue)
    assert (lease["generation"], lease["attempt"]) == (1, 1)


@pytest.mark.scar(21)
@pytest.mark.rule(9, 14)
@pytest.mark.parametrize("wait", [0, 20])
@pytest.mark.parametrize("together", [False, True], ids=["while it is granted", "together with the grant"])
async def test_a_lease_granted_to_a_client_that_is_just_leaving_is_released_at_once_uncounted(
    start_server: Callable[..., Server], database_url: str, together: bool, wait: float
) -> None:
    server = start_server(sweep_interval=RARELY)
    server.api.put_queue("empty")
    (message_id,) = server.api.send("default", "work")
    server.api.claim("empty", "gone")
    until(lambda: server.api.client.get("/workers/gone").status_code == 200)  # so the registry will write nothing meanwhile
    for _ in range(3):
        server.api.claim("empty")  # the statement is prepared, so that nothing more is asked of the server to carry it out
    async with held_back(database_url) as holding:
        leaving = abandon_claims(server, "default", 1, wait=wait)
        await holding.under_way(GRANTING)
        if together:
            with stopped(server):
                await holding.let_go()
                await holding.all_done()
                leaving[0].shutdown(socket.SHUT_WR)
            assert leaving[0].recv(1) == b""
            leaving[0].close()
        else:
            leave(server, leaving)
    # The lease would last for five minutes.
    lease = server.api.claim_one("default", wait=RARELY - 10)
    assert (lease["message"]["id"], lease["attempt"], lease["generation"]) == (message_id, 1, 2)
    message = server.api.message(message_id)
    assert (message["released_count"], message["attempt_count"]) == (1, 0)


@pytest.mark.scar(21)
@pytest.mark.rule(9, 14)
async def test_of_many_clients_that_leave_while_their_leases_are_granted_none_keeps_one(
    start_server: Callable[..., Server], database_url: str
) -> None:
    """Half of them leave before the grant, the others in the same moment."""
    server = start_server(sweep_interval=RARELY)
    api = server.api
    leaving = abandon_claims(server, "default", 16)
    until(lambda: parked_on(server) == 16)
    assert api.claim("default") == []  # nobody's first look is still under way
    async with held_back(database_url) as holding:
        api.send("default", *range(16))
        await holding.under_way(GRANTING)
        leave(server, leaving[:8])
        closer = threading.Thread(target=close, args=(leaving[8:],))
        closer.start()
    closer.join()
    taken: list[Json] = []

    def orphans() -> int:
        return len(api.call("GET", "/leases?queue=default&worker_id=gone")["items"])

    def all_found() -> bool:
        taken.extend(api.claim("default", max_messages=16))
        return len(taken) + orphans() == 16

    until(all_found)
    # An answer that was already on the wire when the client left cannot be called back: such a lease runs out instead.
    assert 8 <= len(taken) <= 16
    assert {(lease["attempt"], lease["generation"]) for lease in taken} == {(1, 2)}
    messages = [api.message(lease["message"]["id"]) for lease in taken]
    assert {(message["released_count"], message["attempt_count"]) for message in messages} == {(1, 0)}


@pytest.mark.scar(21)
@pytest.mark.rule(14)
async def test_clients_that_have_gone_keep_nobody_from_an_answer_and_their_leases_go_back_in_one_statement(
    start_server: Callable[..., Server], database_url: str
) -> None:
    server = start_server(sweep_interval=RARELY)
    api = server.api
    sql = await asyncpg.connect(database_url)
    await sql.execute(
        "create function hold_back() returns trigger as 'begin perform pg_advisory_xact_lock(1); return old; end' language plpgsql"
    )
    await sql.execute("create trigger hold_back before delete on lease for each row execute function hold_back()")
    leaving = abandon_claims(server, "default", 5)
    until(lambda: parked_on(server) == 5)
    async with held_row(database_url, "select pg_advisory_xact_lock(1)") as releases:
        with ThreadPoolExecutor(1) as pool:
            staying = pool.submit(api.claim_one, "default", "stays", wait=RARELY - 10)
            until(lambda: parked_on(server) == 6)
            assert api.claim("default") == []  # nobody's first look is still under way
            async with held_back(database_url) as grants:
                api.send("default", *range(6))
                await grants.under_way(GRANTING)
                leave(server, leaving)
            assert staying.result(timeout=60)["generation"] == 1
        await until_somebody_waits(releases)
    until(lambda: parked_on(server) == 0)
    returned = "from message where status = 'pending' and released_count = 1 and attempt_count = 0"
    async with asyncio.timeout(60):
        while await sql.fetchval(f"select count(*) {returned}") < 5:  # noqa: ASYNC110 - nothing tells when they are
            await asyncio.sleep(0.01)
    assert await sql.fetchval(f"select count(distinct xmin::text) {returned}") == 1
    await sql.close()


@pytest.mark.scar(22)
@pytest.mark.rule(11)
def test_aborted_claims_leak_no_connection(start_server: Callable[..., Server]) -> None:
    server = start_server()
    for _ in range(4):
        leaving = abandon_claims(server, "default", 50)
        until(lambda: parked_on(server) == 50)
        leave(server, leaving)
        until(lambda: parked_on(server) == 0)
    server.api.send("default", "work")
    assert server.api.claim_one("default")["message"]["body"] == "work"


@pytest.mark.scar(22)
@pytest.mark.rule(11)
async def test_claims_aborted_while_their_statements_are_under_way_leave_no_connection_or_transaction_behind(
    start_server: Callable[..., Server], database_url: str
) -> None:
    """200 claims on 20 queues: more statements than there are connections, so that some are under way and the others wait for one."""
    server = start_server(sweep_interval=RARELY)
    api = server.api
    queues = [f"queue-{n}" for n in range(20)]
    for queue in queues:
        api.put_queue(queue)
    async with held_back(database_url) as holding:
        leaving = [connection for queue in queues for connection in abandon_claims(server, queue, 10)]
        await holding.under_way(GRANTING, at_least=4)
        leave(server, leaving)
        await holding.let_go()
        until(lambda: parked_on(server) == 0)
        await holding.all_done()
    with ThreadPoolExecutor(len(queues)) as pool:
        for queue in queues:
            api.send(queue, "work")
        assert [lease["generation"] for lease in pool.map(api.claim_one, queues)] == [1] * len(queues)


@pytest.mark.scar(22)
async def test_aborted_claims_leave_no_open_transaction(server: Server, queue: str, parked: Callable[[], int], sql: Connection) -> None:
    leaving = abandon_claims(server, queue, 50)
    until(lambda: parked() == 50)
    leave(server, leaving)
    until(lambda: parked() == 0)
    # The service has those of its own that count the figures now and then, which are over as soon as it gets on with them.
    idle = (
        "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in transaction%' "
        "and query !~ 'figure|advisory|^BEGIN'"
    )
    assert await sql.fetchval(idle) == 0


@pytest.mark.scar(23)
@pytest.mark.rule(11)
async def test_parked_claims_hold_no_database_connection(server: Server, queue: str, parked: Callable[[], int], sql: Connection) -> None:
    waiting = abandon_claims(server, queue, 200)
    until(lambda: parked() == 200)
    connections = await sql.fetchval("select count(*) from pg_stat_activity where datname = current_database()")
    assert connections < 40  # which is more than its pools have in all
    server.api.send(queue, *range(200))
    until(lambda: parked() == 0)
    for connection in waiting:
        connection.close()


@pytest.mark.rule(11)
def test_a_stopping_service_answers_parked_claims_at_once(start_server: Callable[..., Server]) -> None:
    server = start_server(shutdown_grace=60)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.api.claim, "default", wait=50)
        until(lambda: parked_on(server) == 1)
        # Sooner than both the claim's own end and that of the grace which open requests have.
        assert server.stop(timeout=40) == 0
        assert waiting.result() == []
