"""A forked child has its parent's sockets but none of its threads: what holds either starts anew there."""

import os
import sys
import traceback
import weakref
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import NoReturn, Protocol


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
    """End a child that is forked in the block, and let go on, at the end of the block: all that comes after it is its parent's to do.

    It ends as a program does: with the status 0; with that of a `SystemExit`; or, if it fails, with 1 and a trace on standard error.
    """
    process = os.getpid()
    try:
        yield
    except BaseException as error:
        if os.getpid() != process:
            _end(error)
        raise
    if os.getpid() != process:
        _end(SystemExit())


def _end(error: BaseException) -> NoReturn:
    """End this process without what its parent is to do at its own end."""
    status = 1
    try:
        status = _status(error)
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # it may be closed, or there may be none
                stream.flush()
    finally:
        os._exit(status)


def _status(error: BaseException) -> int:
    """The exit status for what ends a program. What is no status goes to standard error."""
    if not isinstance(error, SystemExit):
        traceback.print_exception(error)
        return 1
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    sys.stderr.write(f"{error.code}\n")
    return 1


def _reset_all() -> None:
    for thing in list(_held):
        thing.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)
