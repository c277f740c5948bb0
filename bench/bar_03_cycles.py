"""Bar 3: whole cycles with 100 messages per request, as a share of the same statements run straight on Postgres without HTTP.

Both from the same client processes with the same number of callers.
"""

from collections.abc import Callable
from statistics import mean

from harness.postgres import number

from bench.bars import Bar, Scale, in_turn, ratio
from bench.clients import processes
from bench.cycles import Cycles, on_postgres, over_http
from bench.service import QUEUE, fill
from bench.world import serving, world

_CLIENTS = 2
_CALLERS = 4
"""Of each client."""
_AHEAD = 10_000
"""Messages that are ready throughout, so that no claim comes back with less than it asked for."""


def measure(scale: Scale) -> list[Bar]:
    with world() as bench, serving(url := bench.database()) as server, processes(_CLIENTS) as pool:

        def drive(work: Callable[..., Cycles], *where: object) -> list[Cycles]:
            clients = [pool.submit(work, *where, _CALLERS, scale.seconds) for _ in range(_CLIENTS)]
            return [client.result(scale.seconds + 90) for client in clients]

        server.api.put_queue(QUEUE)
        fill(server, _AHEAD)
        queue_id = number(url, f"select id from queue where name = '{QUEUE}'")
        turns = in_turn(scale.rounds + 1, lambda: drive(over_http, server.url), lambda: drive(on_postgres, url, queue_id))
        found = turns[1:]  # one warms up
    http, sql = found[-1]
    note = (
        f"{_rate(http):.0f} of {_rate(sql):.0f} cycles/s in the last round; each client used {_busy(http):.0%} of a core, {_busy(sql):.0%}"
    )
    return [ratio(3, "cycles of 100 / bare SQL", [(_rate(ours), _rate(bare)) for ours, bare in found], 0.50, note=note)]


def _rate(clients: list[Cycles]) -> float:
    return sum(each.rate for each in clients)


def _busy(clients: list[Cycles]) -> float:
    return mean(each.cpu / each.seconds for each in clients)
