"""A watchdog ends its own process, so each test has one to be ended."""

import inspect
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from sdk.running import SOURCES, program_process

from leasebeat import Heartbeat
from leasebeat._watchdog import Watchdog

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCES)}

WATCHED = """
import logging, sys, time
from leasebeat import Heartbeat
from leasebeat._watchdog import Watchdog

logging.basicConfig(format="%(levelname)s %(message)s")
lively, silent = Heartbeat(), Heartbeat()
watchdog = Watchdog([lively, silent], stall_threshold=2, check_interval=0.2, loop_names=sys.argv[2:] or None)
watchdog.start()
if sys.argv[1] == "stopped":
    watchdog.stop()
until = time.monotonic() + (60 if sys.argv[1] == "silent" else 3)
while time.monotonic() < until:
    lively.beat()
    if sys.argv[1] == "lively":
        silent.beat()
    time.sleep(0.01)
print("lived on")
"""


def watched(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", WATCHED, *arguments], check=False, capture_output=True, text=True, env=ENVIRONMENT, timeout=100
    )


@pytest.mark.parametrize(("names", "name"), [([], "loop-1"), (["fetch", "upload"], "upload")])
def test_a_heartbeat_that_falls_silent_ends_the_process(names: list[str], name: str) -> None:
    ended = watched("silent", *names)
    assert ended.returncode == -signal.SIGKILL
    stalled, terminating = ended.stderr.splitlines()
    assert re.fullmatch(rf"CRITICAL Watchdog: {name} stalled for \d+\.\ds \(threshold: 2\.0s\)", stalled)
    assert terminating == "CRITICAL Watchdog: terminating process due to stalled workers"


@pytest.mark.parametrize("how", ["lively", "stopped"])
def test_a_process_lives_on_while_its_heartbeats_beat_or_nobody_watches(how: str) -> None:
    ended = watched(how)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "lived on\n", "")


FROZEN = """
import time
from leasebeat import Heartbeat
from leasebeat._watchdog import Watchdog

heartbeat = Heartbeat()
Watchdog([heartbeat], stall_threshold=4, check_interval=0.5).start()
before = now = time.monotonic()
print("watched", flush=True)
while now - before < 5.5:  # until it has stood still for longer than a busy machine does, wherever that was
    heartbeat.beat()
    time.sleep(0.01)
    before, now = now, time.monotonic()
time.sleep(1)
heartbeat.beat()
print("beat", flush=True)
time.sleep(60)
"""


def test_a_process_that_stood_still_is_given_the_whole_threshold_again() -> None:
    """For longer than the threshold. It beats a second after it may go on, and is ended only when it falls silent by itself."""
    with program_process(FROZEN) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"watched\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(6)
        goes_on_at = time.monotonic()
        process.send_signal(signal.SIGCONT)
        assert process.stdout.readline() == b"beat\n"
        assert process.wait(60) == -signal.SIGKILL
        assert time.monotonic() - goes_on_at > 1 + 4


FORKED = """
import os, time
from leasebeat import Heartbeat
from leasebeat._watchdog import Watchdog

heartbeat = Heartbeat()
watchdog = Watchdog([heartbeat], stall_threshold=2, check_interval=0.1)
watchdog.start()
child = os.fork()
if child == 0:
    time.sleep(3)
    print("not watched", flush=True)
    watchdog.start()
    time.sleep(60)
    os._exit(0)
status = 0
while not status:
    heartbeat.beat()
    time.sleep(0.02)
    _, status = os.waitpid(child, os.WNOHANG)
print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.scar(16)
def test_a_forked_child_is_watched_once_it_starts_that() -> None:
    with program_process(FORKED) as process:
        output, _ = process.communicate(timeout=100)
    assert (process.returncode, output) == (0, f"not watched\n{-signal.SIGKILL}\n".encode())


def test_it_can_be_started_again() -> None:
    watchdog = Watchdog([Heartbeat()], check_interval=0.01)
    for _ in range(2):
        watchdog.start()
        watchdog.start()
        watchdog.stop()
        watchdog.stop()


def test_its_defaults_are_the_seeds() -> None:
    parameters = inspect.signature(Watchdog).parameters
    assert [(name, each.default) for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY] == [
        ("stall_threshold", 720.0),
        ("check_interval", 60.0),
        ("loop_names", None),
    ]
    assert Watchdog([]).stall_threshold == 720.0


@pytest.mark.parametrize("settings", [{"stall_threshold": 0.0}, {"check_interval": 0.0}, {"loop_names": ["one", "too many"]}])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"positive|zip\(\)"):
        Watchdog([Heartbeat()], **settings)  # type: ignore[arg-type]
