"""`leasebeat work`."""

import logging
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from leasebeat._worker import Worker
from leasebeat.cli._children import KILL_TIMEOUT_S, Children
from leasebeat.cli._given import DEFAULT_URL, Url
from leasebeat.cli._outlet import Outlet
from leasebeat.cli._program import Program

FILES_OF_OUR_OWN = 64
FILES_PER_PROGRAM = 10  # pipes, what watches them, and the other ends while it starts


def work(
    queue: Annotated[str, typer.Argument(help="The queue to work on.")],
    command: Annotated[list[str], typer.Argument(help="The program to run for each message, with its arguments, after --.")],
    *,
    more_queues: Annotated[
        list[str] | None,
        typer.Option("--queue", help="Another queue, asked only when those before it have nothing ready. May be repeated."),
    ] = None,
    concurrency: Annotated[int, typer.Option(help="How many messages to work on at once, 1 to 1000.")] = 1,
    worker_id: Annotated[str | None, typer.Option(help="Who works. Host, process and a random part if left out.")] = None,
    visibility_timeout: Annotated[float | None, typer.Option(help="Length of the leases in seconds, in place of the queue's.")] = None,
    drain_timeout: Annotated[float, typer.Option(min=0, help="Seconds that programs have to finish once the worker stops.")] = 15.0,
    grace: Annotated[float, typer.Option(min=0, help="Seconds between SIGTERM and SIGKILL for a program that is to end.")] = 5.0,
    raw: Annotated[bool, typer.Option("--raw", help="Give a body that is a string as it is, not as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not pass on what programs print on standard output.")] = False,
    pass_receipt: Annotated[
        bool, typer.Option("--pass-receipt", help="Let programs have the receipt, in LEASEBEAT_RECEIPT: whoever reads it can settle.")
    ] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Run a program for each message of a queue.

    It gets the body as JSON on standard input, and the facts in LEASEBEAT_QUEUE, LEASEBEAT_MESSAGE_ID, LEASEBEAT_ATTEMPT,
    LEASEBEAT_GENERATION, LEASEBEAT_PROGRESS, LEASEBEAT_DETAIL, LEASEBEAT_HEADERS and others. Progress and detail are those of the last
    lease, to resume from.

    Each line it prints is a beat; a program that prints nothing loses its lease when that runs out. The count of lines is the progress; a
    line {"progress": N, "detail": ANY} with either or both sets them. Lines are passed on; a reader that does not read them, as a pager,
    holds up no program, and misses some: how much is said on standard error.

    Exit 0 is an ack, with the last other line that is JSON as its output. Any other exit is a nack with the last 4 KiB of standard error;
    the queue's backoff and limit of attempts apply.

    When the lease is lost, the program's process group gets SIGTERM, and SIGKILL after --grace. On SIGTERM or SIGINT the worker takes no
    more messages; programs have --drain-timeout to finish, are then ended in the same way, and their messages are given back, each as soon
    as its program has ended. A lease that no beat extends, as it is at its hard end or wants progress, cuts the --grace short. What is left
    of a program's group when it exits is killed, as are all programs when the worker itself is killed.
    """
    if os.name != "posix":
        raise typer.BadParameter("work needs process groups, which only POSIX systems have")
    if shutil.which(command[0]) is None:
        raise typer.BadParameter(f"there is no program {command[0]!r}")
    _check_open_files(concurrency)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whoever started us may ignore it: then nobody hears how a program ends
    stderr = Outlet(sys.stderr.fileno(), "standard error")
    with _logging_to(stderr), stderr, Outlet(sys.stdout.fileno(), "standard output") as stdout:
        children = Children(grace=grace, drain_timeout=drain_timeout)
        program = Program(
            command=command,
            children=children,
            url=url,
            stdout=None if quiet else stdout,
            stderr=stderr,
            raw=raw,
            pass_receipt=pass_receipt,
        )
        worker = Worker(
            url,
            [queue, *(more_queues or ())],
            program,
            worker_id=worker_id,
            concurrency=concurrency,
            visibility_timeout=visibility_timeout,
            drain_timeout=drain_timeout + grace + KILL_TIMEOUT_S,
        )
        with children.minded():
            worker.run()


def _check_open_files(concurrency: int) -> None:
    """Refuse now what would fail messages later for want of pipes. The limit is not raised, as programs would inherit that."""
    limit = os.sysconf("SC_OPEN_MAX")
    needed = FILES_OF_OUR_OWN + FILES_PER_PROGRAM * concurrency
    if 0 < limit < needed:
        raise typer.BadParameter(f"a concurrency of {concurrency} needs {needed} open files, and {limit} are allowed: see ulimit -n")


class _OneLine(logging.Formatter):
    """An error is its first line: a program's trace is its own to print, and ours would tell nothing of it."""

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        return f"leasebeat: {record.getMessage()}" + (f": {str(error).partition(chr(10))[0]}" if error else "")


class _OutletHandler(logging.Handler):
    """Who logs must not wait for a reader of the log, as it may be who beats."""

    def __init__(self, outlet: Outlet) -> None:
        super().__init__()
        self._outlet = outlet
        self.setFormatter(_OneLine())

    def emit(self, record: logging.LogRecord) -> None:
        self._outlet.write(self.format(record).encode(errors="replace") + b"\n", patience=0)


@contextmanager
def _logging_to(outlet: Outlet) -> Iterator[None]:
    log, handler = logging.getLogger("leasebeat"), _OutletHandler(outlet)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
