"""Handlers that are slow to import, or that cannot be."""

import errno
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leasebeat import Context, LeasedMessage

IMPORT_S = 1.5


def loaded(_message: LeasedMessage, _context: Context) -> dict[str, Any]:
    return {"pid": os.getpid(), "httpx": "httpx" in sys.modules}


class Imported:
    """Stands for a handler whose module does something as it is imported: it is unpickled in each process."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load

    def __call__(self, message: LeasedMessage, context: Context) -> Any:
        """Never called: what is unpickled takes its place."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[object, ...]:
        return self._load, ()


def slowly() -> Callable[..., Any]:
    until = time.monotonic() + IMPORT_S
    while time.monotonic() < until:
        pass
    return loaded


def never() -> None:
    time.sleep(600)


class HangsWhileThereIs(Imported):
    """Hangs as it is imported, while there is a file."""

    def __init__(self, word: Path) -> None:
        self._word = word

    def __reduce__(self) -> tuple[object, ...]:
        return _unless, (self._word,)


class FailsWhileThereIs(HangsWhileThereIs):
    """Cannot be started while there is a file, as if the system had no process for it."""

    def __reduce__(self) -> tuple[object, ...]:
        if self._word.exists():
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return super().__reduce__()


def _unless(word: Path) -> Callable[..., Any]:
    if word.exists():
        never()
    return loaded
