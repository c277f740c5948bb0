"""Draw one picture as PNG from JSON on standard input. Runs in the bench's own installation, which has matplotlib: see `plots.py`."""

import json
import sys
from typing import Any

import matplotlib as mpl  # type: ignore[import-not-found]

mpl.use("Agg")

import matplotlib.pyplot as plt  # type: ignore[import-not-found]


def series(asked: dict[str, Any]) -> None:
    """Draw series that begin at the same moment, one above the other."""
    lines = asked["series"]
    figure, axes = plt.subplots(len(lines), 1, figsize=(8, 2.2 * len(lines)), sharex=True, squeeze=False)
    for axis, line in zip(axes[:, 0], lines, strict=True):
        axis.plot([asked["step"] * number for number in range(len(line["values"]))], line["values"])
        axis.set_ylim(bottom=0)
        axis.set_ylabel(line["name"], fontsize=8)
    axes[-1, 0].set_xlabel(asked["across"])
    _save(figure, asked["file"])


def bars(asked: dict[str, Any]) -> None:
    """Draw each value as a multiple of its target, the better to the right."""
    drawn = asked["bars"]
    figure, axis = plt.subplots(figsize=(9, 0.32 * len(drawn) + 1))
    colours = ["tab:green" if bar["ok"] else "tab:red" for bar in drawn]
    axis.barh([bar["name"] for bar in drawn], [bar["share"] for bar in drawn], color=colours)
    axis.axvline(1, color="black", linewidth=1)
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlabel("as a multiple of the target, the better to the right")
    axis.tick_params(labelsize=8)
    _save(figure, asked["file"])


def _save(figure: Any, file: str) -> None:
    figure.tight_layout()
    figure.savefig(file, dpi=100)


if __name__ == "__main__":
    {"series": series, "bars": bars}[sys.argv[1]](json.load(sys.stdin))
