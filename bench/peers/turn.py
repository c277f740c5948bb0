"""One contender at work: its client is given orders, and the CPU seconds of all its processes are read before and after each."""

import contextlib
import json
import os
import queue
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench import ROOT
from bench.peers import install
from bench.world import cpu_seconds

_READY_TIMEOUT_S = 30.0
_GRACE_S = 15.0
_WARM_UP = 0.25


class FailedError(Exception):
    """A client did not do what it was told."""


@dataclass(frozen=True)
class Mode:
    name: str
    callers: int
    size: int


@dataclass(frozen=True)
class Figure:
    """What one turn has shown. CPU seconds are for 1,000 jobs."""

    jobs_per_second: float
    service: float
    database: float
    client: float

    @property
    def cpu(self) -> float:
        """Who drives the load is not counted, unless it is the library itself: then it is the service."""
        return self.service + self.database

    @property
    def with_driver(self) -> float:
        return self.cpu + self.client

    @property
    def jobs_per_cpu_second(self) -> float:
        return 1000 / self.cpu


class Client:
    """The process of a client."""

    def __init__(self, command: Sequence[str]) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed when the client has ended
        self.process = subprocess.Popen(
            command,
            cwd=install.HERE,
            env=os.environ | {"PYTHONPATH": str(ROOT)},  # for `bench.http`
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def wait_until_ready(self) -> None:
        self._answer(_READY_TIMEOUT_S)

    def order(self, mode: Mode, seconds: float) -> Any:
        assert self.process.stdin is not None
        order = {"callers": mode.callers, "size": mode.size, "seconds": seconds}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return self._answer(seconds + _GRACE_S)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._log.close()

    def _answer(self, timeout: float) -> Any:
        try:
            line = self._answers.get(timeout=timeout)
        except queue.Empty:
            raise FailedError(f"no answer within {timeout:.0f} s") from None
        if not line:
            self._log.seek(0)
            raise FailedError(" ".join(self._log.read().split())[-200:])
        return json.loads(line)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._answers.put(line)
        self._answers.put("")


@dataclass(frozen=True)
class Processes:
    """Whose CPU seconds are counted for what, each with its children."""

    service: Sequence[int]
    database: Sequence[int]
    client: Sequence[int]


@contextlib.contextmanager
def client(command: Sequence[str]) -> Iterator[Client]:
    started = Client(command)
    try:
        started.wait_until_ready()
        yield started
    finally:
        started.end()


def turn(worker: Client, processes: Processes, mode: Mode, seconds: float) -> Figure:
    """Let a client warm up, then measure it."""
    worker.order(mode, seconds * _WARM_UP)
    before = _cpu(processes.service), _cpu(processes.database), _cpu(processes.client)
    done = worker.order(mode, seconds)
    after = _cpu(processes.service), _cpu(processes.database), _cpu(processes.client)
    jobs = done["jobs"]
    service, database, driver = ((end - begin) * 1000 / jobs for begin, end in zip(before, after, strict=True))
    return Figure(jobs / done["seconds"], service, database, driver)


def _cpu(roots: Sequence[int]) -> float:
    return sum(map(cpu_seconds, roots))
