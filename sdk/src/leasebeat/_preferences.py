"""`Preferences`: a worker's queues, in the order in which it would like to work on them."""

import logging
import time
from collections.abc import Iterable

_log = logging.getLogger(__name__)

ASK_AGAIN_S = 15.0


class Preferences:
    """The queues to ask, first the one preferred. Those that do not exist are left out, and asked again from time to time."""

    def __init__(self, queues: Iterable[str]) -> None:
        """Start with the belief that all exist.

        Raises:
            ValueError: If there is none.
        """
        self._queues = list(dict.fromkeys(queues))
        self._missing: dict[str, float] = {}  # with when to ask them again
        if not self._queues:
            raise ValueError("a worker needs at least one queue")

    def __len__(self) -> int:
        return len(self._queues)

    def to_ask(self) -> list[str]:
        """The queues to ask now, in order."""
        now = time.monotonic()
        return [queue for queue in self._queues if self._missing.get(queue, now) <= now]

    def note_missing(self, queue: str) -> bool:
        """Leave a queue out for a while. Returns whether any other is left."""
        is_news = queue not in self._missing
        self._missing[queue] = time.monotonic() + ASK_AGAIN_S
        others_left = len(self._missing) < len(self._queues)
        if is_news and others_left:
            _log.warning("Queue %s does not exist; the worker goes on with the others, and asks for it again", queue)
        return others_left

    def note_found(self, queue: str) -> None:
        """Ask a queue like the others."""
        if self._missing.pop(queue, None) is not None:
            _log.info("Queue %s exists again", queue)
