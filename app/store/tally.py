"""What this replica has done since it started: plain numbers, for whoever exports them."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """Counts since the start.

    `beats` is by status, `settles` by verb and status, `reclaims` has `expired` leases and, of these, messages `given_up`.
    `observe_lag` hears, after each batch that reclaimed something, how many seconds its oldest lease had been over.
    """

    sends: int = 0
    claims: int = 0
    beats: Counter[str] = field(default_factory=Counter)
    settles: Counter[tuple[str, str]] = field(default_factory=Counter)
    reclaims: Counter[str] = field(default_factory=Counter)
    observe_lag: Callable[[float], object] = float
