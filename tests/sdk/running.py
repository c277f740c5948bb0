"""Workers in threads and programs in processes, and what tests of them share."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sdk.scripted_service import Answer, Received, ScriptedService

import leasebeat
from leasebeat import Context, Worker

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

    def join(self, timeout: float = 5.0) -> None:
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


def lost_lease(context: Context) -> type[leasebeat.LeaseLostError]:
    """Work on until the lease is lost, as a handler does, and return how it heard."""
    until = time.monotonic() + 5
    while time.monotonic() < until:
        try:
            context.beat()
        except leasebeat.LeaseLostError as error:
            assert context.lost.is_set()
            return type(error)
        time.sleep(0.005)
    raise AssertionError("the handler never heard that its lease is lost")


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
