"""`Outlet`: one of our own streams, whose reader holds up nothing."""

import logging
import os
import select
import threading
from collections import deque
from types import TracebackType
from typing import Self

_log = logging.getLogger(__name__)

MAX_HELD_BYTES = 1024 * 1024
PATIENCE_S = 1.0  # with a reader that takes nothing
WRITE_BYTES = 16 * 1024  # at once, so that a slow reader is seen to read


class Outlet:
    """Passes on what several programs print, each piece whole or not at all, from a thread of its own.

    A reader that does not read, as a pager, must not keep us from hearing the programs, whose lines are beats. So what it is slow to take
    is held for it; once that is too much, it is waited for a moment, and what it then misses is counted, and told of in the log.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        """Begin to write to a file descriptor. The name is for people."""
        self._descriptor = descriptor
        self._name = name
        self._changed = threading.Condition()
        self._pieces: deque[bytes] = deque()
        self._held = 0
        self._dropped = 0
        self._is_read = True  # whether the reader took something when it was last waited for
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=f"leasebeat-{name.replace(' ', '-')}", daemon=True)
        self._thread.start()

    def write(self, data: bytes, *, patience: float = PATIENCE_S) -> None:
        """Pass a piece on, or drop it if its reader has had its time, `patience` in seconds, or has gone."""
        with self._changed:
            self._is_read = self._changed.wait_for(self._has_room, patience if self._is_read else 0)
            if self._ended:
                return
            if self._is_read:
                self._pieces.append(data)
                self._held += len(data)
                self._changed.notify_all()
            else:
                self._dropped += len(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Wait for the rest to be read, as long as it is read at all."""
        with self._changed:
            while self._held and self._changed.wait(PATIENCE_S):
                pass
            self._dropped += self._held
            self._end()
        self._tell_of_dropped()

    def _has_room(self) -> bool:
        return self._held < MAX_HELD_BYTES or self._ended

    def _run(self) -> None:
        while (piece := self._next()) is not None:
            try:
                self._pass_on(memoryview(piece))
            except OSError:  # the reader has gone
                with self._changed:
                    self._end()

    def _next(self) -> bytes | None:
        """The piece whose turn it is, once there is one. None at the end."""
        if not self._pieces:
            self._tell_of_dropped()
        with self._changed:
            self._changed.wait_for(lambda: self._pieces or self._ended)
            return None if self._ended else self._pieces.popleft()

    def _pass_on(self, left: memoryview) -> None:
        while left:
            try:
                written = os.write(self._descriptor, left[:WRITE_BYTES])
            except BlockingIOError:  # whoever shares it with us wants no waiting, but we do
                select.select([], [self._descriptor], [])
                continue
            left = left[written:]
            with self._changed:
                self._held -= written
                self._is_read = True
                self._changed.notify_all()

    def _tell_of_dropped(self) -> None:
        """Say what the reader has missed, now that it has caught up, or that it is the end."""
        with self._changed:
            dropped, self._dropped = self._dropped, 0
        if dropped:
            _log.warning("Nobody read %s: %d bytes that programs printed were dropped", self._name, dropped)

    def _end(self) -> None:
        self._ended = True
        self._pieces.clear()
        self._held = 0
        self._changed.notify_all()
