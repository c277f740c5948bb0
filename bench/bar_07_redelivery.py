"""Bar 7: from a lease's expiry to its message's redelivery at a parked claim, while 2,000 beats a second run."""

from concurrent.futures import ThreadPoolExecutor
from statistics import median

from bench.bars import Bar, Scale, paced
from bench.beats import Beats
from bench.clients import processes
from bench.latency import p99
from bench.redelivery import run
from bench.world import serving, world

_BEATS_PER_S = 2000
_SILENT_PER_S = 100
_PARKED = 32


def measure(scale: Scale) -> list[Bar]:
    seconds = scale.rounds * scale.seconds * 2
    with world() as bench, serving(bench.database()) as server, processes(1) as pool, ThreadPoolExecutor(1) as beside:
        server.api.put_queue("silent")
        beats = Beats(bench, server, _BEATS_PER_S)
        beating = beside.submit(beats.load, seconds + 4)
        found = pool.submit(run, server.url, "silent", _SILENT_PER_S, seconds, _PARKED).result(seconds + 60)
        beaten = beating.result()
        beats.check()
    after = [1000 * each for each in found.after]
    note = f"{len(after)} leases ran out, median {median(after):.1f} ms, p99 of each fifth {_fifths(after)}"
    note += f"; beats' p99 {1000 * beaten.p99:.1f} ms"
    late = Bar(7, "expiry to redelivery, p99", p99(after), 50, at_most=True, unit="ms", spread=(min(after), max(after)), note=note)
    return [
        paced(late, beaten.rate, _BEATS_PER_S),
        Bar(7, "lost", found.lost, 0, at_most=True, unit="messages"),
        Bar(7, "redelivered twice", found.twice, 0, at_most=True, unit="messages"),
    ]


def _fifths(after: list[float]) -> str:
    """Say what each fifth of the time has shown by itself: whether all of it was so, or the machine stood still once."""
    length = max(1, len(after) // 5)
    parts = [after[first : first + length] for first in range(0, length * 5, length)]
    return " ".join(f"{p99(part):.0f}" for part in parts if part)
