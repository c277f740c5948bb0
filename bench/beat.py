"""How many coalesced, committed beats a second the service carries, as a share of its own empty route.

One uvicorn process and a Postgres of its own with `synchronous_commit = on`; wrk with 64 connections, one lease per request, every beat
extending; the two measured in turn, five times. Run it with `make bench-beat` (wrk is Debian's package of that name).
"""

import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx

sys.path[:0] = [str(Path(__file__).parents[1] / "tests")]

from harness.postgres import MIGRATIONS, programs
from harness.server import Server

from app import embedded
from app.store.migrations import migrate

ROUNDS = 5
SECONDS = 4
CONNECTIONS = 64
LEASES = 2000


def main() -> None:
    if shutil.which("wrk") is None:
        sys.exit("wrk is not installed (on Debian: apt-get install wrk)")
    with tempfile.TemporaryDirectory() as folder, embedded.running(Path(folder) / "data", programs()) as postgres:
        migrate(postgres.url, MIGRATIONS)
        with Server(postgres.url) as server:
            script = Path(folder) / "beat.lua"
            script.write_text(beats(receipts(server)))
            measure(server.url, "/beat", script)  # warms up
            rounds = [(measure(server.url, "/healthz"), measure(server.url, "/beat", script)) for _ in range(ROUNDS)]
            check(server)
    print(f"{'empty route':>14} {'beat':>10} {'ratio':>7}   (requests a second)")
    for empty, beat in rounds:
        print(f"{empty:>14.0f} {beat:>10.0f} {beat / empty:>7.2f}")
    ratios = [beat / empty for empty, beat in rounds]
    print(f"median {statistics.median(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}")


def receipts(server: Server) -> list[str]:
    server.api.put_queue("bench", beat_interval=0)
    found: list[str] = []
    while len(found) < LEASES:
        server.api.send("bench", *range(1000))
        found += [lease["receipt"] for lease in server.api.claim("bench", max_messages=1000, visibility_timeout=3600)]
    return found


def beats(receipts: list[str]) -> str:
    """Return a wrk script that beats for one lease after another."""
    names = ",".join(f'"{receipt}"' for receipt in receipts)
    return f"""
        local receipts = {{{names}}}
        local turn = 0
        wrk.method = "POST"
        wrk.headers["Content-Type"] = "application/json"
        function request()
            turn = turn % #receipts + 1
            return wrk.format(nil, nil, nil, '{{"leases":[{{"receipt":"' .. receipts[turn] .. '"}}]}}')
        end
    """


def measure(url: str, path: str, script: Path | None = None) -> float:
    """Return requests a second, all of them answered with 2xx."""
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{SECONDS}s", *(["-s", str(script)] if script else []), url + path]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    if "Non-2xx" in printed:
        sys.exit(printed)
    found = re.search(r"Requests/sec:\s+([\d.]+)", printed)
    assert found, printed
    return float(found[1])


def check(server: Server) -> None:
    """Make sure that what was measured were extensions."""
    counts = re.findall(r'leasebeat_beats_total\{.*outcome="(\w+)"\} ([\d.]+)', httpx.get(f"{server.url}/metrics").text)
    assert {outcome for outcome, _ in counts} == {"extended"}, counts


if __name__ == "__main__":
    main()
