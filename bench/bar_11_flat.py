"""Bar 11: twenty minutes of full load: the memory of the service, and the size of the lease table and of the ready index, stay flat.

They do once the pages that vacuum gives back are as many as are taken. Autovacuum looks once a minute, so that comes after some of its
passes: the ready index took its last page 250 s after the load began. Those first minutes are no part of the twenty.

Thirds are compared, by their medians: a pass of vacuum that comes late shows in a few windows, growth in all that follow.
"""

from bench.bars import Bar, Scale
from bench.plots import Series, plot_series
from bench.service import QUEUE, fill
from bench.windows import Window, growth, watch
from bench.world import serving, world

_MINUTES = 20
_WINDOW_S = 10
_WARM_UP_S = 300
_FLAT = 1.07
"""The most that the last third may be of the first. What grows steadily by 11 % in the twenty minutes is beyond it."""


def measure(scale: Scale) -> list[Bar]:
    with world() as bench, serving(url := bench.database()) as server:
        server.api.put_queue(QUEUE)
        fill(server, 10_000)
        seconds = max(2.0, _WINDOW_S * scale.size)
        list(watch(server, url, seconds, int(_WARM_UP_S * scale.size / seconds)))
        windows = list(watch(server, url, seconds, max(3, int(_MINUTES * 60 * scale.size / seconds))))
    series = {"memory of the service": [each.memory / 2**20 for each in windows]}
    series |= {f"size of {name}": [each.sizes[name] / 2**20 for each in windows] for name in windows[0].sizes}
    plot_series(scale, "flat", "seconds", seconds, [Series(f"{name}, MiB", values) for name, values in series.items()])
    return [_bar(name, values, windows) for name, values in series.items()]


def _bar(name: str, values: list[float], windows: list[Window]) -> Bar:
    note = f"from {values[0]:.1f} to {values[-1]:.1f} MiB, at {windows[-1].rate:.0f} cycles/s"
    return Bar(11, f"{name}, end / start", growth(values), _FLAT, at_most=True, unit="ratio", note=note)
