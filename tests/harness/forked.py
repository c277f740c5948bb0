"""Server processes that are forked from one that has imported the service: to import it takes longer than all the rest of a start."""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from harness.fork_server import NUMBER

_TESTS = Path(__file__).parents[1]
_FORK_TIMEOUT_S = 90.0


class ForkedProcess:
    """`leasebeat-server` with these arguments, this environment, and one file for all that it prints. To be used as a `Popen`."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], output: int) -> None:
        self.returncode: int | None = None
        self._keeper, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(_fork_server(), [b"1"], [theirs.fileno(), output])
        self._keeper.sendall(json.dumps([arguments, dict(environment)]).encode() + b"\n")
        self.pid = self._told(_FORK_TIMEOUT_S)

    def poll(self) -> int | None:
        """Return the exit status, or None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float) -> int:
        """Return the exit status: minus the signal's number if one has ended it.

        Raises:
            subprocess.TimeoutExpired: it still runs after this many seconds.

        """
        if self.returncode is None:
            self.returncode = self._told(timeout)
            self._keeper.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _told(self, timeout: float) -> int:
        self._keeper.settimeout(timeout)
        try:
            (number,) = NUMBER.unpack(self._keeper.recv(NUMBER.size))
        except (BlockingIOError, TimeoutError) as error:
            raise subprocess.TimeoutExpired("leasebeat-server", timeout) from error
        return int(number)


@cache
def _fork_server() -> socket.socket:
    """Start the process that forks, and return our end of the socket that it is asked by. It ends with us, however we end."""
    ours, theirs = socket.socketpair()
    environment = {**os.environ, "PYTHONPATH": str(_TESTS)}
    with theirs:
        process = subprocess.Popen([sys.executable, "-m", "harness.fork_server"], stdin=theirs.fileno(), env=environment)
    atexit.register(_end, process, ours)
    return ours


def _end(process: "subprocess.Popen[bytes]", ours: socket.socket) -> None:
    ours.close()
    process.kill()
    process.wait()
