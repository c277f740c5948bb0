"""What is measured, and what it uses: a Postgres of the bench's own, real server processes on it, and their CPU time and memory."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from harness.postgres import Databases, programs
from harness.server import Server

from app import embedded

_DEBIAN = Path("/usr/lib/postgresql/15/bin")
_OPTIONS = ("synchronous_commit=on", "max_connections=300", "shared_buffers=512MB", "max_wal_size=4GB")


@dataclass(frozen=True, slots=True)
class World:
    """A Postgres that is as safe against crashes as users run it, and a folder for files."""

    databases: Databases
    folder: Path

    @property
    def postgres(self) -> embedded.EmbeddedPostgres:
        return self.databases.postgres

    def database(self) -> str:
        """Make a database with the service's tables, and return its URL."""
        return self.databases.create()

    def cpu(self) -> float:
        """Return the CPU seconds that Postgres has used so far."""
        return cpu_seconds(self.postgres.pid)


@contextmanager
def world(*options: str) -> Iterator[World]:
    """Run a Postgres for the length of a block: the programs of TEST_POSTGRES_BIN, of Debian, or else the embedded ones.

    `options` are settings of Postgres beside those that all bars share.
    """
    used = programs() or (_DEBIAN if _DEBIAN.exists() else None)
    with tempfile.TemporaryDirectory() as folder, embedded.running(Path(folder) / "data", used, (*_OPTIONS, *options)) as postgres:
        yield World(Databases(postgres), Path(folder))


@contextmanager
def serving(database_url: str, *, environment: dict[str, str] | None = None, **settings: Any) -> Iterator[Server]:
    """Run one `leasebeat-server` for the length of a block."""
    with ExitStack() as stack:
        server = Server(database_url, environment=environment, **settings)
        stack.push(server)  # which ends it also if waiting for it is cut short
        yield server.wait_until_ready()
        server.stop()


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and of all that came from it, those that have ended among them."""
    return sum(_each(pid, lambda process: sum(process.cpu_times()[:4])))


def memory_bytes(pid: int) -> float:
    """Return the memory of a process and of all that came from it. Pages that they share are counted once (PSS)."""
    return sum(_each(pid, lambda process: process.memory_full_info().pss))


def _each(pid: int, read: Callable[[psutil.Process], float]) -> Iterator[float]:
    """Read a process and all that came from it: itself last, because it inherits the times of a child that ends meanwhile."""
    process = psutil.Process(pid)
    for each in (*process.children(recursive=True), process):
        with suppress(psutil.NoSuchProcess):
            yield read(each)
