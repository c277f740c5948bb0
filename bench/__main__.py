"""Measure bars and print them as one table: `python -m bench quick | full | long`, or the numbers of bars: `python -m bench 1 13`."""

import argparse
import importlib
import time
import traceback
from dataclasses import replace

from bench.bars import FULL, LONG, QUICK, Bar, Scale
from bench.plots import plot_bars
from bench.readme import write_tables
from bench.results import save, saved, table

# Bars that are measured together share a module.
_SHORT = {
    1: "bench.bar_01_beat",
    2: "bench.bar_02_singles",
    3: "bench.bar_03_cycles",
    4: "bench.peers",
    5: "bench.bar_05_telemetry",
    6: "bench.bar_06_backlog",
    7: "bench.bar_07_redelivery",
    12: "bench.bar_12_replicas",
    13: "bench.bar_13_context",
}
_LONG = {
    8: "bench.bar_08_timer",
    9: "bench.bar_09_parked",
    10: "bench.bar_10_snapshot",
    11: "bench.bar_11_flat",
}
_ALL = _SHORT | _LONG


def main() -> None:
    scale, numbers, saves = _asked()
    found: list[Bar] = []
    for number in numbers:
        started = time.monotonic()
        found += _measure(number, scale)
        print(f"bar {number} took {time.monotonic() - started:.0f} s", flush=True)
    print(table(found))
    if saves:
        save(found)
        write_tables()
        plot_bars(saved())


def _asked() -> tuple[Scale, list[int], bool]:
    """Return how much to measure, which bars, and whether to keep what is found."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("what", nargs="+", metavar="WHAT", help="quick, full, long, or numbers of bars, which are measured in full")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", action="store_true", help="measure the numbered bars as quick does")
    how.add_argument("--keep", action="store_true", help="keep what is found of the numbered bars, as full and long do")
    asked = parser.parse_args()
    if asked.what == ["quick"]:
        return QUICK, list(_SHORT), False
    if asked.what == ["full"]:
        return FULL, list(_SHORT), True
    if asked.what == ["long"]:
        return LONG, list(_LONG), True
    if unknown := [each for each in asked.what if not each.isdecimal() or int(each) not in _ALL]:
        parser.error(f"there is no bar {unknown[0]}")
    return QUICK if asked.quick else FULL, [int(each) for each in asked.what], asked.keep


def _measure(number: int, scale: Scale) -> list[Bar]:
    """Measure one module's bars. What goes wrong there is reported in the table, and the others are measured all the same."""
    try:
        measured: list[Bar] = importlib.import_module(_ALL[number]).measure(scale)
    except Exception as error:  # noqa: BLE001 - whatever it is
        traceback.print_exc()
        return [Bar(number, _ALL[number], None, 0, at_most=False, unit="", note=f"failed: {error!r:.200}")]
    return [replace(bar, note=f"{bar.note} ({scale.name})") if scale is QUICK else bar for bar in measured]


if __name__ == "__main__":
    main()
