"""Beats of one lease each, by wrk: what bars 1, 5, 7, 9 and 12 drive the service with."""

from harness.server import Server

from bench.load import CONNECTIONS, Load, posts_per_receipt, wrk
from bench.service import LEASE_S, lease, outcomes
from bench.world import World

_QUEUE = "beats"
_LEASES = 2000
_EXTENSION_S = 2 * LEASE_S
"""Longer than the leases at first, so that each beat moves an expiry: it is never moved back."""


class Beats:
    """Beats for leases of a queue where each one extends and moves the expiry: as many a second as can be, or at a steady pace."""

    def __init__(self, bench: World, server: Server, pace: int | None = None) -> None:
        self._server = server
        server.api.put_queue(_QUEUE, beat_interval=0, extension=_EXTENSION_S)
        self._script = posts_per_receipt(bench.folder / f"beat-{server.port}.lua", lease(server, _LEASES, _QUEUE), pace)
        self.rate(1)  # warms up

    def load(self, seconds: int, server: Server | None = None, connections: int = CONNECTIONS) -> Load:
        """Beat for a while, at this server or at another of the same database."""
        return wrk(f"{(server or self._server).url}/beat", seconds, self._script, connections)

    def rate(self, seconds: int) -> float:
        """Return requests a second."""
        return self.load(seconds).rate

    def check(self) -> None:
        """Make sure that what was measured were extensions, and that they moved expiries."""
        counts = outcomes(self._server, "beat")
        assert set(counts) == {"extended"}, counts
        leases = self._server.api.call("GET", f"/leases?queue={_QUEUE}&limit=1000")["items"]
        left = [each["expires_in"] for each in leases if each["last_beat_at"]]
        assert left, "no lease has been beaten for"
        assert min(left) > LEASE_S, f"a lease that was beaten for runs out in {min(left):.0f} s"
