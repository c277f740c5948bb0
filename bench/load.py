"""Load from wrk, a compiled load generator that is never the limit: one request after another on each of many connections."""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

CONNECTIONS = 64
_TIMEOUT_S = 20


class MissingProgramError(RuntimeError):
    """A program that is needed to measure is not installed."""


@dataclass(frozen=True, slots=True)
class Load:
    """What wrk saw: requests a second, and how many in all."""

    rate: float
    requests: int


def wrk(url: str, seconds: int, script: Path | None = None, connections: int = CONNECTIONS) -> Load:
    """Drive one address for a while, and make sure that all of it was answered with 2xx."""
    if shutil.which("wrk") is None:
        raise MissingProgramError("wrk is not installed (on Debian: apt-get install wrk)")
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", f"--timeout={_TIMEOUT_S}s", *(["-s", str(script)] if script else []), url]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds + 30).stdout
    if "Non-2xx" in printed or "Socket errors" in printed:
        raise RuntimeError(f"not every request was answered as it should be:\n{printed}")
    rate, requests = re.search(r"Requests/sec:\s+([\d.]+)", printed), re.search(r"(\d+) requests in", printed)
    assert rate, printed
    assert requests, printed
    return Load(float(rate[1]), int(requests[1]))


def posts(file: Path, body: str) -> Path:
    """Write a script that posts the same body again and again."""
    file.write_text(f'wrk.method = "POST"\nwrk.headers["Content-Type"] = "application/json"\nwrk.body = {json.dumps(body)}\n')
    return file


def posts_per_receipt(file: Path, receipts: list[str]) -> Path:
    """Write a script that posts for one lease after another, and begins anew after the last."""
    names = ",".join(f'"{receipt}"' for receipt in receipts)
    file.write_text(f"""
        local receipts = {{{names}}}
        local turn = 0
        wrk.method = "POST"
        wrk.headers["Content-Type"] = "application/json"
        function request()
            turn = turn % #receipts + 1
            return wrk.format(nil, nil, nil, '{{"leases":[{{"receipt":"' .. receipts[turn] .. '"}}]}}')
        end
    """)
    return file
