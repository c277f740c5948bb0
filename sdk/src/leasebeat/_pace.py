"""`Pace`: how often a worker asks for work."""

import logging
import time
from collections.abc import Callable

from leasebeat._errors import ApiError, InvalidRequestError
from leasebeat._retry import Pauses

_log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0
SHORTEST_ROUND_S = 0.25


class Pace:
    """Never in a tight loop, and less and less often while asking fails."""

    def __init__(self, wait: Callable[[float], object]) -> None:
        """Take what waits so many seconds, or less once the worker stops."""
        self._wait = wait
        self._backoff = Pauses(FIRST_PAUSE_S, LONGEST_PAUSE_S)

    def after_success(self) -> None:
        """Begin with the shortest pause at the next failure."""
        self._backoff.reset()

    def after_nothing(self, asked_at: float) -> None:
        """Wait until a round that began at `asked_at`, on `time.monotonic()`, has taken its time, though it may have waited for no work."""
        self._wait(asked_at + SHORTEST_ROUND_S - time.monotonic())

    def after_failure(self, error: Exception, attempt: str) -> None:
        """Say what failed, `attempt` in words, and wait before the next.

        Raises:
            LeasebeatError: The error itself if it stays: the settings are wrong, or there is no such queue.
        """
        if _is_about_settings(error) or is_missing_queue(error):
            raise error
        pause = self._backoff.pause(getattr(error, "retry_after", None))
        _log.warning("%s failed, next try in %.1f s: %s", attempt, pause, error)
        self._wait(pause)


def _is_about_settings(error: Exception) -> bool:
    """Whether the service refuses what was asked for. Something in front of it, which gives no code, may refuse anything for a while."""
    return isinstance(error, InvalidRequestError) and error.code is not None


def is_missing_queue(error: Exception) -> bool:
    """Whether there is no queue of the name that was asked for."""
    return isinstance(error, ApiError) and error.code == "queue-not-found"
