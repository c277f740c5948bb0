"""Measure bars and print them as one table: `python -m bench quick | full | long`, or the numbers of bars: `python -m bench 1 13`."""

import argparse
import importlib
import signal
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from bench.bars import FULL, LONG, QUICK, Bar, Scale, missing
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
_MEASURING = 0.955
"""The share of the time that is for measuring: what is cut short takes some to end."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """How much to measure, which bars, whether to keep what is found, and within how many minutes, if that is bounded."""

    scale: Scale
    numbers: Sequence[int]
    keeps: bool
    minutes: int | None = None

    @property
    def seconds(self) -> float:
        """How long may be measured; 0 if that is not bounded."""
        return self.minutes * 60 * _MEASURING if self.minutes else 0


_NAMED = {
    "quick": _Asked(QUICK, list(_SHORT), keeps=False, minutes=2),
    "full": _Asked(FULL, list(_SHORT), keeps=True, minutes=15),
    "long": _Asked(LONG, list(_LONG), keeps=True, minutes=60),
}


class _TimeOver(KeyboardInterrupt):
    """The time is used up. What is under way ends as by Ctrl-C: nothing on the way takes it for a failure of its own."""


def main() -> None:
    asked = _asked()
    found, took = _measure_all(asked)
    bars = [bar for of_one in found.values() for bar in of_one]
    left = [_not_measured(number, asked) for number in asked.numbers if number not in found]
    print(table([*bars, *left]))
    print(_times(took, asked))
    if asked.keeps:
        save(bars, left)
        write_tables()
        plot_bars(saved())


def _asked() -> _Asked:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("what", nargs="+", metavar="WHAT", help="quick, full, long, or numbers of bars, which are measured in full")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", action="store_true", help="measure the numbered bars as quick does")
    how.add_argument("--keep", action="store_true", help="keep what is found of the numbered bars, as full and long do")
    asked = parser.parse_args()
    if len(asked.what) == 1 and asked.what[0] in _NAMED:
        return _NAMED[asked.what[0]]
    if unknown := [each for each in asked.what if not each.isdecimal() or int(each) not in _ALL]:
        parser.error(f"there is no bar {unknown[0]}")
    return _Asked(QUICK if asked.quick else FULL, [int(each) for each in asked.what], asked.keep)


def _times(took: Mapping[int, float], asked: _Asked) -> str:
    """Say how long each bar took, and how much of the time that is."""
    each = ", ".join(f"bar {number} {seconds:.0f}" for number, seconds in took.items())
    return f"seconds: {each}; {sum(took.values()):.0f} in all{f' of {asked.seconds:.0f}' if asked.minutes else ''}"


def _measure_all(asked: _Asked) -> tuple[dict[int, list[Bar]], dict[int, float]]:
    """Measure one bar after another until all are done or the time is over.

    Returns by number those that were finished, and how many seconds each took, also the one that was cut short.
    """
    found: dict[int, list[Bar]] = {}
    took: dict[int, float] = {}
    signal.signal(signal.SIGALRM, _end)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nothing is left running
    try:
        signal.setitimer(signal.ITIMER_REAL, asked.seconds)
        for number in asked.numbers:
            started = time.monotonic()
            try:
                found[number] = _measure(number, asked.scale)
            finally:
                took[number] = time.monotonic() - started
                print(f"bar {number} took {took[number]:.0f} s", flush=True)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except _TimeOver:
        print("the time is over", flush=True)
    return found, took


def _end(*_signal: object) -> NoReturn:
    raise _TimeOver


def _not_measured(number: int, asked: _Asked) -> Bar:
    return missing(number, _ALL[number], 0, at_most=False, unit="", why=f"the {asked.minutes} minutes were used up before")


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
