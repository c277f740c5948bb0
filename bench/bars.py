"""What the bench finds: one bar per value, with the target that it is held to, and how much effort goes into one."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

MeasuredT = TypeVar("MeasuredT")


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured: `rounds` of `seconds` for each value; `size` is the share of full tables and of long runs."""

    name: str
    rounds: int
    seconds: int
    size: float

    @property
    def windows(self) -> int:
        """How many windows of a second take as long as all rounds: a machine that stands still for some seconds spoils few of them."""
        return self.rounds * self.seconds


QUICK = Scale("quick", rounds=1, seconds=1, size=0.02)
FULL = Scale("full", rounds=5, seconds=3, size=1)
LONG = Scale("long", rounds=5, seconds=4, size=1)


_ENOUGH = 0.9


@dataclass(frozen=True, slots=True)
class Bar:
    """One measured value, held to its target, or only shown if that is None.

    `value` None means that it could not be measured; then `note` says why.
    """

    number: int
    name: str
    value: float | None
    target: float | None
    at_most: bool
    unit: str
    spread: tuple[float, float] | None = None
    note: str = ""

    @property
    def ok(self) -> bool | None:
        """Whether the target is reached; None if there is none."""
        if self.target is None:
            return None
        if self.value is None:
            return False
        return self.value <= self.target if self.at_most else self.value >= self.target


def in_turn(rounds: int, ours: Callable[[], MeasuredT], reference: Callable[[], MeasuredT]) -> list[tuple[MeasuredT, MeasuredT]]:
    """Measure a value and its reference right after one another, so many times, and return them as pairs.

    Every other time the reference comes first: what changes the machine's pace meanwhile favours neither.
    """
    pairs = []
    for turn in range(rounds):
        if turn % 2 == 0:
            pairs.append((ours(), reference()))
        else:
            theirs = reference()
            pairs.append((ours(), theirs))
    return pairs


def ratio(
    number: int, name: str, pairs: Sequence[tuple[float, float]], target: float | None, *, at_most: bool = False, note: str = ""
) -> Bar:
    """Make the bar of pairs of a value and its reference, one pair per round: the median of the rounds' ratios."""
    ratios = [value / reference for value, reference in pairs]
    return Bar(number, name, statistics.median(ratios), target, at_most, "ratio", (min(ratios), max(ratios)), note)


def paced(bar: Bar, reached: float, asked: float) -> Bar:
    """Note how many beats a second ran beside. If they were less than nine tenths of what was asked for, the bar counts as not measured."""
    fell_short = reached < _ENOUGH * asked
    note = f"{reached:.0f} of {asked:.0f} beats/s{', too few' if fell_short else ''}; {bar.note}"
    return replace(bar, value=None if fell_short else bar.value, note=note)


def missing(number: int, name: str, target: float | None, *, at_most: bool, unit: str, why: str) -> Bar:
    """Make the bar of what could not be measured here."""
    return Bar(number, name, None, target, at_most, unit, None, why)
