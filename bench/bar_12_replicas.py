"""Bar 12: what the same clients cost two service processes, in CPU seconds of service and database, as a share of what they cost one."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from harness.server import Server

from bench.bars import Bar, Scale, ratio
from bench.beats import Beats
from bench.clients import processes
from bench.cycles import over_http
from bench.load import CONNECTIONS
from bench.service import QUEUE, fill
from bench.world import World, cpu_seconds, serving, world

_CALLERS = 8

Drive = Callable[[Sequence[Server], int], int]
"""Shares one load out among the servers for some seconds, and returns how much was done."""


def measure(scale: Scale) -> list[Bar]:
    with world() as bench, serving(url := bench.database()) as first, serving(url) as second:
        beats = [Beats(bench, server) for server in (first, second)]
        drives = {"beats": _beats(beats), "cycles": _cycles(first)}
        for drive in drives.values():
            drive([first, second], 1)  # warms up
        pairs: dict[str, list[tuple[float, float]]] = {what: [] for what in drives}
        for _ in range(scale.rounds):
            for what, drive in drives.items():
                two = _cost(bench, [first, second], drive, scale.seconds)
                pairs[what].append((two, _cost(bench, [first], drive, scale.seconds)))
        for each in beats:
            each.check()
    return [
        ratio(12, f"CPU per 1,000 {what}, two processes / one", each, 1.10, at_most=True, note="{:.3f} s / {:.3f} s".format(*each[-1]))
        for what, each in pairs.items()
    ]


def _cost(bench: World, servers: Sequence[Server], drive: Drive, seconds: int) -> float:
    """Return the CPU seconds that a thousand take."""

    def used() -> float:
        return bench.cpu() + sum(cpu_seconds(server.process.pid) for server in servers)

    before = used()
    done = drive(servers, seconds)
    return (used() - before) / done * 1000


def _beats(beats: Sequence[Beats]) -> Drive:
    """Make the drive of beats, each half of them for leases of its own: two servers that beat for one at a time would disagree on when."""

    def drive(servers: Sequence[Server], seconds: int) -> int:
        share = CONNECTIONS // len(beats)
        with ThreadPoolExecutor() as pool:
            loads = [pool.submit(half.load, seconds, servers[number % len(servers)], share) for number, half in enumerate(beats)]
            return sum(load.result().requests for load in loads)

    return drive


def _cycles(server: Server) -> Drive:
    server.api.put_queue(QUEUE)
    fill(server, 10_000)

    def drive(servers: Sequence[Server], seconds: int) -> int:
        with processes(len(servers)) as pool:
            futures = [pool.submit(over_http, each.url, _CALLERS // len(servers), seconds) for each in servers]
            return sum(future.result(seconds + 90).done for future in futures)

    return drive
