"""The servers that are no part of Postgres: started for a block, stopped after it."""

import contextlib
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.wait import until

from bench.peers.install import MissingError, program

Start = Callable[[], contextlib.AbstractContextManager[tuple[int, str]]]
"""Starts a server, and yields its process id and its address."""

_START_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 10.0


@contextlib.contextmanager
def moto() -> Iterator[tuple[int, str]]:
    with _running("moto_server", lambda port, _: ["-H", "127.0.0.1", "-p", str(port)]) as (pid, port):
        yield pid, f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def nats() -> Iterator[tuple[int, str]]:
    """Run NATS JetStream so that what it has acknowledged is on the disk, as a commit is."""

    def arguments(port: int, folder: Path) -> list[str]:
        config = folder / "nats.conf"
        config.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{folder}", sync_interval: always }}\n')
        return ["-c", str(config)]

    with _running("nats-server", arguments) as (pid, port):
        yield pid, f"nats://127.0.0.1:{port}"


@contextlib.contextmanager
def beanstalkd() -> Iterator[tuple[int, str]]:
    """Run beanstalkd with its binlog, synced after every write."""
    with _running("beanstalkd", lambda port, folder: ["-l", "127.0.0.1", "-p", str(port), "-b", str(folder), "-f0"]) as (pid, port):
        yield pid, str(port)


@contextlib.contextmanager
def _running(name: str, arguments: Callable[[int, Path], list[str]]) -> Iterator[tuple[int, int]]:
    with tempfile.TemporaryDirectory() as folder:
        port = _free_port()
        process = subprocess.Popen([program(name), *arguments(port, Path(folder))], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_for(port, name)
            yield process.pid, port
        finally:
            process.terminate()
            process.wait(_STOP_TIMEOUT_S)


def _wait_for(port: int, name: str) -> None:
    try:
        until(lambda: _listens(port), _START_TIMEOUT_S)
    except AssertionError:
        raise MissingError(f"{name} did not start") from None


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
