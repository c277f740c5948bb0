"""Bar 12: what the same clients cost two service processes, in CPU seconds of service and database, as a share of what they cost one.

What the processes use while nobody calls them is measured before, and stated: it is part of either cost, and no more of one than that.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

from harness.server import Server

from bench.bars import Bar, Scale, in_turn, ratio
from bench.beats import Beats
from bench.clients import processes
from bench.cycles import over_http
from bench.load import CONNECTIONS
from bench.service import QUEUE, fill
from bench.world import World, cpu_seconds, serving, world

_CLIENTS = 2
"""The same ones for two servers, one each, and for one."""
_CALLERS = 4
"""Of each client."""

Drive = Callable[[Sequence[Server]], int]
"""Shares one load out among the servers for a second, and returns how much was done."""


def measure(scale: Scale) -> list[Bar]:
    with world() as bench, serving(url := bench.database()) as first, processes(_CLIENTS) as pool:
        idle_one = _idle(bench, [first], scale)
        with serving(url) as second:
            both = [first, second]
            idle = f"idle {100 * _idle(bench, both, scale):.1f} % of a core / {100 * idle_one:.1f} %"
            beats = [Beats(bench, server) for server in both]
            drives = {"beats": _beats(beats), "cycles": _cycles(first, pool)}
            bars = [_bar(what, _pairs(bench, both, drive, scale), idle) for what, drive in drives.items()]
            for each in beats:
                each.check()
    return bars


def _bar(what: str, pairs: list[tuple[float, float]], idle: str) -> Bar:
    two, one = pairs[-1]
    note = f"{two:.3f} s / {one:.3f} s in the last window; {idle}"
    return ratio(12, f"CPU per 1,000 {what}, two processes / one", pairs, 1.10, at_most=True, note=note)


def _pairs(bench: World, both: Sequence[Server], drive: Drive, scale: Scale) -> list[tuple[float, float]]:
    """Return the CPU seconds that a thousand take two servers and one, in each of the windows."""

    def cost(servers: Sequence[Server]) -> float:
        before = _used(bench, servers)
        done = drive(servers)
        return (_used(bench, servers) - before) / done * 1000

    drive(both)  # warms up
    return in_turn(scale.windows, lambda: cost(both), lambda: cost(both[:1]))


def _used(bench: World, servers: Sequence[Server]) -> float:
    return bench.cpu() + sum(cpu_seconds(server.process.pid) for server in servers)


def _idle(bench: World, servers: Sequence[Server], scale: Scale) -> float:
    """Return the share of a core that Postgres and servers use which nobody calls."""
    time.sleep(1)  # for what they do once, as they start
    before = _used(bench, servers)
    time.sleep(scale.seconds)
    return (_used(bench, servers) - before) / scale.seconds


def _beats(beats: Sequence[Beats]) -> Drive:
    """Make the drive of beats, each half of them for leases of its own: two servers that beat for one at a time would disagree on when."""

    def drive(servers: Sequence[Server]) -> int:
        share = CONNECTIONS // len(beats)
        with ThreadPoolExecutor() as pool:
            loads = [pool.submit(half.load, 1, servers[number % len(servers)], share) for number, half in enumerate(beats)]
            return sum(load.result().requests for load in loads)

    return drive


def _cycles(server: Server, pool: ProcessPoolExecutor) -> Drive:
    server.api.put_queue(QUEUE)
    fill(server, 10_000)

    def drive(servers: Sequence[Server]) -> int:
        futures = [pool.submit(over_http, servers[number % len(servers)].url, _CALLERS, 1) for number in range(_CLIENTS)]
        return sum(future.result(90).done for future in futures)

    return drive
