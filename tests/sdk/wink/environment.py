"""An environment with the package `weakincentives`, which needs a newer Python than ours may be, and the package's own tests."""

import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from uv import find_uv_bin

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
FOLDER = ROOT / ".wink"
PYTHON = FOLDER / "venv" / "bin" / "python"
PIP = (PYTHON, "-m", "pip", "--quiet", "--disable-pip-version-check")
SUITE = FOLDER / "weakincentives-0.27.0"
REQUIREMENTS = HERE / "requirements.txt"
SDIST = HERE / "sdist.txt"
VERSIONS = ("3.13", "3.14", "3.12")


def make() -> None:
    """Make the environment, unless it is there as the requirements say."""
    made_from = FOLDER / "made-from.txt"
    wanted = REQUIREMENTS.read_text() + SDIST.read_text()
    if made_from.exists() and made_from.read_text() == wanted:
        return
    shutil.rmtree(FOLDER, ignore_errors=True)
    run(find_python(os.environ), "-m", "venv", PYTHON.parents[1])
    _install(REQUIREMENTS)
    source_only = ("--no-deps", "--no-binary", ":all:", "--no-build-isolation")
    run(*PIP, "download", *source_only, "--require-hashes", "-r", SDIST, "-d", FOLDER)
    with tarfile.open(f"{SUITE}.tar.gz") as archive:
        archive.extractall(FOLDER, filter="data")
    made_from.write_text(wanted)


def _install(requirements: Path) -> None:
    """Install by uv, which takes a tenth of pip's time, or by pip, if uv finds no index: it does not read pip's configuration."""
    options = ("--require-hashes", "-r", requirements)
    try:
        run(find_uv_bin(), "pip", "install", "--quiet", "--python", PYTHON, *options)
    except AssertionError:
        run(*PIP, "install", *options)


def find_python(environment: Mapping[str, str]) -> Path:
    """Find a Python that the package runs on: on the PATH, or among those of pyenv.

    Raises:
        AssertionError: If there is none.
    """
    for candidate in _candidates(environment):
        if subprocess.run([candidate, "-c", ""], check=False, capture_output=True).returncode == 0:  # pyenv's shims may lead nowhere
            return candidate
    raise AssertionError(f"the bridge to weakincentives is tested on Python {' or '.join(VERSIONS)}, and none was found: install one")


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    pyenv = Path(environment.get("PYENV_ROOT") or Path(environment.get("HOME", "/")) / ".pyenv")
    for version in VERSIONS:
        on_path = shutil.which(f"python{version}", path=environment.get("PATH", ""))
        if on_path is not None:
            yield Path(on_path)
        yield from sorted((pyenv / "versions").glob(f"{version}.*/bin/python"))


def run(*line: str | Path) -> None:
    done = subprocess.run(line, check=False, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, f"{' '.join(map(str, line))}\n{done.stdout}{done.stderr}"


def pytest(server_url: str, *arguments: str | Path, folder: Path, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run tests in the environment, on the SDK as it is here, against a server."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    variables |= {"LEASEBEAT_URL": server_url, "PYTHONPATH": f"{ROOT / 'sdk' / 'src'}:{HERE}"}
    line = [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(line, check=False, capture_output=True, text=True, cwd=folder, env=variables, timeout=timeout)
