"""The table that is printed, and the file that keeps the last full run."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.bars import Bar

_FILE = Path(__file__).with_name("results.json")
_HEAD = ("bar", "what", "value", "from", "to", "target", "ok", "note")
_VERDICTS = {True: "yes", False: "NO", None: ""}


def table(bars: Sequence[Bar]) -> str:
    """Lay out the bars in order, one a line."""
    return aligned([_HEAD, *(_line(bar) for bar in sorted(bars, key=lambda bar: bar.number))])


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Lay out lines of as many cells each, every column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)


def save(bars: Sequence[Bar], left: Sequence[Bar]) -> None:
    """Keep the bars, in place of those of the same numbers that were found before, and those `left` where nothing was."""
    results = [each for each in saved() if each["bar"] not in {bar.number for bar in bars}]
    before = {each["bar"] for each in results}
    results += map(kept, [*bars, *(bar for bar in left if bar.number not in before)])
    results.sort(key=lambda each: each["bar"])
    _FILE.write_text("[\n" + ",\n".join(f"  {json.dumps(each)}" for each in results) + "\n]\n")


def kept(bar: Bar) -> dict[str, Any]:
    """Return what is kept of a bar."""
    return {"bar": bar.number, "name": _with_unit(bar), "value": _rounded(bar), "target": bar.target, "ok": bar.ok}


def saved() -> list[dict[str, Any]]:
    """Return the bars that are kept, in order."""
    found: list[dict[str, Any]] = json.loads(_FILE.read_text()) if _FILE.exists() else []
    return found


def _with_unit(bar: Bar) -> str:
    return bar.name if bar.unit == "ratio" else f"{bar.name}, {bar.unit}"


def _line(bar: Bar) -> tuple[str, ...]:
    low, high = map(_shown, bar.spread) if bar.spread else ("", "")
    target = "none" if bar.target is None else f"{'at most' if bar.at_most else 'at least'} {_shown(bar.target)} {bar.unit}"
    return (str(bar.number), bar.name, _shown(bar.value), low, high, target, _VERDICTS[bar.ok], bar.note)


def _shown(number: float | None) -> str:
    return "missing" if number is None else f"{number:.4g}" if abs(number) < 1000 else f"{number:.0f}"


def _rounded(bar: Bar) -> float | None:
    """Round a value, but not to its target: which side of that is reached tells which way it is meant."""
    if bar.value is None:
        return None
    rounded = float(f"{bar.value:.4g}")
    return bar.value if rounded == bar.target else rounded
