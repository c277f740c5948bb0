"""A forked child has its parent's sockets but none of its threads: what holds either starts anew there."""

import os
import sys
import threading
import traceback
import weakref
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import NoReturn, Protocol

LAST_WORDS_S = 1.0


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
            end_child(error)
        raise
    if os.getpid() != process:
        end_child(SystemExit())


def end_child(error: BaseException) -> NoReturn:
    """End this process, a forked child, without what its parent is to do at its own end: as a program ends by this error.

    A stream may be locked for ever, by a thread of the parent that was writing to it at the moment of the fork: it has a second.
    """
    status = 1
    try:
        if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
            status = (error.code or 0) & 0xFF
        saying = threading.Thread(target=_say, args=(error,), daemon=True)
        saying.start()
        saying.join(LAST_WORDS_S)
    finally:
        os._exit(status)


def _say(error: BaseException) -> None:
    """Write what is printed and not written yet, and what a program that ends so says on standard error."""
    with suppress(Exception):  # a stream may be closed, or there may be none
        sys.stdout.flush()
    with suppress(Exception):
        _explain(error)
        sys.stderr.flush()


def _explain(error: BaseException) -> None:
    if not isinstance(error, SystemExit):
        traceback.print_exception(error)
    elif error.code is not None and not isinstance(error.code, int):
        sys.stderr.write(f"{error.code}\n")


def _reset_all() -> None:
    for thing in list(_held):
        thing.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)
