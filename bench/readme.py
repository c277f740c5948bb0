"""The tables under "Speed" in the README, written from the results that are kept."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from bench import ROOT
from bench.results import saved

_README = ROOT / "README.md"
_PEERS = 4
_BARS_HEAD = ("bar", "what", "value", "target", "reached")
_PEERS_HEAD = "4: Leasebeat / this"
_BETWEEN = re.compile(r"(?<=<!-- results -->\n).*(?=<!-- end of results -->)", re.DOTALL)


def write_tables() -> None:
    """Put the kept results into the README, in place of those that are there."""
    _README.write_text(_BETWEEN.sub(lambda _: tables(saved()), _README.read_text()))


def tables(results: Sequence[Mapping[str, Any]]) -> str:
    """Lay out kept results: each bar, and the peers of bar 4 by themselves."""
    bars = [each for each in results if each["bar"] != _PEERS]
    own = [(str(each["bar"]), each["name"], _shown(each["value"]), held_to(each), "yes" if each["ok"] else "**no**") for each in bars]
    return _table(_BARS_HEAD, own) + "\n" + _peers([each for each in results if each["bar"] == _PEERS])


def _peers(results: Sequence[Mapping[str, Any]]) -> str:
    """Lay out what Leasebeat is beside each peer, a column for each measure. A peer that is held to none of them has no bar."""
    values: dict[str, dict[str, str]] = {}
    held = set()
    for each in results:
        peer, _, measure = each["name"].partition(", ")
        values.setdefault(peer, {})[measure] = _shown(each["value"])
        if each["target"]:
            held.add(peer)
    measures = list(dict.fromkeys(chain.from_iterable(values.values())))
    names = {peer: peer if peer in held else f"{peer} (no bar)" for peer in values}
    return _table((_PEERS_HEAD, *measures), [(names[peer], *(row.get(each, "") for each in measures)) for peer, row in values.items()])


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
