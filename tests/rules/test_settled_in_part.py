"""What a settle has done stays said and told of, whatever becomes of its later statements: they are about leases that had ended before."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest
from harness.operating import RARELY
from harness.postgres import execute

from app.store.ack import Ack
from app.store.claim import Claim, GrantedLease
from app.store.database import open_database
from app.store.faults import RowFaultError, UnavailableError
from app.store.nack import Nack
from app.store.queues import QueueRef
from app.store.release import Release
from app.store.sending import NewMessage
from app.store.settle import Settled
from app.store.store import Store

pytestmark = pytest.mark.rule(7, 10)

LIMIT = 2
Settle = Callable[[Store, Sequence[GrantedLease]], Awaitable[list[Settled | RowFaultError]]]


async def ack(store: Store, leases: Sequence[GrantedLease]) -> list[Settled | RowFaultError]:
    return await store.ack([(0, Ack(lease.message_id, lease.generation, None)) for lease in leases])


async def nack(store: Store, leases: Sequence[GrantedLease]) -> list[Settled | RowFaultError]:
    return await store.nack([(0, Nack(lease.message_id, lease.generation, None, 0.0, retryable=True)) for lease in leases])


async def release(store: Store, leases: Sequence[GrantedLease]) -> list[Settled | RowFaultError]:
    return await store.release([(0, Release(lease.message_id, lease.generation)) for lease in leases])


def refuse_to_read(url: str, message_id: int, code: str) -> None:
    """Make Postgres refuse to read a message, as one can be that is damaged."""
    execute(
        url,
        f"""
        create function is_sound(id bigint) returns bool language plpgsql as $$ begin
            if id = {message_id} then raise exception 'refused' using errcode = '{code}'; end if;
            return true;
        end $$;
        alter table message rename to stored_message;
        create view message as select * from stored_message where is_sound(id);
        """,
    )


def refuse_its_report(url: str, message_id: int, code: str) -> None:
    execute(
        url,
        f"""
        create function refuse() returns trigger language plpgsql as $$ begin raise exception 'refused' using errcode = '{code}'; end $$;
        create trigger refuse before insert on checkpoint for each row
        when (new.kind = 'late_report' and new.message_id = {message_id}) execute function refuse();
        """,
    )


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    """A store without the background tasks of a replica, whose parked claims are served because they are woken."""
    database = await open_database(database_url)
    yield Store(database, shards=1, poll=RARELY, queue_limit=1000)
    await database.close()


@pytest.fixture
async def queue(store: Store, database_url: str) -> QueueRef:
    """A queue that has more messages than may be leased."""
    await asyncio.to_thread(execute, database_url, f"update queue set max_in_flight = {LIMIT} where name = 'default'")
    found = await store.queues.find("default")
    assert found
    await store.send(found, [NewMessage("1", None, 0, 0.0, "", None, None, None, None)] * (LIMIT + 2))
    return found


async def leases(store: Store, queue: QueueRef) -> tuple[GrantedLease, GrantedLease]:
    """Use up the limit. Returns a lease that lives, and one whose message was cancelled."""
    alive, ended = (await store.claim(queue, Claim("worker", LIMIT), 0)).leases
    assert await store.cancel(ended.message_id)
    assert len((await store.claim(queue, Claim("worker", 1), 0)).leases) == 1
    return alive, ended


async def parked(store: Store, queue: QueueRef) -> "asyncio.Task[int]":
    """Return a claim that has looked in vain. It ends with the number of its leases."""

    async def claim(wait: float) -> int:
        return len((await store.claim(queue, Claim("waiting", 1), wait)).leases)

    waiting = asyncio.create_task(claim(30))
    assert await claim(0) == 0
    return waiting


@pytest.mark.parametrize(("code", "fault"), [("data_corrupted", RowFaultError), ("disk_full", UnavailableError)])
@pytest.mark.parametrize(
    ("settle", "refuse"),
    [(ack, refuse_to_read), (ack, refuse_its_report), (nack, refuse_to_read), (nack, refuse_its_report), (release, refuse_to_read)],
)
async def test_of_calls_that_share_a_statement_only_those_hear_of_a_fault_whose_leases_it_is_about(
    store: Store,
    queue: QueueRef,
    database_url: str,
    settle: Settle,
    refuse: Callable[[str, int, str], None],
    code: str,
    fault: type[Exception],
) -> None:
    alive, ended = await leases(store, queue)
    waiting = await parked(store, queue)
    await asyncio.to_thread(refuse, database_url, ended.message_id, code)
    (settled,), faulty = await asyncio.gather(settle(store, [alive]), of_fault(settle(store, [ended])))
    assert isinstance(settled, Settled)
    assert settled.fate in {"acked", "nacked", "released"}
    assert isinstance(faulty, fault)
    assert await waiting == 1


async def test_a_call_that_hears_of_an_outage_has_those_told_all_the_same_who_wait_for_what_it_did(
    store: Store, queue: QueueRef, database_url: str
) -> None:
    alive, ended = await leases(store, queue)
    waiting = await parked(store, queue)
    await asyncio.to_thread(refuse_its_report, database_url, ended.message_id, "disk_full")
    assert isinstance(await of_fault(nack(store, [alive, ended])), UnavailableError)
    assert await waiting == 1


async def of_fault(settling: Awaitable[list[Settled | RowFaultError]]) -> object:
    """Return the one verdict, or what was raised in place of it."""
    try:
        verdicts = await settling
    except UnavailableError as error:
        return error
    (verdict,) = verdicts
    return verdict
