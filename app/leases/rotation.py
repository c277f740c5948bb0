"""Whose turn it is: one replica's place in the rotation over a queue's fairness keys.

Deficit round robin with messages of equal cost: at each visit a key may take its quantum, which is its weight. A batch may go around
several times, which counts as one visit per key; a visit that a full batch cuts short goes on at the next claim. Each replica is fair, so
their sum is (design section 5).
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Visit:
    """One key's visit in one claim: what it might take, what it was allowed, what it took."""

    fairness_key: str
    quantum: int
    allowance: int
    taken: int


@dataclass(slots=True)
class Rotation:
    """The key visited last, and what is left of its quantum."""

    fairness_key: str = ""
    left: int = 0

    def advance(self, visits: Sequence[Visit]) -> None:
        """Move to the key visited last, which keeps the rest of its quantum unless it ran dry. Without visits, the turn is over."""
        self.left = 0
        for visit in visits:
            self.fairness_key = visit.fairness_key
            self.left = visit.quantum - visit.allowance if visit.taken == visit.allowance else 0
