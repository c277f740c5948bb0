"""Where a claim begins to look: behind what this replica knows not to be ready any more.

Messages that have been leased leave dead entries in the index of ready messages, and a transaction that is held open elsewhere keeps
Postgres from clearing them away. A claim that began at the front would walk them all (scar 41). So it begins, within each level, at the
floor: behind the last message that was taken there. A level is a fairness key and a rank (the negative priority). Whatever makes an older
message ready lowers the floor of its level, and somebody looks below them now and then, for what may have been missed. Claims for several
work types have none: of some types they may not see all that comes before what they take.
"""

from collections import OrderedDict
from collections.abc import Iterable
from itertools import groupby
from typing import Any, NamedTuple

Level = tuple[str, int]
"""A fairness key and a rank."""

Firsts = dict[Level | None, int]
"""The first messages that may be ready again, by level; under None, of any level."""

_WORTH_A_FLOOR = 1000
_MOST_LEVELS = 200
_MOST_FLOORS = 64
_MOST_FIRSTS = 64
_BEFORE_ALL_RANKS = -32768
_BEHIND_ALL_RANKS = 32769
_BEHIND_ALL_KEYS = "\U0010ffff" * 201
"""A fairness key has at most 200 characters."""


class Taken(NamedTuple):
    """How many messages were taken at a level, and the last of them."""

    level: Level
    messages: int
    last: int


class Stretch(NamedTuple):
    """A part of the index: from one fairness key to before another, or, if it has ranks, a part of the one key in that range.

    That begins behind a rank and a message id, and ends before a rank.
    """

    first_key: str
    end_key: str
    first_rank: int | None = None
    first_id: int | None = None
    end_rank: int | None = None


def join(firsts: Firsts, others: Firsts) -> None:
    """Add what comes first among others. Of too many levels, all are taken to begin with the first message of any."""
    for level, message_id in others.items():
        firsts[level] = min(message_id, firsts.get(level, message_id))
    if len(firsts) > _MOST_FIRSTS:
        blur(firsts)


def blur(firsts: Firsts) -> None:
    """Forget which levels they are of."""
    lowest = min(firsts.values())
    firsts.clear()
    firsts[None] = lowest


class Floors:
    """The floors of one place, of its busiest levels only: each costs a claim one more look into the index."""

    def __init__(self) -> None:
        self._floors: OrderedDict[Level, int] = OrderedDict()
        self._taken: OrderedDict[Level, int] = OrderedDict()
        self._missed: Firsts | None = None  # what became ready while a claim is under way

    def __bool__(self) -> bool:
        return bool(self._floors)

    def begin(self) -> None:
        """Note that a claim begins: what becomes ready from now on, it may not see."""
        self._missed = {}

    def took(self, taken: Iterable[Taken]) -> None:
        """Note what the claim has taken: the first that were ready at each level. That ends it."""
        missed, self._missed = self._missed or {}, None
        for level, messages, last in taken:
            if level in self._floors or self._is_busy(level, messages):
                self._floors[level] = min([last, *(missed[each] - 1 for each in (level, None) if each in missed)])
                self._floors.move_to_end(level)
        while len(self._floors) > _MOST_FLOORS:
            self._floors.popitem(last=False)

    def lower(self, firsts: Firsts) -> None:
        """Note that messages from these on may be ready again."""
        if self._missed is not None:
            join(self._missed, firsts)
        for level in self._floors.keys() & firsts.keys():
            self._floors[level] = min(self._floors[level], firsts[level] - 1)
        if None in firsts:
            for level, floor in self._floors.items():
                self._floors[level] = min(floor, firsts[None] - 1)

    def leave(self) -> None:
        """Let the next claim begin at the front again, once: from the first that is taken at these levels on, they have floors again."""
        self._taken |= dict.fromkeys(self._floors, _WORTH_A_FLOOR)
        self._floors.clear()

    def columns(self) -> list[list[Any]]:
        """Return the floors as columns: fairness keys, ranks, message ids."""
        floors = [(*level, floor) for level, floor in self._floors.items()]
        return [list(column) for column in zip(*floors, strict=True)]

    def stretches(self) -> list[list[Any]]:
        """Return the parts of the index where messages may be ready, in its order, as columns; see `Stretch`."""
        stretches = []
        behind = ""
        for key, levels in groupby(sorted(self._floors.items()), key=lambda floor: floor[0][0]):
            stretches.append(Stretch(behind, key))
            behind = _next_key(key)
            first: tuple[int, int] = (_BEFORE_ALL_RANKS, 0)
            for (_, rank), floor in levels:
                stretches.append(Stretch(key, behind, *first, rank))
                first = (rank, floor)
            stretches.append(Stretch(key, behind, *first, _BEHIND_ALL_RANKS))
        stretches.append(Stretch(behind, _BEHIND_ALL_KEYS))
        return [list(column) for column in zip(*stretches, strict=True)]

    def _is_busy(self, level: Level, count: int) -> bool:
        """Count what was taken from a level, and tell whether a floor is worth it."""
        total = self._taken.pop(level, 0) + count
        if total >= _WORTH_A_FLOOR:
            return True
        self._taken[level] = total
        if len(self._taken) > _MOST_LEVELS:
            self._taken.popitem(last=False)
        return False


def _next_key(key: str) -> str:
    """Return the next text in the order of bytes; no text has the byte 0."""
    return key + "\x01"
