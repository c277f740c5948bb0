"""Room: how many bytes the calls of one kind may hold at a time, from their bodies' first byte to their answers (scar 43).

While the database is slow, calls wait in memory; so many of them may wait, and they may hold so much.
"""

from app.store.faults import OverloadedError

ITEM_BYTES = 1024
"""What an item of a body takes as an object, besides its text: about so much, however short it is."""


class Room:
    """What the calls of one kind hold, and the most that they may."""

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._free = limit

    def take(self, amount: int) -> None:
        """Let a call have more.

        Raises:
            OverloadedError: the others of its kind hold too much.

        """
        if amount > self._free:
            raise OverloadedError(self._name)
        self._free -= amount

    def give_back(self, amount: int) -> None:
        self._free += amount


class Share:
    """What one call holds."""

    __slots__ = ("_held", "_room")

    def __init__(self, room: Room) -> None:
        self._room = room
        self._held = 0

    def add(self, amount: int) -> None:
        """Hold more.

        Raises:
            OverloadedError: the others of its kind hold too much.

        """
        self._room.take(amount)
        self._held += amount

    def give_back(self) -> None:
        self._room.give_back(self._held)
