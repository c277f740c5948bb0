"""Bar 6: the p99 of a claim with full tables, each kind of row alone and all together, as a multiple of that with empty ones.

The caller of the empty ones has only the ten messages that it has just sent.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench.bars import QUICK, Bar, Scale, ratio
from bench.clients import processes
from bench.latency import claims_in_turn, p99
from bench.service import QUEUE
from bench.tables import store
from bench.world import World, serving, world

_READY, _DELAYED, _LEASED, _FINISHED, _KEYS = 1_000_000, 500_000, 200_000, 5_000_000, 10_000


@dataclass(frozen=True, slots=True)
class Case:
    """What the tables are full of: messages by status, those that are ready under so many fairness keys, if any.

    `then` is what is added to them when this case has been measured, and what the tables are then.
    """

    name: str
    counts: dict[str, int]
    keys: int = 0
    then: "Case | None" = None


def measure(scale: Scale) -> list[Bar]:
    ready, delayed, leased, finished, keys = (int(count * scale.size) for count in (_READY, _DELAYED, _LEASED, _FINISHED, _KEYS))
    together = Case("all together", {"pending": ready, "scheduled": delayed, "in_progress": leased}, keys)
    cases = [
        Case(f"{ready:,} ready", {"pending": ready}),
        Case(f"{delayed:,} delayed", {"scheduled": delayed}),
        Case(f"{leased:,} leased", {"in_progress": leased}),
        Case(f"{keys:,} fairness keys", {"pending": 2 * keys}, keys),
        Case(f"{finished:,} finished", {"completed": finished}, then=together),
    ]
    with world() as bench:
        return [bar for case in (cases[-1:] if scale is QUICK else cases) for bar in _in_one_database(bench, case, scale)]


def _in_one_database(bench: World, case: Case | None, scale: Scale) -> Iterator[Bar]:
    with _database(bench) as full:
        while case is not None:
            store(full, keys=case.keys, **case.counts)
            yield _compare(bench, full, case, scale)
            case = case.then


@contextmanager
def _database(bench: World) -> Iterator[str]:
    """Make a database with the queue, for the length of a block."""
    url = bench.database()
    with serving(url) as server:
        server.api.put_queue(QUEUE)
    yield url
    bench.databases.drop(url)


def _compare(bench: World, full: str, case: Case, scale: Scale) -> Bar:
    with _database(bench) as empty, serving(full) as server, serving(empty) as reference, processes(1) as pool:

        def p99s(seconds: int) -> tuple[float, float]:
            of = pool.submit(claims_in_turn, [server.url, reference.url], seconds, case.keys).result(seconds + 90)
            return p99(of[0]), p99(of[1])

        p99s(1)  # warms up
        pairs = [p99s(scale.seconds) for _ in range(scale.rounds)]
    note = f"{pairs[-1][0] * 1000:.1f} ms / {pairs[-1][1] * 1000:.1f} ms in the last round"
    return ratio(6, f"claim p99, {case.name} / empty", pairs, 1.5, at_most=True, note=note)
