"""Bar 10: ten minutes of full cycles while a REPEATABLE READ transaction is held open, which keeps vacuum from all that ends meanwhile."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import asyncpg

from bench.bars import Bar, Scale
from bench.plots import Series, plot_series
from bench.service import QUEUE, fill
from bench.windows import watch
from bench.world import serving, world

_MINUTES = 10
_WINDOW_S = 10
_BEFORE = 6
"""Windows before the transaction is opened: what it is held against, and the last windows that are."""


def measure(scale: Scale) -> list[Bar]:
    with world() as bench, serving(url := bench.database()) as server:
        server.api.put_queue(QUEUE)
        fill(server, 10_000)
        seconds = max(2.0, _WINDOW_S * scale.size)
        list(watch(server, url, seconds, 1))  # warms up
        windows = list(watch(server, url, seconds, _BEFORE))
        with _snapshot(url):
            windows += watch(server, url, seconds, max(_BEFORE, int(_MINUTES * 60 * scale.size / seconds)))
    claims, rates = [1000 * each.claim_p99 for each in windows], [each.rate for each in windows]
    plot_series(scale, "snapshot", "seconds", seconds, [Series("claim p99, ms", claims), Series("cycles a second", rates)])
    return [
        _bar("claim p99, held snapshot / before", claims, 2.0, at_most=True),
        _bar("cycles a second, held snapshot / before", rates, 0.9, at_most=False),
    ]


def _bar(name: str, series: list[float], target: float, *, at_most: bool) -> Bar:
    before = median(series[:_BEFORE])
    ratios = [each / before for each in series[-_BEFORE:]]
    note = f"from {before:.1f} to {median(series[-_BEFORE:]):.1f}"
    return Bar(10, name, median(ratios), target, at_most, "ratio", (min(ratios), max(ratios)), note)


@contextmanager
def _snapshot(url: str) -> Iterator[None]:
    """Hold a transaction open, on a connection that does nothing else."""
    with asyncio.Runner() as runner:
        sql = runner.run(asyncpg.connect(url))
        runner.run(sql.execute("begin isolation level repeatable read"))
        runner.run(sql.fetchval("select count(*) from queue"))
        try:
            yield
        finally:
            runner.run(sql.close())
