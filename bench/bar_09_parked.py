"""Bar 9: 10,000 parked claims: the memory of the service for each, how fast a message wakes one, and what is left for beats."""

from statistics import median

from harness.operating import parked_on
from harness.server import Server
from harness.wait import until

from bench.bars import Bar, Scale, in_turn, ratio
from bench.beats import Beats
from bench.clients import processes
from bench.latency import p99
from bench.parked import feed, park
from bench.world import memory_bytes, serving, world

_CLAIMS = 10_000
_CLIENTS = 2
_FEED_PER_S = 50
_FEED_S = 30
_OPENING_S = 60
_SPARE_S = 35
"""For a machine that stands still at times: the claims stay parked for so much longer than all that is measured beside them takes."""
_NEARLY_ALL, _MOST = 0.99, 0.9
"""Of the claims: as many are parked before anything is measured, and still after it: some are on their way back at any moment."""
_QUEUE = "parked"


def measure(scale: Scale) -> list[Bar]:
    claims, feed_s = int(_CLAIMS * scale.size), max(5, _FEED_S * scale.size)
    with world() as bench, serving(bench.database()) as server, serving(bench.database()) as other, processes(_CLIENTS + 1) as pool:
        server.api.put_queue(_QUEUE)
        beats, without = Beats(bench, server), Beats(bench, other)
        memory = _memory(server)
        seconds = _OPENING_S * scale.size + feed_s + 2 * scale.windows + _SPARE_S
        parked = [pool.submit(park, server.url, _QUEUE, f"client-{number}", claims // _CLIENTS, seconds) for number in range(_CLIENTS)]
        until(lambda: parked_on(server) >= claims * _NEARLY_ALL, timeout=seconds, pause=0.5)
        each = (_memory(server) - memory) / claims / 1000
        sent = pool.submit(feed, server.url, _QUEUE, _FEED_PER_S, feed_s).result(seconds)
        pairs = in_turn(scale.windows, lambda: beats.rate(1), lambda: without.rate(1))
        assert parked_on(server) >= claims * _MOST, "the claims did not stay parked for as long as beats were measured beside them"
        took = [1000 * each for client in parked for each in client.result(seconds)]
        beats.check()
        without.check()
    assert len(took) == sent, f"of {sent} messages, {len(took)} were delivered"
    note = f"{sent} messages, median {median(took):.1f} ms"
    return [
        Bar(9, "memory per parked claim", each, 40, at_most=True, unit="kB", note=f"{claims:,} parked"),
        Bar(9, "wake to delivery, p99", p99(took), 50, at_most=True, unit="ms", spread=(min(took), max(took)), note=note),
        ratio(9, "beats with parked claims / without", pairs, 0.9, note=f"{pairs[-1][0]:.0f} of {pairs[-1][1]:.0f} in the last round"),
    ]


def _memory(server: Server) -> float:
    return memory_bytes(server.process.pid)
