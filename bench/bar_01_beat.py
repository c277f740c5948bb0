"""Bar 1: beats with one lease per request, every one extending, as a share of the empty route of the same process."""

from harness.server import Server

from bench.bars import Bar, Scale, in_turn, ratio
from bench.beats import Beats
from bench.load import wrk
from bench.world import serving, world


def measure(scale: Scale) -> list[Bar]:
    with world() as bench, serving(bench.database()) as server:
        beats = Beats(bench, server)
        pairs = in_turn(scale.rounds, lambda: beats.rate(scale.seconds), lambda: empty_route(server, scale.seconds))
        beats.check()
    return [ratio(1, "beat / empty route", pairs, 0.85, note=f"{pairs[-1][0]:.0f} of {pairs[-1][1]:.0f} requests/s in the last round")]


def empty_route(server: Server, seconds: int) -> float:
    """Return requests a second of the route that does nothing."""
    return wrk(f"{server.url}/healthz", seconds).rate
