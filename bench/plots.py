"""Plots as PNG, beside the results. matplotlib draws them in a process of its own: only the bench's own installation has it."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import ROOT
from bench.bars import QUICK, Scale

_FOLDER = Path(__file__).with_name("plots")
_PYTHON = ROOT / ".bench" / "tools" / "bin" / "python"
_SMALLEST_SHARE, _LARGEST_SHARE = 0.05, 20


@dataclass(frozen=True, slots=True)
class Series:
    """Values that follow one another in equal steps."""

    name: str
    values: Sequence[float]


def plot_series(scale: Scale, name: str, across: str, step: float, series: Sequence[Series]) -> None:
    """Draw series that begin at the same moment, one above the other. A quick run is not worth a picture."""
    if scale is not QUICK:
        _draw("series", name, {"across": across, "step": step, "series": [asdict(each) for each in series]})


def plot_bars(results: Sequence[Mapping[str, Any]]) -> None:
    """Draw each kept value as a multiple of its target."""
    drawn = [
        {"name": f"{each['bar']}  {each['name']}", "share": _share(each["value"], each["target"], ok=each["ok"]), "ok": each["ok"]}
        for each in results
        if each["value"] is not None and each["target"]
    ]
    _draw("bars", "bars", {"bars": drawn})


def _share(value: float, target: float, *, ok: bool) -> float:
    """Return how far a value is beyond its target, more being better; within what a picture can show."""
    if not value:
        return _LARGEST_SHARE if ok else _SMALLEST_SHARE
    share = (max if ok else min)(value / target, target / value)
    return min(_LARGEST_SHARE, max(_SMALLEST_SHARE, share))


def _draw(what: str, name: str, asked: dict[str, object]) -> None:
    if not _PYTHON.exists():
        print(f"{name}.png is not drawn: `make` installs what draws it, in .bench/tools")
        return
    _FOLDER.mkdir(exist_ok=True)
    asked["file"] = str(_FOLDER / f"{name}.png")
    subprocess.run([_PYTHON, "-m", "bench.draw", what], input=json.dumps(asked), text=True, cwd=ROOT, check=True, timeout=120)
