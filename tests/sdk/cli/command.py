"""The command line, in this process or, where there is more to see from outside, in one of its own."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO
from unittest.mock import patch

import psutil
from harness.wait import until

import leasebeat
from leasebeat import Client, Message
from leasebeat.cli._app import run

SOURCES = Path(leasebeat.__file__).parents[1]
TIMEOUT_S = 60.0  # of whatever surely ends; a busy machine is slow


class Command:
    """`leasebeat`, with the service's address in its environment."""

    def __init__(self, url: str) -> None:
        self.url = url

    def environment(self, **more: str) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("LEASEBEAT_", "COLUMNS"))}
        return {**inherited, "PYTHONPATH": str(SOURCES), "LEASEBEAT_URL": self.url, **more}

    def run(self, *arguments: str, given: str = "", expect: int = 0, **environment: str) -> "subprocess.CompletedProcess[str]":
        """Run it to its end in this process, which is much quicker. It must have the status expected."""
        with ExitStack() as stack:
            stdin, stdout, stderr = (stack.enter_context(_text_file()) for _ in range(3))
            stdin.write(given)
            stdin.seek(0)
            stack.enter_context(patch.multiple(sys, argv=["leasebeat", *arguments], stdin=stdin, stdout=stdout, stderr=stderr))
            stack.enter_context(patch.dict(os.environ, self.environment(**environment), clear=True))
            status = run()
            ran = subprocess.CompletedProcess(arguments, status, _written(stdout), _written(stderr))
        assert status == expect, f"status {status}\n{ran.stdout}\n{ran.stderr}"
        return ran

    def json(self, *arguments: str, given: str = "", expect: int = 0, **environment: str) -> list[Any]:
        """Run it to its end, and return the JSON that it printed, a value a line."""
        ran = self.run(*arguments, given=given, expect=expect, **environment)
        return [json.loads(line) for line in ran.stdout.splitlines()]

    def complaint(self, *arguments: str, given: str = "", expect: int = 2) -> str:
        """Run it in vain, and return what it complains of, which must be one line on standard error alone."""
        ran = self.run(*arguments, given=given, expect=expect)
        assert ran.stdout == ""
        (line,) = ran.stderr.splitlines()
        return line.removeprefix("leasebeat: ")

    @contextmanager
    def running(self, *arguments: str, **options: Any) -> Iterator["subprocess.Popen[bytes]"]:
        """Run it for the block, which it does not outlive."""
        environment = self.environment(**options.pop("environment", {}))
        with subprocess.Popen([sys.executable, "-m", "leasebeat", *arguments], env=environment, **options) as process:
            try:
                yield process
            finally:
                process.kill()


def _text_file() -> TextIO:
    return tempfile.TemporaryFile("w+", encoding="utf-8", newline="")


def _written(file: TextIO) -> str:
    file.seek(0)
    return file.read()


def stop(process: "subprocess.Popen[bytes]", number: int = signal.SIGTERM) -> int:
    """Signal a process, and return its exit status."""
    process.send_signal(number)
    return process.wait(TIMEOUT_S)


def finished(client: Client, message_id: str) -> Message:
    """Wait for a message's final state."""

    until(lambda: client.get_message(message_id).status in {"completed", "failed", "cancelled"}, timeout=TIMEOUT_S, pause=0.05)
    return client.get_message(message_id)


def is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def until_gone(*pids: int, timeout: float = TIMEOUT_S) -> None:
    until(lambda: not any(map(is_alive, pids)), timeout)


def read_pid(path: Path) -> int:
    """The number that a program writes down, with an end of line, once it does."""
    text = until(lambda: path.exists() and path.read_text().endswith("\n") and path.read_text(), timeout=TIMEOUT_S)
    return int(text)
