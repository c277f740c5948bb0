"""`Unanswered`: claims that may have been granted leases nobody was told of."""

import threading
import uuid
from collections import deque
from collections.abc import Generator, Hashable
from contextlib import contextmanager

from leasebeat._errors import LeasebeatError
from leasebeat._fork import reset_in_child

_MOST = 100
"""So many names are kept; the leases of older ones run out by themselves."""


class Unanswered:
    """The names of claims without an answer: what one was granted all the same is had by repeating it by its name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: deque[tuple[Hashable, str]] = deque(maxlen=_MOST)
        reset_in_child(self)

    @contextmanager
    def name_for(self, wanted: Hashable) -> Generator[str, None, None]:
        """Name the claim in the block: as one for the same that was not answered, if any. No other thread repeats that meanwhile."""
        name = self._take(wanted) or uuid.uuid4().hex
        try:
            yield name
        except BaseException as error:
            if not (isinstance(error, LeasebeatError) and error.turned_away):
                self._keep(wanted, name)
            raise

    def take_all(self) -> list[str]:
        """Leave all of them to the caller."""
        with self._lock:
            names = [name for _, name in self._kept]
            self._kept.clear()
            return names

    def _take(self, wanted: Hashable) -> str | None:
        with self._lock:
            found = next((kept for kept in self._kept if kept[0] == wanted), None)
            if found is None:
                return None
            self._kept.remove(found)
            return found[1]

    def _keep(self, wanted: Hashable, name: str) -> None:
        with self._lock:
            self._kept.append((wanted, name))

    def after_fork(self) -> None:
        """In a child: what its parent asked for is the parent's."""
        self._lock = threading.Lock()
        self._kept.clear()
