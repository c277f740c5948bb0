"""Bar 1: beats with one lease per request, every one extending, as a share of the empty route of the same process."""

from harness.server import Server

from bench.bars import Bar, Scale, ratio
from bench.load import Load, posts_per_receipt, wrk
from bench.service import QUEUE, lease, outcomes
from bench.world import World, serving, world

_LEASES = 2000


def measure(scale: Scale) -> list[Bar]:
    with world() as bench, serving(bench.database()) as server:
        beats = Beats(bench, server)
        pairs = [(beats.rate(scale.seconds), empty_route(server, scale.seconds)) for _ in range(scale.rounds)]
        beats.check()
    return [ratio(1, "beat / empty route", pairs, 0.85, note=f"{pairs[-1][0]:.0f} of {pairs[-1][1]:.0f} requests/s in the last round")]


class Beats:
    """Beats for leases of a queue where each one extends: as many a second as can be, or at a steady pace."""

    def __init__(self, bench: World, server: Server, pace: int | None = None) -> None:
        self._server = server
        server.api.put_queue(QUEUE, beat_interval=0)
        self._script = posts_per_receipt(bench.folder / f"beat-{server.port}.lua", lease(server, _LEASES), pace)
        self.rate(1)  # warms up

    def load(self, seconds: int) -> Load:
        """Beat for a while."""
        return wrk(f"{self._server.url}/beat", seconds, self._script)

    def rate(self, seconds: int) -> float:
        """Return requests a second."""
        return self.load(seconds).rate

    def check(self) -> None:
        """Make sure that what was measured were extensions."""
        counts = outcomes(self._server, "beat")
        assert set(counts) == {"extended"}, counts


def empty_route(server: Server, seconds: int) -> float:
    """Return requests a second of the route that does nothing."""
    return wrk(f"{server.url}/healthz", seconds).rate
