"""A worker for the soak's jobs of one kind: `python -m bench.soak_jobs KIND URL STALLS`, which notes in that file when it stood still.

Those of `subprocess` are for `leasebeat work`, which is called here as its command line does.
"""

import asyncio
import functools
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

if multiprocessing.parent_process() is not None:
    os.nice(5)  # a process for handlers, whose start takes a third of a second of the machine: what else runs on it comes first

from bench import soak_program
from bench.soak_program import Facts, begin, finish, queue_of, report, steps_of
from bench.soak_stalls import note_stalls
from leasebeat import Context, LeasedMessage, Worker, cli

SLOTS = 65
"""More than the chains that keep them busy: a job whose lease is lost may hang on beside its successor."""


def blocking(message: LeasedMessage, context: Context) -> Facts:
    return _in_steps(message, context, time.sleep)


def cpu(message: LeasedMessage, context: Context) -> Facts:
    _give_way()
    return _in_steps(message, context, _spin)


async def coroutine(message: LeasedMessage, context: Context) -> Facts:
    began = time.time()
    for seconds, number in steps_of(message.body, context.attempt):
        begin(message.id)
        await asyncio.sleep(seconds)
        _beat(context, number)
    return await asyncio.to_thread(finish, message.body, began, message.detail)


def _in_steps(message: LeasedMessage, context: Context, work: Callable[[float], None]) -> Facts:
    began = time.time()
    for seconds, number in steps_of(message.body, context.attempt):
        begin(message.id)
        work(seconds)
        _beat(context, number)
    return finish(message.body, began, message.detail)


def _beat(context: Context, number: int | None) -> None:
    if number is None:
        context.beat()  # one that has hung hears here that it has lost
    else:
        context.beat(**report(context.message.id, number))


def _spin(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


@functools.cache
def _give_way() -> None:
    """Leave the machine to what else runs on it, once per process: fifty that spin would starve the service."""
    os.nice(14)  # with the 5 above, the lowest there is


def main() -> None:
    kind, url, noted = sys.argv[1:]
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("leasebeat").setLevel(logging.INFO)
    note_stalls(Path(noted))
    if kind == "subprocess":
        _work(url)
    else:
        handler = {"blocking": blocking, "cpu": cpu, "async": coroutine}[kind]
        Worker(url, queue_of(kind), handler, worker_id=queue_of(kind), concurrency=SLOTS, processes=kind == "cpu").run()


def _work(url: str) -> None:
    queue = queue_of("subprocess")
    options = ["--url", url, "--concurrency", str(SLOTS), "--worker-id", queue, "--quiet", "--drain-timeout", "5"]
    program = [sys.executable, "-I", "-S", soak_program.__file__]
    sys.argv = ["leasebeat", "work", queue, *options, "--", *program]
    cli.main()


if __name__ == "__main__":
    main()
