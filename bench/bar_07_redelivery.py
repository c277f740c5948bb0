"""Bar 7: from a lease's expiry to its message's redelivery at a parked claim, while 2,000 beats a second run."""

from statistics import median

from bench.bars import Bar, Scale
from bench.clients import processes
from bench.latency import p99
from bench.paced import beats
from bench.redelivery import run
from bench.service import QUEUE, lease
from bench.world import serving, world

_BEATS_PER_S = 2000
_SILENT_PER_S = 100
_PARKED = 32
_LEASES = 2000


def measure(scale: Scale) -> list[Bar]:
    seconds = scale.rounds * scale.seconds * 2
    with world() as bench, serving(bench.database()) as server, processes(2) as pool:
        server.api.put_queue(QUEUE, beat_interval=0)
        server.api.put_queue("silent")
        receipts = lease(server, _LEASES)
        beating = pool.submit(beats, server.url, receipts, _BEATS_PER_S, seconds + 4)
        found = pool.submit(run, server.url, "silent", _SILENT_PER_S, seconds, _PARKED).result(seconds + 60)
        beaten = beating.result(seconds + 60)
    after = [1000 * each for each in found.after]
    note = f"{len(after)} leases ran out, median {median(after):.1f} ms; {beaten.rate:.0f} beats/s, p99 {1000 * p99(beaten.took):.1f} ms"
    return [
        Bar(7, "expiry to redelivery, p99", p99(after), 50, at_most=True, unit="ms", spread=(min(after), max(after)), note=note),
        Bar(7, "messages lost", found.lost, 0, at_most=True, unit="messages"),
        Bar(7, "messages redelivered twice", found.twice, 0, at_most=True, unit="messages"),
    ]
