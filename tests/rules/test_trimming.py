"""Histories stay bounded: the newest 100 checkpoints of each task, or of a message that has none."""

from collections.abc import AsyncIterator, Callable
from typing import TypeAlias

import anyio
import asyncpg
import pytest
from harness.server import Server

from app.store.database import HOT_SESSION
from app.store.trim import KEPT, Trimmer

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"
Connection: TypeAlias = "asyncpg.pool.PoolConnectionProxy[asyncpg.Record]"
History = str | None


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[Pool]:
    async with asyncpg.create_pool(database_url, min_size=1, max_size=3, server_settings=HOT_SESSION) as opened:
        yield opened


WRITE = """
insert into checkpoint (shard, message_id, generation, kind, facts, history, created_at)
select 0, n % $4, (select coalesce(max(generation), 0) from checkpoint) + n, 'nacked', json_build_object('n', n), $1,
       now() - make_interval(secs => $3) + n * make_interval(secs => $5)
from generate_series(1, $2) n
"""


async def write(
    pool: "Pool | Connection",
    history: History,
    count: int,
    *,
    age: float = 0,
    messages: int = 1,
    step: float = 1e-6,
) -> None:
    """Add checkpoints to a history, `age` seconds old, one `step` after the other, for several messages in turn."""
    await pool.execute(WRITE, history, count, age, messages, step)


async def counts(pool: Pool) -> dict[History, int]:
    return {row["history"]: row["n"] for row in await pool.fetch("select history, count(*) as n from checkpoint group by history")}


async def kept(pool: Pool, history: str) -> list[int]:
    """Return the numbers, within their write, of the checkpoints that are left of a history, oldest first."""
    rows = await pool.fetch("select (facts ->> 'n')::int as n from checkpoint where history = $1 order by created_at, generation", history)
    return [row["n"] for row in rows]


async def become(pool: Pool, expected: dict[History, int]) -> None:
    """Wait until the histories are this long."""
    with anyio.fail_after(60):
        while await counts(pool) != expected:  # noqa: ASYNC110
            await anyio.sleep(0.05)


async def trim(trimmer: Trimmer) -> None:
    while await trimmer.trim():
        pass


@pytest.mark.scar(37)
async def test_checkpoint_cleanup(start_server: Callable[..., Server], pool: Pool) -> None:
    """The newest 100 stay of a task with several messages and of a message without a task, and nothing else is touched."""
    await write(pool, "task-7", 250, messages=7)
    await write(pool, "task-8", KEPT)
    await write(pool, "message:5", KEPT + 1)
    await write(pool, None, 150)
    api = start_server().api
    expected: dict[History, int] = {"task-7": 100, "task-8": 100, "message:5": 100, None: 150}
    await become(pool, expected)
    assert await kept(pool, "task-7") == list(range(151, 251))
    assert await kept(pool, "message:5") == list(range(2, 102))
    # What grows while the service runs: by itself, and on demand at once.
    await write(pool, "task-8", 30)
    await become(pool, expected)
    assert await kept(pool, "task-8") == [*range(31, 101), *range(1, 31)]
    await write(pool, "task-9", 120)
    assert api.call("POST", "/recovery/sweep", {})["errors"] == 0
    assert await counts(pool) == expected | {"task-9": 100}


@pytest.mark.scar(37)
@pytest.mark.parametrize("step", [0, 1e-6], ids=["of one moment", "of many moments"])
async def test_a_history_that_is_far_too_long_is_trimmed_in_bounded_batches(pool: Pool, step: float) -> None:
    await write(pool, "long", 2500, messages=50, step=step)
    await write(pool, "short", 1200, messages=1200, age=5)
    await write(pool, "short too", 50, age=6)
    trimmer = Trimmer(pool, 0)
    before = sum((await counts(pool)).values())
    while await trimmer.trim():
        after = sum((await counts(pool)).values())
        assert before - after <= 1000
        before = after
    assert await counts(pool) == {"long": 100, "short": 100, "short too": 50}
    assert await kept(pool, "long") == list(range(2401, 2501))


async def test_checkpoints_that_are_committed_late_are_trimmed_by_the_next_look(pool: Pool) -> None:
    trimmer = Trimmer(pool, 0)
    async with pool.acquire() as connection, connection.transaction():
        await write(connection, "slow", 130, age=20)
        await trim(trimmer)
    assert await counts(pool) == {"slow": 130}
    await trim(trimmer)
    assert await counts(pool) == {"slow": 100}


async def test_checkpoints_in_other_hands_are_passed_over(pool: Pool) -> None:
    """Waiting for them could end in a deadlock with whoever removes them."""
    await write(pool, "held", 130)
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("select from checkpoint where generation <= 5 for update")
        with anyio.fail_after(60):
            await trim(Trimmer(pool, 0))
        assert await counts(pool) == {"held": 105}
    await trim(Trimmer(pool, 0))
    assert await counts(pool) == {"held": 100}
