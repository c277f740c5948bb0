"""A real server process."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from harness.api import Api
from harness.forked import ForkedProcess

START_TIMEOUT_S = 90.0
_WRONG_CLOCK = Path(__file__).with_name("wrong_clock")


class Server:
    """`leasebeat-server serve` in a process of its own, on a free port of loopback.

    `wrong_clock_s` sets its wall clock wrong by that many seconds; settings are given by their names in `app.settings`.
    """

    def __init__(
        self, database_url: str | None, *, wrong_clock_s: float = 0, environment: Mapping[str, str] | None = None, **settings: object
    ) -> None:
        self.port = _free_port()
        self._place = _kept(self.port)
        self.url = f"http://127.0.0.1:{self.port}"
        self._client = httpx.Client(base_url=self.url, timeout=70, limits=httpx.Limits(max_connections=None))
        self.api = Api(self._client)
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed when the server is
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("LEASEBEAT_", "OTEL_", "DATABASE_URL"))}
        if database_url:
            variables["DATABASE_URL"] = database_url
        variables |= {f"LEASEBEAT_{name.upper()}": str(value) for name, value in settings.items()} | dict(environment or {})
        if wrong_clock_s:
            variables |= {"PYTHONPATH": str(_WRONG_CLOCK), "WRONG_CLOCK_S": str(wrong_clock_s)}
        self.process = self._start(variables, forked=bool(database_url) and not wrong_clock_s)

    def wait_until_ready(self) -> Self:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            if self.ready:
                return self
            time.sleep(0.05)
        raise AssertionError(f"the server did not become ready:\n{self.log}")

    def _start(self, variables: dict[str, str], *, forked: bool) -> "ForkedProcess | subprocess.Popen[bytes]":
        """Start the process, anew from its first import on if that may depend on the environment."""
        arguments = ["serve", "--port", str(self.port)]
        if forked:
            return ForkedProcess(arguments, variables, self._log.fileno())
        return subprocess.Popen([sys.executable, "-m", "app", *arguments], env=variables, stdout=self._log, stderr=self._log)

    @property
    def ready(self) -> bool:
        try:
            return self._client.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    @property
    def log(self) -> str:
        """Everything that the process has printed."""
        self._log.seek(0)
        return self._log.read()

    def kill(self) -> None:
        """End it as `kill -9` does."""
        self.process.kill()
        self.process.wait(60)

    def stop(self, timeout: float = 60) -> int:
        """Ask it to stop, and return its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def __enter__(self) -> Self:
        return self.wait_until_ready()

    def __exit__(self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.kill()
        self._client.close()
        self._log.close()
        self._place.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _kept(port: int) -> socket.socket:
    """Keep a port from everybody but the server, which may take a while to listen there: who does not listen is not in its way.

    Only Linux has it so; elsewhere nothing is kept.
    """
    place = socket.socket()
    if sys.platform == "linux":
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(("127.0.0.1", port))
    return place
