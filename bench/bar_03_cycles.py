"""Bar 3: whole cycles with 100 messages per request, as a share of the same statements run straight on Postgres without HTTP.

Both from one client process with the same number of callers.
"""

from harness.postgres import number
from harness.server import Server

from bench.bars import Bar, Scale, ratio
from bench.clients import in_a_process
from bench.cycles import on_postgres, over_http
from bench.service import QUEUE, fill
from bench.world import serving, world

CALLERS = 8
_AHEAD = 10_000
"""Messages that are ready throughout, so that no claim comes back with less than it asked for."""


def measure(scale: Scale) -> list[Bar]:
    with world() as bench, serving(url := bench.database()) as server:
        server.api.put_queue(QUEUE)
        fill(server, _AHEAD)
        queue_id = number(url, f"select id from queue where name = '{QUEUE}'")
        pairs = [(_http(server, scale.seconds), _sql(url, queue_id, scale.seconds)) for _ in range(scale.rounds + 1)][1:]  # one warms up
    return [ratio(3, "cycles of 100 / bare SQL", pairs, 0.50, note=f"{pairs[-1][0]:.0f} of {pairs[-1][1]:.0f} cycles/s in the last round")]


def _http(server: Server, seconds: int) -> float:
    return in_a_process(over_http, server.url, CALLERS, seconds, timeout=seconds + 90).rate


def _sql(url: str, queue_id: int, seconds: int) -> float:
    return in_a_process(on_postgres, url, queue_id, CALLERS, seconds, timeout=seconds + 90).rate
