"""The process that server processes are forked from, for `harness.forked`.

For each of them its standard input, a socket, brings two descriptors: a socket to who starts it, and the file for what it prints. A keeper
forks the server with the arguments and the environment that it reads from that socket, and tells its process id and then its status.
"""

import contextlib
import gc
import json
import os
import signal
import socket
import struct
import sys
import threading
from typing import NoReturn

NUMBER = struct.Struct("!q")


def main() -> None:
    from app import cli  # noqa: PLC0415 - those who only want the number's format need not wait for it

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how keepers end
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # servers have their own idea of it, and keepers outlive them
    gc.collect()
    gc.freeze()
    if keeper := _fork_keepers():
        _fork_server(*keeper)
        cli.main()


def _fork_keepers() -> tuple[int, int] | None:
    """Return its two descriptors in each keeper, and nothing in this process once nobody can ask for one."""
    with socket.fromfd(sys.stdin.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as control:
        while descriptors := socket.recv_fds(control, 1, 2)[1]:
            if os.fork() == 0:
                return descriptors[0], descriptors[1]
            for each in descriptors:
                os.close(each)
    return None


def _fork_server(starter: int, output: int) -> None:
    """Return in the server."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with socket.socket(fileno=starter) as told, told.makefile() as lines:
        arguments, environment = json.loads(lines.readline())
        if pid := os.fork():
            _keep(pid, told)
    sys.argv[1:] = arguments
    os.environ.clear()
    os.environ.update(environment)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(output, stream.fileno())
    os.close(output)


def _keep(pid: int, told: socket.socket) -> NoReturn:
    told.sendall(NUMBER.pack(pid))
    threading.Thread(target=_end_with_starter, args=(pid, told), daemon=True).start()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        told.sendall(NUMBER.pack(status))
    os._exit(0)


def _end_with_starter(pid: int, told: socket.socket) -> None:
    """Let no server outlive tests that were killed. They send nothing, so this returns when they are gone."""
    with contextlib.suppress(OSError):  # the server has just ended, and so does the keeper
        told.recv(1)
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
