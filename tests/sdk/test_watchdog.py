"""A watchdog ends its own process, so each test has one to be ended."""

import inspect
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import leasebeat
from leasebeat import Heartbeat
from leasebeat._watchdog import Watchdog

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(leasebeat.__file__).parents[1])}

WATCHED = """
import logging, sys, time
from leasebeat import Heartbeat
from leasebeat._watchdog import Watchdog

logging.basicConfig(format="%(levelname)s %(message)s")
lively, silent = Heartbeat(), Heartbeat()
watchdog = Watchdog([lively, silent], stall_threshold=0.5, check_interval=0.05, loop_names=sys.argv[2:] or None)
watchdog.start()
if sys.argv[1] == "stopped":
    watchdog.stop()
until = time.monotonic() + (60 if sys.argv[1] == "silent" else 1.5)
while time.monotonic() < until:
    lively.beat()
    if sys.argv[1] == "lively":
        silent.beat()
    time.sleep(0.01)
print("lived on")
"""


def watched(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", WATCHED, *arguments], check=False, capture_output=True, text=True, env=ENVIRONMENT, timeout=50
    )


@pytest.mark.parametrize(("names", "name"), [([], "loop-1"), (["fetch", "upload"], "upload")])
def test_a_heartbeat_that_falls_silent_ends_the_process(names: list[str], name: str) -> None:
    ended = watched("silent", *names)
    assert ended.returncode == -signal.SIGKILL
    stalled, terminating = ended.stderr.splitlines()
    assert stalled.startswith(f"CRITICAL Watchdog: {name} stalled for 0.")
    assert stalled.endswith("s (threshold: 0.5s)")
    assert terminating == "CRITICAL Watchdog: terminating process due to stalled workers"


@pytest.mark.parametrize("how", ["lively", "stopped"])
def test_a_process_lives_on_while_its_heartbeats_beat_or_nobody_watches(how: str) -> None:
    ended = watched(how)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "lived on\n", "")


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
