"""A forked child has its parent's sockets but none of its threads: what holds either starts anew there."""

import os
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol


class Resettable(Protocol):
    """Something that must not use in a child what it had in the parent."""

    def after_fork(self) -> None:
        """Forget the parent's connections, threads and locks."""


_held: "weakref.WeakSet[Resettable]" = weakref.WeakSet()


def reset_in_child(thing: Resettable) -> None:
    """Have `thing.after_fork()` called in every child that is forked from now on."""
    _held.add(thing)


@contextmanager
def ending_children() -> Generator[None, None, None]:
    """End a child that is forked in the block, and let go on, at the end of the block: all that comes after it is its parent's to do."""
    process = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != process:
            os._exit(0)


def _reset_all() -> None:
    for thing in list(_held):
        thing.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)
