"""The image's recipe. `make image` and a container engine are needed to build it; these are not."""

import json
import re
import subprocess
import sysconfig
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "Dockerfile"


@pytest.fixture(scope="module")
def stages() -> list[list[tuple[str, str]]]:
    """The instructions of each stage, and first those before any."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", "")
    stages: list[list[tuple[str, str]]] = [[]]
    for line in filter(None, text.splitlines()):
        instruction, argument = line.split(maxsplit=1)
        if instruction == "FROM":
            stages.append([])
        stages[-1].append((instruction, argument))
    return stages


def arguments(stage: list[tuple[str, str]], instruction: str) -> list[str]:
    return [argument for name, argument in stage if name == instruction]


def test_hadolint_has_nothing_to_say() -> None:
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    result = subprocess.run([hadolint, "--no-color", DOCKERFILE], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_runs_as_a_number_that_is_not_root(stages: list[list[tuple[str, str]]]) -> None:
    (user,) = arguments(stages[-1], "USER")
    uid, gid = map(int, user.split(":"))
    assert min(uid, gid) >= 10000


def test_signals_reach_the_server(stages: list[list[tuple[str, str]]]) -> None:
    final = stages[-1]
    assert [json.loads(argument) for argument in arguments(final, "ENTRYPOINT")] == [["leasebeat-server"]]
    assert [json.loads(argument) for argument in arguments(final, "CMD")] == [["serve"]]
    assert arguments(final, "HEALTHCHECK") == []
    assert "leasebeat-server" in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]


def test_can_be_reached_and_migrated(stages: list[list[tuple[str, str]]]) -> None:
    environment = dict(pair.split("=", 1) for argument in arguments(stages[-1], "ENV") for pair in argument.split())
    assert environment["LEASEBEAT_HOST"] == "0.0.0.0"
    assert environment["PYTHONDONTWRITEBYTECODE"] == "1"
    (workdir,) = arguments(stages[-1], "WORKDIR")
    assert environment["LEASEBEAT_MIGRATIONS"] == f"{workdir}/alembic"
    assert "--chmod=755 alembic alembic" in arguments(stages[-1], "COPY")


def test_builds_in_a_stage_that_is_left_behind(stages: list[list[tuple[str, str]]]) -> None:
    assert len(stages) == 3
    assert arguments(stages[-1], "RUN") == []


def test_installs_what_is_pinned_and_hashed(stages: list[list[tuple[str, str]]]) -> None:
    installs = [argument for argument in arguments(stages[1], "RUN") if " install " in argument]
    assert len(installs) == 2
    assert "--require-hashes -r requirements/server.txt" in installs[0]
    assert "--no-deps --no-build-isolation" in installs[1]


def test_names_no_registry(stages: list[list[tuple[str, str]]]) -> None:
    (base,) = [argument.removeprefix("BASE=") for argument in arguments(stages[0], "ARG")]
    assert [arguments(stage, "FROM") for stage in stages[1:]] == [["${BASE} AS build"], ["${BASE}"]]
    assert re.fullmatch(r"python:3\.\d+-slim-\w+", base)
    assert re.findall(r"https?://|index|find-links|trusted-host|PIP_", DOCKERFILE.read_text()) == []


def test_context_is_what_the_image_needs() -> None:
    first, *rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert first == "*"
    allowed = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert allowed == {"alembic", "pyproject.toml", "requirements/server.txt", "LICENSE", project["project"]["readme"], *packages}
