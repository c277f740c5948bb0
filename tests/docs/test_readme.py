"""The README does what it says: its commands are run as they stand, on another port."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.api import Json
from harness.server import Server
from harness.wait import until

from app.settings import Settings
from bench.bars import Bar
from bench.readme import held_to, tables
from bench.results import kept, saved

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PROMISED = "http://127.0.0.1:8080"
TROUBLE = "What goes wrong, and what the queue does about it"


def block(language: str, heading: str) -> str:
    """Return the first block in this language under the heading."""
    found = re.search(rf"^## {heading}\n.*?```{language}\n(.*?)```", README, re.DOTALL | re.MULTILINE)
    assert found
    assert PROMISED in found[1]
    return found[1]


def run_script(server: Server, script: str) -> str:
    """Run it as it stands, on another port, and return what it printed. It ends with its first command that fails."""
    line = ["bash", "-euo", "pipefail", "-c", script.replace(PROMISED, server.url)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def answers_to(script: str, server: Server) -> list[Json]:
    """Run a script and return the JSON documents that it printed, one a line."""
    return [json.loads(line) for line in run_script(server, script).splitlines() if line]


def test_the_first_message_by_curl_is_sent_leased_beaten_for_and_acked(start_server: Callable[..., Server]) -> None:
    printed = run_script(start_server(), block("bash", "A first message, by curl"))
    assert '"status":"pending"' in printed
    assert '"body":{"file": "a.wav"}' in printed or '"body":{"file":"a.wav"}' in printed
    assert '"status":"extended"' in printed
    assert '"status":"acked","late":false' in printed


def test_a_poison_message_is_retried_given_up_and_sent_back(start_server: Callable[..., Server]) -> None:
    _, queue, nacked, second, dead, history, redriven = answers_to(block("bash", TROUBLE), start_server())
    assert (queue["max_attempts"], queue["dead_letter_queue"], queue["max_in_flight"]) == (2, "dead-letters", 50)
    assert nacked["results"][0]["status"] == "requeued"
    assert second["leases"][0]["attempt"] == 2
    assert (dead["source_queue"], dead["reason"], dead["failed_workers"]) == ("media", "lease_expired", ["worker-1", "worker-2"])
    assert [entry["reason"] for entry in history["items"]] == ["lease_expired", "nacked"]
    assert redriven == {"redriven": 1, "more": False}


def test_every_call_of_the_table_is_answered(start_server: Callable[..., Server]) -> None:
    table = README.split("\n| for | call | what it does |\n", 1)[1].split("\n\n", 1)[0]
    calls = re.findall(r"`(call [^`]+)`", table)
    assert len(calls) > len(table.splitlines())
    answers = answers_to("\n".join([block("bash", TROUBLE), *calls]), start_server())
    assert len(answers) == 7 + len(calls) - 1  # a deletion has no answer


def test_the_first_worker_in_python_runs_until_sigterm(start_server: Callable[..., Server]) -> None:
    server = start_server()
    program = block("python", "A first worker, in Python")
    worker = subprocess.Popen([sys.executable, "-c", program.replace(PROMISED, server.url)], stderr=subprocess.PIPE, text=True)

    def completed() -> bool:
        found = server.api.call("GET", "/queues/default/messages?status=completed&limit=1000")["items"]
        return any(message["body"] == {"file": "b.wav"} and message["output"] == {"chunks": 100} for message in found)

    until(completed)
    worker.send_signal(signal.SIGTERM)
    _, errors = worker.communicate(timeout=60)
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


def test_the_figures_of_speed_are_those_that_are_kept() -> None:
    assert f"<!-- results -->\n{tables(saved())}<!-- end of results -->" in README


def test_the_peers_of_speed_have_a_column_for_each_measure_and_no_verdict() -> None:
    shown = [
        Bar(4, "held, singly: jobs/s", 1.5, 1.0, at_most=False, unit="ratio"),
        Bar(4, "held, singly: jobs/s with drivers", 0.5, None, at_most=False, unit="ratio"),
        Bar(4, "beside, singly: jobs/s with drivers", 0.25, None, at_most=False, unit="ratio"),
    ]
    _, peers = tables(list(map(kept, shown))).split("\n\n")
    assert peers.splitlines() == [
        "| 4: Leasebeat / this | singly: jobs/s | singly: jobs/s with drivers |",
        "| --- | --- | --- |",
        "| held | 1.5 | 0.5 |",
        "| beside (no bar) |  | 0.25 |",
    ]


@pytest.mark.parametrize("value", [0.5, 1.09996, 1.10004, 2])
@pytest.mark.parametrize(("at_most", "shown"), [(True, "≤ 1.1"), (False, "≥ 1.1")])
def test_a_target_of_speed_says_which_way_it_is_meant(value: float, at_most: bool, shown: str) -> None:
    assert held_to(kept(Bar(12, "of two", value, 1.1, at_most, unit="ratio"))) == shown
