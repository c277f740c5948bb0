"""A contender at work: its client is given orders, and the CPU seconds of all its processes are read before and after each."""

import contextlib
import json
import os
import queue
import signal
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
    """The process of a contender's client."""

    def __init__(self, contender: str, command: Sequence[str]) -> None:
        self._contender = contender
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
            raise FailedError(f"{self._contender}: no answer within {timeout:.0f} s") from None
        if not line:
            self._log.seek(0)
            raise FailedError(f"{self._contender}: {' '.join(self._log.read().split())[-200:]}")
        return json.loads(line)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._answers.put(line)
        self._answers.put("")


@contextlib.contextmanager
def client(contender: str, command: Sequence[str]) -> Iterator[Client]:
    started = Client(contender, command)
    try:
        started.wait_until_ready()
        yield started
    finally:
        started.end()


@dataclass(frozen=True)
class Running:
    """A contender that is up: its client, and whose CPU seconds are counted for what, each process with its children."""

    client: Client
    service: Sequence[int]
    database: Sequence[int]
    driver: Sequence[int]

    def turn(self, mode: Mode, seconds: float) -> Figure:
        """Have the client work for a while."""
        before = self._used()
        done = self.client.order(mode, seconds)
        jobs = done["jobs"]
        if not jobs:
            raise FailedError("it finished no job in its turn")
        service, database, driver = ((after - begin) * 1000 / jobs for begin, after in zip(before, self._used(), strict=True))
        if service + database == 0:
            raise FailedError("it used too little CPU time to be counted")
        return Figure(jobs / done["seconds"], service, database, driver)

    @contextlib.contextmanager
    def still(self) -> Iterator[None]:
        """Stop its processes for the length of a block: what they do between their turns would count as the database's for another."""
        try:
            self._signal(signal.SIGSTOP)
            yield
        finally:
            self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for process in (*self.service, *self.driver):
            os.kill(process, number)

    def _used(self) -> tuple[float, float, float]:
        return _cpu(self.service), _cpu(self.database), _cpu(self.driver)


def _cpu(roots: Sequence[int]) -> float:
    return sum(map(cpu_seconds, roots))
