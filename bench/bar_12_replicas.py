"""Bar 12: what the same clients cost two service processes, in CPU seconds of service and database, as a share of what they cost one.

Two processes lose more than what they do for one another: each of them has half of the callers, so its statements carry fewer beats, and
they share the cores. So two that share no database, and know nothing of one another, are measured beside them for a while: what two
replicas cost more than these is lost to coordination. What is used while nobody calls is noted too; it is counted with the rest, also
what the servers take of Postgres that are not called just then.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

from harness.server import Server

from bench.bars import Bar, Scale, in_turn, ratio
from bench.beats import Beats
from bench.clients import processes
from bench.cycles import over_http
from bench.load import CONNECTIONS
from bench.service import QUEUE, fill
from bench.world import World, cpu_seconds, serving, world

_CLIENTS = 2
_CALLERS = 4
"""Of each client."""


@dataclass(frozen=True, slots=True)
class Client:
    """Which server it calls, and with beats for which leases: two servers that beat for one at a time would disagree on when."""

    server: Server
    beats: Beats


Drive = Callable[[Sequence[Client]], int]
"""Lets all clients work for a second, and returns how much was done."""


def measure(scale: Scale) -> list[Bar]:
    with ExitStack() as stack:
        bench, pool = stack.enter_context(world()), stack.enter_context(processes(_CLIENTS))
        url = bench.database()
        first = stack.enter_context(serving(url))
        idle = [_idle(bench, [first], scale)]
        second = stack.enter_context(serving(url))
        idle.append(_idle(bench, [first, second], scale))
        other = stack.enter_context(serving(bench.database()))
        beats = {server: Beats(bench, server) for server in (first, second, other)}
        for server in (first, other):
            server.api.put_queue(QUEUE)
            fill(server, 10_000)
        replicas = [Client(first, beats[first]), Client(second, beats[second])]
        one = [Client(first, client.beats) for client in replicas]
        strangers = [replicas[0], Client(other, beats[other])]
        bars = []
        for what, drive in {"beats": _beats, "cycles": _cycles(pool)}.items():
            for warmed_up in (replicas, strangers):
                drive(warmed_up)
            pairs = _pairs(bench, drive, replicas, one, 2 * scale.rounds)
            beside = _pairs(bench, drive, replicas, strangers, scale.rounds)
            bars.append(_bar(what, pairs, beside, idle))
        for each in beats.values():
            each.check()
    return bars


def _bar(what: str, pairs: list[tuple[float, float]], beside: list[tuple[float, float]], idle: Sequence[float]) -> Bar:
    note = "{:.3f} s / {:.3f} s in the last window".format(*pairs[-1])
    note += f"; {median(two / strangers for two, strangers in beside):.3g} of two that share no database"
    note += "; idle, one used {:.1%} of a core, two {:.1%}".format(*idle)
    return ratio(12, f"CPU per 1,000 {what}, two processes / one", pairs, 1.10, at_most=True, note=note)


def _pairs(bench: World, drive: Drive, clients: Sequence[Client], reference: Sequence[Client], count: int) -> list[tuple[float, float]]:
    """Return the CPU seconds that a thousand take with the ones and the others, in so many windows."""

    def cost(of: Sequence[Client]) -> float:
        servers = [client.server for client in of]
        before = _used(bench, servers)
        done = drive(of)
        return (_used(bench, servers) - before) / done * 1000

    return in_turn(count, lambda: cost(clients), lambda: cost(reference))


def _used(bench: World, servers: Sequence[Server]) -> float:
    """Return the CPU seconds that Postgres and these servers have used so far."""
    return bench.cpu() + sum(map(cpu_seconds, {server.process.pid for server in servers}))


def _idle(bench: World, servers: Sequence[Server], scale: Scale) -> float:
    """Return the share of a core that they use while nobody calls."""
    time.sleep(1)  # for what they do once, as they start
    before = _used(bench, servers)
    time.sleep(scale.seconds)
    return (_used(bench, servers) - before) / scale.seconds


def _beats(clients: Sequence[Client]) -> int:
    with ThreadPoolExecutor() as pool:
        loads = [pool.submit(client.beats.load, 1, client.server, CONNECTIONS // _CLIENTS) for client in clients]
        return sum(load.result().requests for load in loads)


def _cycles(pool: ProcessPoolExecutor) -> Drive:
    def drive(clients: Sequence[Client]) -> int:
        futures = [pool.submit(over_http, client.server.url, _CALLERS, 1) for client in clients]
        return sum(future.result(90).done for future in futures)

    return drive
