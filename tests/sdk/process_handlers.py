"""Handlers that worker processes import."""

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import leasebeat
from leasebeat import Context, LeasedMessage
from leasebeat._process_page import PagedHold


def facts(message: LeasedMessage, context: Context) -> dict[str, Any]:
    context.beat(progress=7, detail={"step": "upload"})
    return {
        "body": message.body,
        "pid": os.getpid(),
        "attempt": context.attempt,
        "generation": context.generation,
        "worker_id": context.worker_id,
        "remaining": context.remaining(),
    }


async def coroutine(message: LeasedMessage, context: Context) -> str:
    await asyncio.sleep(0.01)
    context.beat(progress=1)
    return message.id


def report_then_fail(_message: LeasedMessage, context: Context) -> None:
    context.beat(progress=1)
    context.beat(progress=2, detail={"offset": 99})
    raise OSError("disk full\0\ud800")


def decide(message: LeasedMessage, _context: Context) -> None:
    match message.body:
        case "give up":
            raise leasebeat.GiveUp("not a wav file")
        case "retry later":
            raise leasebeat.RetryLater("rate limit", delay=30)
        case "exit":
            raise SystemExit(3)


def without_json(_message: LeasedMessage, _context: Context) -> object:
    return object()


def die(message: LeasedMessage, context: Context) -> str:
    context.beat(progress=5)
    match message.body:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(3)
    return f"alive in {os.getpid()}"


def busy(message: LeasedMessage, context: Context) -> int:
    """Keep the interpreter busy until there is a file, and beat."""
    done = 0
    while not Path(message.body).exists():
        done += sum(number * number for number in range(1000)) % 2 + 1
        context.beat(progress=done)
    return context.generation


def cost(_message: LeasedMessage, context: Context) -> float:
    """The seconds of one beat, in the best of some rounds."""
    costs = []
    for turn in range(20):
        started = time.perf_counter()
        for progress in range(1000):
            context.beat(progress=turn * 1000 + progress)
        costs.append((time.perf_counter() - started) / 1000)
    return min(costs)


def until_lost(message: LeasedMessage, context: Context) -> None:
    """Beat until that raises, and leave word of it in a file."""
    try:
        while True:
            context.beat()
            time.sleep(0.01)
    except leasebeat.LeaseLostError as error:
        Path(message.body).write_text(f"{type(error).__name__} {context.lost.is_set()}", encoding="utf-8")
        raise


def work_until_told(message: LeasedMessage, context: Context) -> int:
    """Beat until there is a file."""
    progress = 0
    while not Path(message.body).exists():
        progress += 1
        context.beat(progress=progress)
        time.sleep(0.01)
    return context.generation


async def work_until_told_in_a_loop(message: LeasedMessage, context: Context) -> int:
    """The same as a coroutine."""
    progress = 0
    while not Path(message.body).exists():  # noqa: ASYNC240 - a look takes no time
        progress += 1
        context.beat(progress=progress)
        await asyncio.sleep(0.01)
    return context.generation


def wait_for_loss(message: LeasedMessage, context: Context) -> None:
    """Do not beat, and leave word in a file of how the end was heard."""
    Path(message.body).write_text(f"lost: {context.lost.wait(90)}", encoding="utf-8")


def hang(message: LeasedMessage, context: Context) -> None:
    """Leave the process's id in a file, then pay no attention to anything, not even to SystemExit."""
    Path(message.body).write_text(str(os.getpid()), encoding="utf-8")
    context.beat()
    while True:
        try:
            time.sleep(60)
        except SystemExit:
            sys.stderr.write("asked to end\n")


def hang_politely(message: LeasedMessage, context: Context) -> None:
    """The same, but end when asked, and leave word of it."""
    try:
        Path(message.body).write_text(str(os.getpid()), encoding="utf-8")
        context.beat()
        time.sleep(60)
    finally:
        Path(f"{message.body}.ended").touch()


def finish_when_stopping(message: LeasedMessage, context: Context) -> str:
    Path(message.body).write_text(str(os.getpid()), encoding="utf-8")
    while not context.stopping.wait(0.01):
        context.beat()
    return "finished"


def beside_one_who_beats_on(message: LeasedMessage, context: Context) -> int | None:
    """Leave somebody behind who beats, or fail without a beat while who was left does.

    Returns the process that was left behind, if it is one.
    """
    word = Path(message.body["word"])

    def beat_on() -> None:
        for number in range(6000):
            with suppress(leasebeat.LeaseLostError):
                context.beat(progress=900 + number)
            context.heartbeat.beat()
            word.touch()
            time.sleep(0.01)

    if message.body["leaves"] is None:
        began = time.time()
        while word.stat().st_mtime < began + 0.5:  # some looks of the worker later
            time.sleep(0.01)
        raise OSError("silent")
    child = None
    if message.body["leaves"] == "a thread":
        threading.Thread(target=beat_on, daemon=True).start()
    elif (child := os.fork()) == 0:
        beat_on()
        os._exit(0)
    while not word.exists():
        time.sleep(0.01)
    return child


def spoil_its_page(_message: LeasedMessage, context: Context) -> None:
    """Beat, with what no report says, until the lease is lost."""
    page = cast("PagedHold", context._hold)._page  # noqa: SLF001 - what code gone astray may do
    page.progress = -7
    while True:
        page.beats += 1
        context.lost.wait(0.01)
        context._hold.raise_if_lost()  # noqa: SLF001


def with_a_child_that_lives_on(message: LeasedMessage, _context: Context) -> None:
    """Fork a child that holds copies of all pipes, then die."""
    child = os.fork()
    if child == 0:
        time.sleep(90)
        os._exit(0)
    Path(message.body).write_text(str(child), encoding="utf-8")
    os.kill(os.getpid(), signal.SIGKILL)


def parent_of_processes(_message: LeasedMessage, _context: Context) -> int:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return int(pool.apply(abs, (-3,)))


class Unloadable:
    """Can be handed over, but not taken."""

    def __call__(self, _message: LeasedMessage, _context: Context) -> None:
        """Never called."""

    def __reduce__(self) -> tuple[object, ...]:
        return sys.exit, (3,)
