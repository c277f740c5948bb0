"""A row that Postgres refuses: found by halving, set aside, and told apart from its neighbours."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from app.store.coalescer import Coalescer
from app.store.database import Pool, fetch
from app.store.faults import RowFaultError, UnavailableError

pytestmark = [pytest.mark.rule(10), pytest.mark.scar(35)]

# Keeps every row it is given, and fails as a whole on a zero.
KEEP = "insert into kept select row, 100 / row from unnest($1::int[]) as row returning row, hundredth"


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[Pool]:
    async with asyncpg.create_pool(database_url, min_size=1, max_size=2) as opened:
        await opened.execute("create table kept (row int, hundredth int)")
        yield opened


class Keeper:
    """Keeps rows in Postgres, and remembers the batches it was asked for."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.batches: list[list[int]] = []
        self.calls: Coalescer[int, int] = Coalescer("keep", self._keep, batch=1000, limit=1000)

    async def _keep(self, rows: list[int]) -> list[int]:
        self.batches.append(rows)
        return [row["hundredth"] for row in await fetch(self._pool, KEEP, rows)]

    async def kept(self) -> list[int]:
        return [row["row"] for row in await self._pool.fetch("select row from kept order by row")]


def is_fault(verdict: object) -> bool:
    return isinstance(verdict, RowFaultError)


@pytest.mark.parametrize("culprit", [0, 1, 49, 98, 99])
async def test_the_culprit_alone_is_set_aside_wherever_it_stands(pool: Pool, culprit: int) -> None:
    keeper = Keeper(pool)
    rows = list(range(1, 101))
    rows[culprit] = 0
    verdicts = await keeper.calls.submit(rows)
    assert [index for index, verdict in enumerate(verdicts) if is_fault(verdict)] == [culprit]
    assert [verdict for verdict in verdicts if not is_fault(verdict)] == [100 // row for row in rows if row]
    assert await keeper.kept() == sorted(row for row in rows if row)


async def test_halving_asks_a_logarithm_of_times(pool: Pool) -> None:
    keeper = Keeper(pool)
    await keeper.calls.submit([*range(1, 512), 0])
    assert len(keeper.batches) <= 2 * 9 + 1


async def test_several_culprits_are_all_found(pool: Pool) -> None:
    keeper = Keeper(pool)
    rows = [0, 1, 2, 0, 0, 5, 0]
    verdicts = await keeper.calls.submit(rows)
    assert [is_fault(verdict) for verdict in verdicts] == [row == 0 for row in rows]
    assert await keeper.kept() == [1, 2, 5]


async def test_of_many_callers_in_one_batch_only_the_culprits_hears_of_it(pool: Pool) -> None:
    keeper = Keeper(pool)
    answers = await asyncio.gather(*(keeper.calls.submit([n]) for n in range(1, 20)), keeper.calls.submit([20, 0, 25]))
    assert answers[:-1] == [[100 // n] for n in range(1, 20)]
    assert [is_fault(verdict) for verdict in answers[-1]] == [False, True, False]
    assert await keeper.kept() == [*range(1, 21), 25]


async def test_the_log_names_the_verb_and_the_kind_of_fault(pool: Pool, capsys: pytest.CaptureFixture[str]) -> None:
    await Keeper(pool).calls.submit([1, 0])
    line = capsys.readouterr().out
    for part in ("row set aside", "keep", "22012", "DivisionByZeroError"):
        assert part in line


async def test_an_outage_is_no_fault_of_any_row(pool: Pool) -> None:
    keeper = Keeper(pool)
    await pool.close()
    with pytest.raises(UnavailableError):
        await keeper.calls.submit([1, 2, 3])
    assert keeper.batches == [[1, 2, 3]]
