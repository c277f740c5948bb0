"""The bridge to the package `weakincentives`, with a real server, on a Python that the package runs on."""

import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Protocol

import pytest
from sdk.wink import environment
from sdk.wink.not_on_leasebeat import BY_LUCK, LEFT_OUT, NOT_ON_LEASEBEAT, WAITING, WAITING_LONG, WORKING

pytestmark = pytest.mark.timeout(900)  # the first one makes the environment
TIMEOUT_S = 600.0
GROUPS = (WAITING_LONG, WAITING, WORKING)
RUN = {file for group in GROUPS for file in group}


class Server(Protocol):
    url: str


@dataclass(frozen=True)
class Outcomes:
    """How the suite's tests ended on Leasebeat, and which of them made a mailbox, by node id; and what was printed."""

    outcomes: dict[str, str]
    on_leasebeat: set[str]
    printed: str

    def __or__(self, later: "Outcomes") -> "Outcomes":
        return Outcomes(self.outcomes | later.outcomes, self.on_leasebeat | later.on_leasebeat, self.printed + later.printed)

    @property
    def failed(self) -> set[str]:
        return {test for test, outcome in self.outcomes.items() if outcome != "passed"}


@pytest.fixture(scope="module")
def own_environment() -> None:
    environment.make()


@pytest.fixture(scope="module")
def suite(server: Server, own_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:  # noqa: ARG001 - must be there
    """Run what the package's source distribution has of tests that make mailboxes. What fails by surprise is run up to three times.

    So does the package with its own, some of which allow for a few tenths of a second.
    """

    folder = tmp_path_factory.mktemp("wink")

    def run(name: str, tests: Iterable[str]) -> Outcomes:
        return _run(server, tests, folder / f"{name}.json")

    with ThreadPoolExecutor() as pool:
        found = reduce(or_, pool.map(run, ("long", "waiting", "working"), GROUPS))
    for name in ("again", "once-more"):
        if surprises := found.failed - set(NOT_ON_LEASEBEAT):
            found |= run(name, surprises)
    return found


def _run(server: Server, tests: Iterable[str], outcomes: Path) -> Outcomes:
    plugin = ("-p", "suite_on_leasebeat", f"--leasebeat-outcomes={outcomes}")
    options = ("-o", "addopts=", "--timeout=60", *(f"--deselect={test}" for test in BY_LUCK))
    done = environment.pytest(server.url, *plugin, *options, *tests, folder=environment.SUITE, timeout=TIMEOUT_S)
    assert outcomes.exists(), done.stdout + done.stderr
    noted = json.loads(outcomes.read_text())
    return Outcomes(noted["outcomes"], set(noted["on_leasebeat"]), done.stdout)


def test_the_suite_passes_but_for_what_is_listed(suite: Outcomes) -> None:
    assert suite.failed - set(NOT_ON_LEASEBEAT) == set(), suite.printed
    assert set(NOT_ON_LEASEBEAT) - suite.failed == set(), "these pass, and need not be listed"


def test_the_suite_ran_on_leasebeat(suite: Outcomes) -> None:
    passed = suite.on_leasebeat - suite.failed
    assert len(passed) > 200
    assert {test.partition("::")[0] for test in passed} == RUN


def test_no_test_that_makes_a_mailbox_is_forgotten(own_environment: None) -> None:  # noqa: ARG001 - must be there
    named = {
        str(path.relative_to(environment.SUITE))
        for path in environment.SUITE.rglob("test_*.py")
        if any(kind in path.read_text() for kind in ("InMemoryMailbox", "RedisMailbox"))
    }
    assert named == {*RUN, *LEFT_OUT}


def test_the_mailbox_does_what_it_says(server: Server, own_environment: None) -> None:  # noqa: ARG001 - must be there
    on_its_own = ("-c", os.devnull, "--noconftest", f"--rootdir={environment.HERE}")
    options = (*on_its_own, "-W", "error", "--timeout=120")
    done = environment.pytest(server.url, *options, "mailbox_checks.py", folder=environment.HERE, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_a_python_that_the_package_runs_on_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"Python 3\.13 or 3\.14 or 3\.12, and none was found"):
        environment.find_python({"PATH": str(tmp_path), "HOME": str(tmp_path)})


def test_a_python_that_leads_nowhere_is_passed_over(tmp_path: Path) -> None:
    _program(tmp_path / "shims" / "python3.13", status=127)
    works = _program(tmp_path / ".pyenv" / "versions" / "3.13.0" / "bin" / "python", status=0)
    assert environment.find_python({"PATH": str(tmp_path / "shims"), "HOME": str(tmp_path)}) == works


def _program(path: Path, *, status: int) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\nexit {status}\n")
    path.chmod(0o755)
    return path
