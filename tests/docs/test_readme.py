"""The README does what it says: its commands are run as they stand, on another port."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness.server import Server
from harness.wait import until

from app.settings import Settings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PROMISED = "http://127.0.0.1:8080"


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found
    return found[1]


def test_the_first_message_by_curl_is_sent_leased_beaten_for_and_acked(server: Server) -> None:
    script = block("bash")
    assert PROMISED in script
    done = subprocess.run(["bash", "-euc", script.replace(PROMISED, server.url)], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert '"status":"pending"' in done.stdout
    assert '"body":{"file": "a.wav"}' in done.stdout or '"body":{"file":"a.wav"}' in done.stdout
    assert '"status":"extended"' in done.stdout
    assert '"status":"acked","late":false' in done.stdout


def test_the_first_worker_in_python_runs_until_sigterm(server: Server) -> None:
    program = block("python")
    assert PROMISED in program
    worker = subprocess.Popen([sys.executable, "-c", program.replace(PROMISED, server.url)], stderr=subprocess.PIPE, text=True)

    def completed() -> bool:
        found = server.api.call("GET", "/queues/default/messages?status=completed&limit=1000")["items"]
        return any(message["body"] == {"file": "b.wav"} and message["output"] == {"chunks": 100} for message in found)

    until(completed)
    worker.send_signal(signal.SIGTERM)
    _, errors = worker.communicate(timeout=20)
    assert worker.returncode == 0, errors


@pytest.mark.timeout(120)
def test_serve_answers_readyz_on_a_postgres_of_its_own_whose_data_survive(tmp_path: Path) -> None:
    bodies = []
    for _ in range(2):
        with Server(None, data_dir=tmp_path) as server:
            bodies += [lease["message"]["body"] for lease in server.api.claim("default")]
            server.api.send("default", "kept")
            assert server.stop() == 0
    assert bodies == ["kept"]


def test_make_help_names_every_target_of_the_readme() -> None:
    shown = subprocess.run(["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in re.findall(r"`?make ([a-z-]+)", README):
        assert re.search(rf"^{target}\s", shown, re.MULTILINE), target


def test_every_setting_is_in_the_readme() -> None:
    for name, field in Settings.model_fields.items():
        variable = field.validation_alias or f"LEASEBEAT_{name.upper()}"
        assert str(variable) in README or name == "migrations", variable
