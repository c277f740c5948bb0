"""`Pulse`: what every bridge does when its framework tells that work has moved."""

import threading

from leasebeat._context import Context
from leasebeat._errors import LeaseLostError
from leasebeat._fork import reset_in_child
from leasebeat._heartbeat import Heartbeat


class Pulse:
    """Beats for one lease, from any thread, and hears when it is lost."""

    def __init__(self, source: Context | Heartbeat, lost: threading.Event | None) -> None:
        self._source = source
        self._lost = lost
        self._lock = threading.Lock()
        self._events = 0
        reset_in_child(self)

    def after_fork(self) -> None:
        """Another thread of the parent may hold the lock for ever."""
        self._lock = threading.Lock()

    @property
    def may_block(self) -> bool:
        """Whether a beat may take long: a `LeaseExtender` on a heartbeat calls the service in the thread that beats."""
        return isinstance(self._source, Heartbeat)

    @property
    def is_lost(self) -> bool:
        """Whether the lease is known to be over."""
        lost = self._lost if isinstance(self._source, Heartbeat) else self._source.lost
        return lost is not None and lost.is_set()

    def beat(self) -> None:
        """Beat once.

        Raises:
            LeaseLostError: If the lease is over.
        """
        if isinstance(self._source, Heartbeat):
            self._source.beat()
        else:
            with self._lock:  # held for the report too, so that progress never goes back
                self._events += 1
                self._source.beat(progress=self._events)
        if self._lost is not None and self._lost.is_set():
            raise LeaseLostError("over")
