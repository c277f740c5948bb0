"""The tables under "Speed" in the README, written from the results that are kept."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench import ROOT
from bench.results import saved

_README = ROOT / "README.md"
_PEERS = 4
_BARS_HEAD = ("bar", "what", "value", "target", "reached")
_PEERS_HEAD = ("4: Leasebeat / this", "single calls: jobs/s", "per CPU-second", "batches of 100: jobs/s", "per CPU-second")
_BETWEEN = re.compile(r"(?<=<!-- results -->\n).*(?=<!-- end of results -->)", re.DOTALL)


def write_tables() -> None:
    """Put the kept results into the README, in place of those that are there."""
    _README.write_text(_BETWEEN.sub(lambda _: tables(), _README.read_text()))


def tables() -> str:
    """Lay out the kept results: each bar, and the peers of bar 4 by themselves."""
    results = saved()
    bars = [each for each in results if each["bar"] != _PEERS]
    own = [(str(each["bar"]), each["name"], _shown(each["value"]), held_to(each), "yes" if each["ok"] else "**no**") for each in bars]
    peers: dict[str, list[str]] = {}
    for each in results:
        if each["bar"] == _PEERS:
            name = each["name"].split(",")[0] + ("" if each["target"] else " (no bar)")
            peers.setdefault(name, []).append(_shown(each["value"]))
    beside = [(name, *values, *[""] * (len(_PEERS_HEAD) - 1 - len(values))) for name, values in peers.items()]
    return _table(_BARS_HEAD, own) + "\n" + _table(_PEERS_HEAD, beside)


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, ["---"] * len(head), *lines))


def held_to(kept: Mapping[str, Any]) -> str:
    """Say what a value is held to. Which way is not kept: it follows from what counts as reached."""
    value, target = kept["value"], kept["target"]
    if value is None:
        return f"{target:g}"
    return f"{'≤' if (value <= target) == kept['ok'] else '≥'} {target:g}"


def _shown(value: float | None) -> str:
    return "missing" if value is None else f"{value:.3g}"
