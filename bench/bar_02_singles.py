"""Bar 2: single-message sends, claims and acks, one per request, each as a share of the empty route of the same process."""

import json
from collections.abc import Callable
from pathlib import Path

from harness.server import Server

from bench.bar_01_beat import empty_route
from bench.bars import Bar, Scale, ratio
from bench.load import CONNECTIONS, posts, posts_per_receipt, wrk
from bench.service import QUEUE, counted, fill, lease, outcomes
from bench.world import serving, world

_PER_SECOND = 10_000
"""More than are claimed or acked in a second, so that none is without work."""

Prepare = Callable[[Server, Path, int], tuple[str, Path]]


def measure(scale: Scale) -> list[Bar]:
    with world() as bench, serving(bench.database()) as server:
        server.api.put_queue(QUEUE)
        verbs: dict[str, Prepare] = {"send": _sends, "claim": _claims, "ack": _Acks()}
        pairs: dict[str, list[tuple[float, float]]] = {verb: [] for verb in verbs}
        seconds = max(1, scale.seconds - 1)  # each verb has its reference beside it
        for _ in range(scale.rounds):
            for verb, prepare in verbs.items():
                path, script = prepare(server, bench.folder / f"{verb}.lua", seconds)
                reference = empty_route(server, seconds)
                before = _done(server, verb)
                load = wrk(server.url + path, seconds, script)
                assert _done(server, verb) - before >= load.requests, f"not every {verb} did its work"
                assert verb == "send" or load.requests + CONNECTIONS < seconds * _PER_SECOND, "there was too little work"
                pairs[verb].append((load.rate, reference))
    return [
        ratio(2, f"{verb} of one / empty route", each, 0.70, note=f"{each[-1][0]:.0f} of {each[-1][1]:.0f} requests/s in the last round")
        for verb, each in pairs.items()
    ]


def _sends(_server: Server, file: Path, _seconds: int) -> tuple[str, Path]:
    return f"/queues/{QUEUE}/messages", posts(file, json.dumps({"messages": [{"body": 1}]}))


def _claims(server: Server, file: Path, seconds: int) -> tuple[str, Path]:
    ready = counted(server, "sends") - counted(server, "claims")  # what the other verbs, and earlier rounds, have left
    fill(server, seconds * _PER_SECOND - ready)
    return f"/queues/{QUEUE}/leases", posts(file, json.dumps({"worker_id": "bench", "visibility_timeout": 3600}))


class _Acks:
    """Acks one lease after another. What one load has left is for the next: it takes longer to lease than to ack."""

    def __init__(self) -> None:
        self._receipts: list[str] = []
        self._acked = 0

    def __call__(self, server: Server, file: Path, seconds: int) -> tuple[str, Path]:
        before, self._acked = self._acked, _done(server, "ack")
        used = self._acked - before + CONNECTIONS  # as many may have been on their way when the load ended
        self._receipts = self._receipts[used:]
        self._receipts += lease(server, seconds * _PER_SECOND - len(self._receipts))
        return "/ack", posts_per_receipt(file, self._receipts)


def _done(server: Server, verb: str) -> int:
    """Count what the service has done by this verb: messages sent, leases granted, messages completed."""
    return outcomes(server, "ack").get("acked", 0) if verb == "ack" else counted(server, f"{verb}s")
