"""Workers in threads and programs in processes, and what tests of them share."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from harness.wait import until
from sdk.scripted_service import Answer, Received, ScriptedService, Step

import leasebeat
from leasebeat import Client, Context, Worker

CLAIM = "/queues/default/leases"
SOURCES = Path(leasebeat.__file__).parents[1]


class Running:
    """A worker in a thread, stopped at the end of the test."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.worker.run()
        except Exception as error:  # noqa: BLE001 - for the test to look at
            self.error = error

    def join(self, timeout: float = 60.0) -> None:
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the worker does not stop"

    def stop(self) -> None:
        self.worker.stop()
        self.join()


Start = Callable[..., Running]


def park(request: Received) -> Answer:
    time.sleep(min(request.body["wait"], 0.02))
    return grant()


def grant(*leases: dict[str, Any], drain: bool = False) -> Answer:
    return Answer({"leases": list(leases), "waited": 0.0, "drain": drain})


def paths(service: ScriptedService) -> list[str]:
    """What was asked besides claims, in order."""
    return [request.path for request in service.received if request.path != CLAIM]


def grant_until_settled(service: ScriptedService, lease: dict[str, Any]) -> Step:
    """Grant a lease that soon runs out, and again if that was before its handler could begin, until something is settled.

    So a machine that stands still for longer than the lease only makes the test longer.
    """
    settlements = {"/ack", "/nack", "/release"}
    return lambda request: grant(lease) if settlements.isdisjoint(paths(service)) else park(request)


def rounds(service: ScriptedService) -> list[list[Received]]:
    """What was asked from each claim on to the next one, the claim first. The last round may go on."""
    found: list[list[Received]] = []
    for request in list(service.received):
        if request.path == CLAIM:
            found.append([])
        found[-1].append(request)
    return found


def beat_until(context: Context, enough: Callable[[], object]) -> None:
    """Work on until there is enough, as a handler does."""

    def beaten() -> object:
        context.beat()
        return enough()

    until(beaten)


def lost_lease(context: Context) -> type[leasebeat.LeaseLostError]:
    """Work on until the lease is lost, as a handler does, and return how it heard."""

    def lost() -> type[leasebeat.LeaseLostError] | None:
        try:
            context.beat()
        except leasebeat.LeaseLostError as error:
            assert context.lost.is_set()
            return type(error)
        return None

    found = until(lost)
    assert found is not None
    return found


def until_extended(
    client: Client, queue: str, times: int = 2, *, message_id: str | None = None, beat: Callable[[], object] = lambda: None
) -> None:
    """Beat until each lease of a queue, or that of one message, has been extended so many times, and none has ended meanwhile.

    So work outlasts the lease that it began with, whose end is put off, and need not be as long: leases here are.
    """
    until(lambda: _ends(client, queue, message_id))
    for _ in range(times):
        before = _ends(client, queue, message_id)

        def all_later(before: dict[str, datetime] = before) -> bool:
            beat()
            now = _ends(client, queue, message_id)
            assert now.keys() == before.keys(), "a lease has ended"
            return all(now[each] > end for each, end in before.items())

        until(all_later, pause=0.02)


def _ends(client: Client, queue: str, message_id: str | None) -> dict[str, datetime]:
    leases = client.list_leases(queue=queue).items
    return {lease.message_id: lease.expires_at for lease in leases if message_id in (None, lease.message_id)}


class Standstills:
    """Notices, while the block runs, that this process or the whole machine stands still."""

    TICK_S = 0.02
    LEAST_S = 0.2

    def __init__(self) -> None:
        self.seen = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="standstills", daemon=True)

    def _watch(self) -> None:
        looked_at = time.monotonic()
        while not self._over.wait(self.TICK_S):
            now = time.monotonic()
            self.seen = self.seen or now - looked_at > self.LEAST_S
            looked_at = now

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


@contextmanager
def program_process(program: str, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A Python program in a process of its own, which does not outlive the block."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    with subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def frozen(process: "subprocess.Popen[bytes]", seconds: float) -> Iterator[None]:
    """Stop a process for the block, and for so many seconds at least."""
    process.send_signal(signal.SIGSTOP)
    until = time.monotonic() + seconds
    yield
    time.sleep(max(0.0, until - time.monotonic()))
    process.send_signal(signal.SIGCONT)
