"""`queues` and `top`."""

import contextlib
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
from harness.postgres import Databases
from harness.server import Server
from harness.wait import until
from sdk.cli.command import TIMEOUT_S, Command, stop
from sdk.relay import Relay

from leasebeat import Client


class Screen:
    """The far side of a terminal, with all that came there."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._seen = ""

    def shows(self, *texts: str) -> None:
        """Wait until all texts have been shown."""

        def look() -> bool:
            with contextlib.suppress(OSError):  # nobody is at the other end any more
                self._seen += os.read(self._descriptor, 65536).decode(errors="replace")
            return all(text in self._seen for text in texts)

        until(look, timeout=TIMEOUT_S, pause=0)  # who is slow to read holds up who writes


@contextmanager
def on_a_terminal(command: Command, *arguments: str) -> Iterator[tuple["subprocess.Popen[bytes]", Screen]]:
    ours, theirs = pty.openpty()
    try:
        with command.running(
            *arguments, stdin=theirs, stdout=theirs, stderr=theirs, environment={"TERM": "xterm", "COLUMNS": "160", "LINES": "200"}
        ) as process:
            os.close(theirs)
            yield process, Screen(ours)
    finally:
        os.close(ours)


@pytest.fixture(scope="module")
def server(postgres: Databases) -> Iterator[Server]:
    """A server of these tests alone: tables have room for what they make, not for what others have left."""
    with Server(postgres.create()) as running:
        yield running


def test_queues_as_a_table_and_as_json(command: Command, client: Client, queue: str) -> None:
    client.put_queue(queue, visibility_timeout=12.5, max_in_flight=7)
    client.pause_queue(queue)
    (line,) = [line for line in command.run("queues").stdout.splitlines() if line.startswith(queue)]
    assert line.split()[-8:] == ["12.5", "3", "paused,", "at", "most", "7", "in", "flight"]
    (found,) = [each for each in command.json("queues", "--json") if each["name"] == queue]
    assert (found["visibility_timeout"], found["paused"], found["backoff"]["factor"]) == (12.5, True, 2.0)


def test_top_once_shows_queues_workers_and_leases(command: Command, client: Client, queue: str) -> None:
    client.send(queue, 1)
    (lease,) = client.claim(queue, worker_id=f"{queue}-[red]\x1b[2J")
    client.beat(lease, progress=41, detail={"step": "upload"})
    shown = command.run("top", "--once").stdout
    assert {line.strip() for line in shown.splitlines()} >= {"Queues", "Workers", "Leases"}
    (row,) = [line for line in shown.splitlines() if line.split()[:2] == [lease.message.id, queue]]
    assert "41" in row.split()
    assert '{"step": "upload"}' in row
    assert f"{queue}-[red]\N{REPLACEMENT CHARACTER}[2J" in row, "what workers say is neither markup nor a command to the terminal"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_top_on_a_terminal_goes_on_until_interrupted(command: Command, client: Client, queue: str, number: int) -> None:
    with on_a_terminal(command, "top", "--interval", "0.1") as (process, screen):
        screen.shows("Queues", queue)
        client.send(queue, 1)
        (lease,) = client.claim(queue, worker_id="on-screen")
        screen.shows("on-screen", lease.message.id)
        process.send_signal(number)
        screen.shows("\x1b[?1049l")  # the terminal is as it was
        assert process.wait(TIMEOUT_S) == 0


def test_top_outlives_a_service_that_goes_away_and_comes_back(server: Server) -> None:
    with (
        Relay(server.port) as relay,
        Command(relay.url).running("top", "--interval", "0.1", stdout=subprocess.PIPE) as process,
    ):
        assert process.stdout is not None
        lines = iter(process.stdout)
        assert next(line for line in lines if line.startswith(b"Queues"))
        relay.cut(1)  # a port that nobody listens on
        away = next(line for line in lines if line.startswith(b"The service does not answer"))
        assert b"as seen" in away
        relay.cut(server.port)
        assert next(line for before, line in pairwise(lines) if b"active leases" in line and not before.startswith(b"The service"))
        assert stop(process) == 0
