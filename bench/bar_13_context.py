"""Bar 13: what `context.beat()` costs a handler of the SDK's worker, beside a real service that its beats go to."""

import statistics
import threading
import time

from harness.server import Server

from bench.bars import Bar, Scale
from bench.world import serving, world
from leasebeat import Context, LeasedMessage, Worker

_CALLS = 50_000


def measure(scale: Scale) -> list[Bar]:
    with world() as bench, serving(bench.database()) as server:
        found = [cost * 1e6 for cost in _costs(server, max(5, scale.rounds))]
    return [Bar(13, "context.beat(progress)", statistics.median(found), 5, at_most=True, unit="µs", spread=(min(found), max(found)))]


def _costs(server: Server, rounds: int) -> list[float]:
    """Return the seconds of one call, on average, in each round."""
    costs: list[float] = []
    done = threading.Event()

    def handle(_message: LeasedMessage, context: Context) -> None:
        for turn in range(rounds):
            started = time.perf_counter()
            for call in range(_CALLS):
                context.beat(progress=turn * _CALLS + call)
            costs.append((time.perf_counter() - started) / _CALLS)
        done.set()

    server.api.send("default", 1)
    worker = Worker(server.url, "default", handle)
    running = threading.Thread(target=worker.run)
    running.start()
    try:
        assert done.wait(60), "the handler did not end"
    finally:
        worker.stop()
        running.join(30)
    return costs
