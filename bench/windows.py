"""Full load for a long time, looked at window by window: cycles, and what service and tables have grown to."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from harness.server import Server

from bench.clients import processes
from bench.cycles import over_http
from bench.latency import p99
from bench.tables import rows
from bench.world import memory_bytes

_CALLERS = 8
_SIZES = """
select relname as name, pg_relation_size(oid) as bytes
from pg_class
where relname in ('lease', 'message_ready') or oid in (select indexrelid from pg_index where indrelid = 'lease'::regclass)
union all
select 'recheck and its indexes', pg_total_relation_size('recheck')
"""


@dataclass(frozen=True, slots=True)
class Window:
    """What was seen in one window, and at its end."""

    rate: float
    claim_p99: float
    memory: float
    sizes: dict[str, int]


def watch(server: Server, database_url: str, seconds: float, count: int) -> Iterator[Window]:
    """Run cycles of 100 through so many windows."""
    with processes(1) as pool:
        for _ in range(count):
            cycles = pool.submit(over_http, server.url, _CALLERS, seconds).result(seconds + 120)
            sizes = {row["name"]: row["bytes"] for row in rows(database_url, _SIZES)}
            yield Window(cycles.rate, p99(cycles.claims), memory_bytes(server.process.pid), sizes)


def growth(series: Sequence[float]) -> float:
    """Return the last third of a series as a multiple of its first third, by their medians."""
    third = max(1, len(series) // 3)
    return median(series[-third:]) / median(series[:third])
