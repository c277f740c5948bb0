"""The ways to Postgres.

Beats have a pool of their own, so that no flood of other calls delays them (design rule 11), and so has the timer (rule 8). People's
reads have another, and what is rare goes through SQLAlchemy.
Hot statements stand alone and never change session state, so a connection needs no reset between uses.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import asyncpg
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlmodel.ext.asyncio.session import AsyncSession

from app.store.faults import DeadlockError, answering

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"
Row: TypeAlias = asyncpg.Record
T = TypeVar("T")

STATEMENT_TIMEOUT_S = 30.0
_BEAT_CONNECTIONS = 2
_TIMER_CONNECTIONS = 2
_WORK_CONNECTIONS = 8
_READ_CONNECTIONS = 4
_ENGINE_CONNECTIONS = 2
_CLOSE_TIMEOUT_S = 5.0
_TRIES = 3
# JIT pays for long analyses; here it would only add its compile time to short statements.
_BASE = {"application_name": "leasebeat", "jit": "off", "timezone": "UTC"}
# A replica that freezes in the middle of a transaction must not keep a queue's row, or a chore, from the others.
_SESSION = _BASE | {"idle_in_transaction_session_timeout": "5s"}
# Whoever changes a queue waits for the claims that are under way, which are short; who is kept longer than this by something else is
# told to try again, and does not keep others from the connection.
_WRITING_SESSION = _SESSION | {"lock_timeout": "5s"}
# Hot statements go row by row from their arrays to the tables, by the index that has their order: the one plan that is good at any size.
# Postgres would else choose others while it takes a table to be small, and keep them: reading whole tables, sorting them, or joining
# batches by nested scans. As there is one good plan, it is kept: to plan each call anew costs a lone ack as much again as the ack.
# The joins are those of `store/keys.py`.
HOT_SESSION = _SESSION | {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_sort": "off",
    "enable_incremental_sort": "off",
    "plan_cache_mode": "force_generic_plan",
}
# What people read may have many good plans, by what they ask for and by what the tables hold at the time.
_READING_SESSION = _SESSION | {"plan_cache_mode": "force_custom_plan"}


@dataclass(frozen=True, slots=True)
class Database:
    """The pools of one replica."""

    url: str
    beats: Pool
    timer: Pool
    work: Pool
    reads: Pool
    reading: AsyncEngine
    writing: AsyncEngine

    async def close(self) -> None:
        """Close every connection. A pool that cannot close in time, because a statement hangs, is cut off."""
        for pool in (self.beats, self.timer, self.work, self.reads):
            try:
                await asyncio.wait_for(pool.close(), _CLOSE_TIMEOUT_S)
            except TimeoutError:
                pool.terminate()
        await self.reading.dispose()
        await self.writing.dispose()


async def connect(
    url: str, settings: Mapping[str, str] = _BASE, *, statement_timeout: float | None = STATEMENT_TIMEOUT_S
) -> asyncpg.Connection:
    """Open one connection outside the pools, for a listener or a migration. The time-out is in seconds."""
    return await asyncpg.connect(plain_url(url), server_settings=dict(settings), timeout=10, command_timeout=statement_timeout)


async def open_database(url: str) -> Database:
    """Open the pools. Connections are made when first needed, so this succeeds while Postgres is still starting."""
    return Database(
        url,
        beats=await _pool(url, _BEAT_CONNECTIONS, HOT_SESSION),
        timer=await _pool(url, _TIMER_CONNECTIONS, HOT_SESSION),
        work=await _pool(url, _WORK_CONNECTIONS, HOT_SESSION),
        reads=await _pool(url, _READ_CONNECTIONS, _READING_SESSION),
        reading=open_engine(url, _READING_SESSION),
        writing=open_engine(url, _WRITING_SESSION),
    )


def open_engine(url: str, settings: Mapping[str, str] = _BASE, *, statement_timeout: float | None = STATEMENT_TIMEOUT_S) -> AsyncEngine:
    return create_async_engine(
        "postgresql+asyncpg://",
        async_creator=lambda: connect(url, settings, statement_timeout=statement_timeout),
        pool_size=_ENGINE_CONNECTIONS,
        max_overflow=0,
        pool_pre_ping=True,
    )


def plain_url(url: str) -> str:
    """Drop SQLAlchemy's driver name from a URL, so that both spellings work."""
    scheme, _, rest = url.partition("://")
    return f"{scheme.partition('+')[0]}://{rest}"


async def fetch(pool: Pool, statement: str, *arguments: object) -> list[Row]:
    """Run one statement in a transaction of its own: when this returns, it is committed (design rule 7).

    Raises:
        UnavailableError: Postgres did not answer; whether the statement took effect is unknown.

    """
    return await _carry_out(lambda: pool.fetch(statement, *arguments))


async def fetch_holding(pool: Pool, hold: str, held: object, statement: str, *arguments: object) -> list[Row]:
    """Run one statement while a lock is held that `hold` takes on `held`: it sees what was committed before the lock was had.

    Raises:
        UnavailableError: Postgres did not answer; whether the statement took effect is unknown.

    """

    async def transaction() -> list[Row]:
        async with pool.acquire() as connection, connection.transaction():
            await connection.fetch(hold, held)
            return await connection.fetch(statement, *arguments)

    return await _carry_out(transaction)


async def _carry_out(transaction: Callable[[], Awaitable[T]]) -> T:
    """Carry out a transaction, and again if it fell to a deadlock: no row of it is to blame."""
    for _ in range(_TRIES - 1):
        with contextlib.suppress(DeadlockError), answering():
            return await transaction()
    with answering():
        return await transaction()


@contextlib.asynccontextmanager
async def reading(database: Database) -> AsyncIterator[AsyncSession]:
    """Open a session that reads tables, for what is not hot.

    Raises:
        UnavailableError: Postgres did not answer.

    """
    with answering():
        async with AsyncSession(database.reading, expire_on_commit=False) as opened:
            yield opened


async def write(database: Database, change: Callable[[AsyncSession], Awaitable[T]]) -> T:
    """Carry out a change of what is not hot in a transaction of its own. It is committed when this returns.

    Raises:
        UnavailableError: Postgres did not answer, or another transaction kept a lock for seconds.

    """

    async def transaction() -> T:
        async with AsyncSession(database.writing, expire_on_commit=False) as opened:
            changed = await change(opened)
            await opened.commit()
            return changed

    return await _carry_out(transaction)


async def _pool(url: str, size: int, session_settings: dict[str, str]) -> Pool:
    return await asyncpg.create_pool(
        plain_url(url),
        min_size=0,
        max_size=size,
        command_timeout=STATEMENT_TIMEOUT_S,
        timeout=5,
        server_settings=session_settings,
        reset=_keep_session,
    )


async def _keep_session(_connection: object) -> None:
    """Skip the reset that a pool does by default: a whole round trip, for session state that no statement here changes."""
