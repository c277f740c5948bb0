"""`Unanswered`: claims that may have been granted leases nobody was told of."""

import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import contextmanager
from typing import Any

from leasebeat._errors import LeasebeatError
from leasebeat._fork import reset_in_child
from leasebeat._leases import Lease, Verdict

_log = logging.getLogger(__name__)

RECOVERY_TIMEOUT_S = 2.0
_MOST = 100
"""So many names are kept; the leases of older ones run out by themselves."""

Release = Callable[[Sequence[Lease]], Sequence[Verdict]]


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
        with self._kept_unless_answered(wanted, name):
            yield name

    @property
    def wanted(self) -> list[Any]:
        """What each of them was for, the oldest first."""
        with self._lock:
            return [wanted for wanted, _ in self._kept]

    def give_back(self, wanted: Hashable, repeat: Callable[..., Sequence[Lease]], release: Release) -> None:
        """Release what a claim for this, if there is one without an answer, was granted. One that fails again stays.

        Args:
            wanted: What it was for.
            repeat: Claims as it did, with the `claim_id` and the `timeout` that it is called with. It may be granted more than it asks for.
            release: Releases leases.
        """
        name = self._take(wanted)
        if name is None:
            return
        try:
            with self._kept_unless_answered(wanted, name):
                leases = repeat(claim_id=name, timeout=RECOVERY_TIMEOUT_S)
        except LeasebeatError as error:
            _log.info("A claim without an answer could not be checked; leases it was granted may run out by themselves: %s", error)
        else:
            release_late(leases, release)

    @contextmanager
    def _kept_unless_answered(self, wanted: Hashable, name: str) -> Generator[None, None, None]:
        """Keep the name if the claim in the block fails, unless it was refused: such a claim was granted nothing."""
        try:
            yield
        except BaseException as error:
            if not (isinstance(error, LeasebeatError) and error.turned_away):
                self._keep(wanted, name)
            raise

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


def release_late(leases: Sequence[Lease], release: Release) -> None:
    """Give back what comes too late to be worked on. A failure costs no more than the time until it runs out."""
    if not leases:
        return
    try:
        for lease, verdict in zip(leases, release(leases), strict=True):
            verdict.raise_if_refused(lease.message.id)
    except LeasebeatError as error:
        _log.info("What was granted too late could not be released, and runs out by itself: %s", error)
