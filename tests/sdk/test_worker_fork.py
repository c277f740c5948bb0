"""What a child that a handler forks does by itself, and what it must not hold of its parent."""

import asyncio
import contextlib
import json
import math
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from harness.wait import until
from sdk.running import CLAIM, SOURCES, Start, grant_until_settled
from sdk.scripted_service import ScriptedService, beats, lease, problem

from leasebeat import Context, Lease, LeasedMessage, LeaseLostError, Worker
from leasebeat._call import Reply, finish
from leasebeat._calls.leases import claim
from leasebeat._process_page import Page, PagedHold
from leasebeat._tracked_lease import TrackedLease
from leasebeat.agents import ToolCounters
from leasebeat.bridges._pulse import Pulse


@pytest.mark.scar(16)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_beats_by_itself(service: ScriptedService, start: Start) -> None:
    def handle(_message: LeasedMessage, context: Context) -> int:
        context.beat(progress=1)
        service.wait_for("/beat")
        child = os.fork()
        if child == 0:
            context.beat(progress=2, detail={"pid": os.getpid()})
            time.sleep(90)
            os._exit(0)
        service.wait_for("/beat", 2)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return child

    service.on("POST", "/beat", beats(next_beat_in=0.0))
    start(handle)
    (ack,) = service.wait_for("/ack")
    parent, child = service.asked("/beat")
    assert child.body["leases"] == [{"receipt": "secret-1", "progress": 2, "detail": {"pid": ack.body["leases"][0]["output"]}}]
    assert child.connection != parent.connection


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_that_hears_drain_does_not_touch_its_parents_worker(service: ScriptedService, start: Start) -> None:
    read_end, write_end = os.pipe()

    def handle(_message: LeasedMessage, context: Context) -> bool:
        child = os.fork()
        if child == 0:
            context.beat()
            os.read(read_end, 1)
            os._exit(int(context.stopping.wait(0.5)))
        service.wait_for("/beat")
        os.write(write_end, b".")
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    service.on("POST", "/beat", beats(drain=True))
    start(handle)
    (ack,) = service.wait_for("/ack")
    os.close(read_end)
    os.close(write_end)
    assert ack.body["leases"][0]["output"] is True
    assert len(service.asked("/beat")) == 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("raises", [False, True])
def test_a_child_that_a_handler_lets_go_on_does_not_settle_its_parents_message(
    raises: bool, service: ScriptedService, start: Start
) -> None:
    def handle(_message: LeasedMessage, _context: Context) -> str:
        child = os.fork()
        if child == 0 and raises:
            raise OSError("in the child")
        return f"it ended with {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}" if child else "in the child"

    start(handle)
    (ack,) = service.wait_for("/ack")
    assert [item["output"] for item in ack.body["leases"]] == [f"it ended with {int(raises)}"]
    assert service.asked("/nack") == []


ENDS = """
import os, sys
from leasebeat._fork import ending_children

for end in sys.argv[1:]:
    with ending_children():
        child = os.fork()
        if child == 0:
            print("said in the child")
            exec(end)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_a_child_ends_as_a_program_does() -> None:
    """Its parent sees that it failed, people see why, and what it has printed is not lost."""
    ends = {"pass": 0, "sys.exit()": 0, "sys.exit(3)": 3, "sys.exit(-1)": 255, "sys.exit('no disk')": 1, "1 / 0": 1}
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    ended = subprocess.run([sys.executable, "-c", ENDS, *ends], env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout == "".join(f"said in the child\n{status}\n" for status in ends.values())
    said, *trace = ended.stderr.splitlines()
    assert said == "no disk"
    assert (trace[0], trace[-1]) == ("Traceback (most recent call last):", "ZeroDivisionError: division by zero")


WRITING = """
import os, select, signal, sys, threading, time
from leasebeat._fork import ending_children

_, full = os.pipe()
sys.stderr = open(full, "w")
threading.Thread(target=sys.stderr.write, args=("x" * 2**20,), daemon=True).start()
while select.select([], [full], [], 0)[1]:
    time.sleep(0.01)
with ending_children():
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        print("said in the child")
        exec(sys.argv[1])
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize(("end", "status"), [("pass", 0), ("1 / 0", 1), ("sys.exit('no disk')", 1)])
def test_a_child_ends_though_a_thread_of_its_parent_was_writing_to_standard_error(end: str, status: int) -> None:
    """That thread holds the stream's lock, and in the child for ever."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", WRITING, end]
    ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=90)
    assert ended.stdout == f"said in the child\n{status}\n"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_that_a_coroutine_lets_go_on_ends_with_it(service: ScriptedService, start: Start) -> None:
    """It has a copy of the event loop, with all that runs there."""

    async def handle(_message: LeasedMessage, _context: Context) -> int:
        child = os.fork()
        if child == 0:
            return -1
        return status_at_end(child)

    start(handle)
    (ack,) = service.wait_for("/ack")
    assert [item["output"] for item in ack.body["leases"]] == [0]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_that_ends_in_a_task_of_a_coroutine_runs_no_more_of_its_loop(service: ScriptedService, start: Start) -> None:
    async def fork() -> int:
        child = os.fork()
        if child == 0:
            sys.exit(3)
        return status_at_end(child)

    async def handle(_message: LeasedMessage, _context: Context) -> object:
        (status,) = await asyncio.gather(fork(), return_exceptions=True)
        return status

    start(handle)
    (ack,) = service.wait_for("/ack")
    assert [item["output"] for item in ack.body["leases"]] == [3]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_can_be_terminated(willing: ScriptedService) -> None:

    def handle(_message: LeasedMessage, _context: Context) -> int:
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write_end, b"up")
            time.sleep(90)
            os._exit(0)
        os.read(read_end, 2)
        os.close(read_end)
        os.close(write_end)
        os.kill(child, signal.SIGTERM)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    worker = Worker(willing.url, "default", handle)

    def stop_when_acked() -> None:
        willing.wait_for("/ack")
        worker.stop()

    threading.Thread(target=stop_when_acked, daemon=True).start()
    worker.run()
    assert willing.asked("/ack")[0].body["leases"][0]["output"] == -signal.SIGTERM


@pytest.mark.scar(16)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_worker_ends_while_a_child_that_its_handler_forked_lives(willing: ScriptedService) -> None:
    children: list[int] = []

    def handle(_message: LeasedMessage, _context: Context) -> None:
        child = os.fork()
        if child == 0:
            time.sleep(90)
            os._exit(0)
        children.append(child)
        os.kill(os.getpid(), signal.SIGTERM)

    started = time.monotonic()
    Worker(willing.url, "default", handle).run()
    took = time.monotonic() - started
    try:
        assert os.waitpid(children[0], os.WNOHANG) == (0, 0), "the child lives"
        assert took < 60
    finally:
        os.kill(children[0], signal.SIGKILL)
        os.waitpid(children[0], 0)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_keeps_no_end_of_its_parents_signal_pipe(willing: ScriptedService) -> None:
    before = open_pipes()

    def handle(_message: LeasedMessage, context: Context) -> int:
        child = os.fork()
        if child == 0:
            os._exit(len(open_pipes().keys() - before))
        os.kill(os.getpid(), signal.SIGTERM)
        context.stopping.wait(60)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    Worker(willing.url, "default", handle).run()
    assert willing.asked("/ack")[0].body["leases"][0]["output"] == 0


def test_a_worker_ends_though_somebody_holds_a_copy_of_its_signal_pipe(willing: ScriptedService) -> None:
    before = open_pipes()
    copies: list[int] = []

    def handle(_message: LeasedMessage, _context: Context) -> None:
        copies.extend(os.dup(number) for pipe, numbers in open_pipes().items() if pipe not in before for number in numbers)
        os.kill(os.getpid(), signal.SIGTERM)

    ended = threading.Event()

    def close_in_the_end() -> None:
        ended.wait(90)
        for number in copies:
            os.close(number)

    closing = threading.Thread(target=close_in_the_end)
    closing.start()
    started = time.monotonic()
    Worker(willing.url, "default", handle).run()
    took = time.monotonic() - started
    ended.set()
    closing.join()
    assert len(copies) == 2
    assert took < 60


def open_pipes() -> dict[int, list[int]]:
    """The pipes that this process has open, each with the numbers of its ends."""
    found: dict[int, list[int]] = {}
    for number in range(256):
        with contextlib.suppress(OSError):
            status = os.fstat(number)
            if stat.S_ISFIFO(status.st_mode):
                found.setdefault(status.st_ino, []).append(number)
    return found


@pytest.mark.scar(16)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_hears_of_its_deadline(service: ScriptedService, start: Start) -> None:
    """The child beats once, in vain, and then only waits."""

    def handle(_message: LeasedMessage, context: Context) -> int:
        child = os.fork()
        if child == 0:
            with contextlib.suppress(LeaseLostError):
                context.beat()
            os._exit(0 if context.lost.wait(60) else 1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    service.on("POST", CLAIM, grant_until_settled(service, lease(expires_in=2.0)))
    service.on("POST", "/beat", problem(500, "internal"))
    start(handle)
    assert service.wait_for("/ack")[0].body["leases"][0]["output"] == 0


def held() -> Lease:
    now = time.monotonic()
    reply = Reply(status=200, body=json.dumps({"leases": [lease()]}).encode(), retry_after=None, sent_at=now, answered_at=now)
    (granted,) = finish(claim("default", worker_id="w"), reply)
    return granted


def paged_hold() -> PagedHold:
    page = Page()
    page.clear(time.monotonic() + 600)
    return PagedHold(page, "42")


def pulse() -> Pulse:
    options: dict[str, Any] = {"attempt": 1, "generation": 1, "worker_id": "w", "stopping": threading.Event(), "on_move": lambda: None}
    return Pulse(Context(held().message, paged_hold(), **options), None)


@pytest.mark.scar(16)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("make", "use"),
    [
        (paged_hold, lambda hold: hold.note(1) or hold.move()),
        (pulse, lambda pulse: pulse.beat()),
        (ToolCounters, lambda counters: counters.add("tool", beats=1)),
    ],
)
def test_a_child_does_not_wait_for_a_lock_that_another_thread_held(make: Callable[[], Any], use: Callable[[Any], object]) -> None:
    thing = make()
    locked, over = threading.Event(), threading.Event()

    def hold_the_lock() -> None:
        with thing._lock:  # noqa: SLF001
            locked.set()
            over.wait(90)

    threading.Thread(target=hold_the_lock, daemon=True).start()
    assert locked.wait(60)
    child = os.fork()
    if child == 0:
        try:
            use(thing)
            os._exit(0)
        finally:
            os._exit(1)
    try:
        assert status_at_end(child) == 0
    finally:
        over.set()


def status_at_end(child: int) -> int:
    """Wait for the end of a child, or end it, and return its exit status."""
    try:
        ended = until(lambda: os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG))
    except AssertionError:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    assert ended is not None
    return ended.si_status


def test_what_the_parent_has_not_sent_is_not_the_childs_to_send() -> None:
    tracked = TrackedLease(held())
    tracked.move()
    before = tracked.next_beat_at
    tracked.after_fork()
    assert (before <= time.monotonic(), tracked.next_beat_at) == (True, math.inf)
