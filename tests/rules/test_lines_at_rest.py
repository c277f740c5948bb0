"""What becomes ready is told to the lines in use, whatever filters were claimed by before; a line at rest keeps its place all the same.

And who parks where nothing is ready costs a look for its own leases, but none for messages.
"""

import asyncio
import cProfile
from collections.abc import AsyncIterator

import pytest
from harness.operating import RARELY

from app.store.claim import Claim, claim
from app.store.database import open_database
from app.store.line import Claimed, Line
from app.store.parking import Parking
from app.store.pick import Filter
from app.store.queues import QueueRef
from app.store.sending import NewMessage
from app.store.store import Store

TASKS = 50


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    """A store without the background tasks of a replica."""
    database = await open_database(database_url)
    yield Store(database, shards=1, poll=RARELY, queue_limit=1000)
    await database.close()


@pytest.fixture
async def queue(store: Store) -> QueueRef:
    found = await store.queues.find("default")
    assert found
    return found


async def send(store: Store, queue: QueueRef, *, task_id: str | None = None, fairness_key: str = "") -> None:
    await store.send(queue, [NewMessage("1", None, 0, 0.0, fairness_key, None, task_id, None, None)])


def by_task(task_id: str) -> Claim:
    return Claim("worker", 1, filter=Filter(task_id=task_id))


async def put_away(store: Store) -> None:
    """Have lines that nobody claims from come to rest, as a replica does in the background."""
    for _ in range(2):
        await store.parking.look_below(store._pool)  # noqa: SLF001 - the pool that a replica gives to it


def told(parking: Parking, queue: QueueRef) -> int:
    """Count the lines that hear of a message that is ready in the queue."""
    profile = cProfile.Profile()
    profile.runcall(parking.wake, {queue.id: {None: 1}})
    return sum(entry.callcount for entry in profile.getstats() if entry.code is Line.wake.__code__)


async def test_lines_that_nobody_claims_from_are_not_told_of_messages(store: Store, queue: QueueRef) -> None:
    """Else each send would cost more, the more tasks had ever been claimed by."""
    for number in range(TASKS):
        assert (await store.claim(queue, by_task(f"task-{number}"), 0)).leases == []
    assert told(store.parking, queue) == TASKS
    await put_away(store)
    assert told(store.parking, queue) == 0
    parked = asyncio.create_task(store.claim(queue, by_task("task-7"), 50))
    while not store.parking.parked:  # noqa: ASYNC110 - it is there at the loop's next turn
        await asyncio.sleep(0)
    await put_away(store)
    assert told(store.parking, queue) == 1
    await send(store, queue, task_id="task-7")
    assert len((await asyncio.wait_for(parked, 60)).leases) == 1


async def test_a_line_that_has_rested_goes_on_with_the_key_whose_turn_it_is(store: Store, queue: QueueRef) -> None:
    for fairness_key in "abab":
        await send(store, queue, fairness_key=fairness_key)
    keys = []
    for _ in range(4):
        (lease,) = (await store.claim(queue, Claim("worker", 1), 0)).leases
        keys.append(lease.fairness_key)
        await put_away(store)
    assert keys == ["a", "b", "a", "b"]


async def test_calls_repeated_where_nothing_is_ready_find_their_leases_without_a_look_for_messages(store: Store, queue: QueueRef) -> None:
    """Also if they are more than one statement looks up."""
    repeated = [Claim(f"worker-{number}", 1, claim_id="call") for number in range(1100)]
    await store.send(queue, [NewMessage("1", None, 0, 0.0, "", None, None, None, None)] * len(repeated))
    granted = await asyncio.gather(*(store.claim(queue, each, 50) for each in repeated))
    parked = [asyncio.create_task(store.claim(queue, Claim("parked", 1), 50)) for _ in range(20)]
    assert (await store.claim(queue, Claim("impatient", 1), 0)).leases == []
    with cProfile.Profile() as profile:
        found = await asyncio.gather(*(store.claim(queue, each, 50) for each in repeated))
    assert [receipts(each) for each in found] == [receipts(each) for each in granted]
    assert all(len(each.leases) == 1 for each in found)
    assert claim.__code__ not in {entry.code for entry in profile.getstats()}
    store.parking.dismiss()
    await asyncio.gather(*parked)


def receipts(claimed: Claimed) -> list[tuple[int, int]]:
    return [(lease.message_id, lease.generation) for lease in claimed.leases]
