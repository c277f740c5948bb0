"""Whose turn it is: one replica's place in the rotation over a queue's fairness keys.

Deficit round robin with messages of equal cost: at each visit a key may take its quantum (its weight, scaled so that a batch can be
filled); a visit that a full batch cuts short goes on at the next claim. Each replica is fair, so their sum is (design section 5).
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

    def advance(self, visits: Sequence[Visit], *, wanted: int) -> bool:
        """Move to the key visited last, which keeps the rest of its quantum unless it ran dry.

        Returns whether more may be ready: a key that gave all that it was allowed may have more, and so may keys not yet visited. The
        visits go once around all keys unless `wanted` messages, less what was left of a quantum, are that many keys or fewer.
        """
        reach = wanted - self.left
        was_mid_quantum = self.left > 0
        self.left = 0
        for visit in visits:
            self.fairness_key = visit.fairness_key
            self.left = visit.quantum - visit.allowance if visit.taken == visit.allowance else 0
        if not visits:
            return was_mid_quantum
        return len(visits) >= reach or any(visit.taken == visit.allowance for visit in visits)
