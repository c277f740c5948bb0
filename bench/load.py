"""Load from wrk, a compiled load generator that is never the limit: one request after another on each of many connections."""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

CONNECTIONS = 64
_TIMEOUT_S = 20


_PACE = """
        -- Each request has its moment; whatever comes late makes none of the others late.
        local ffi = require("ffi")
        ffi.cdef[[
            typedef struct {{ long seconds; long microseconds; }} moment;
            int gettimeofday(moment *now, void *zone);
        ]]
        local clock = ffi.new("moment")
        local started, sent = nil, 0
        function delay()
            ffi.C.gettimeofday(clock, nil)
            local now = tonumber(clock.seconds) + tonumber(clock.microseconds) / 1e6
            started, sent = started or now, sent + 1
            return math.max(0, math.floor((started + sent / {rate} - now) * 1000))
        end
"""


class MissingProgramError(RuntimeError):
    """A program that is needed to measure is not installed."""


@dataclass(frozen=True, slots=True)
class Load:
    """What wrk saw: requests a second, how many in all, and in how many seconds 99 of 100 were answered."""

    rate: float
    requests: int
    p99: float


def wrk(url: str, seconds: int, script: Path | None = None, connections: int = CONNECTIONS) -> Load:
    """Drive one address for a while, and make sure that all of it was answered with 2xx."""
    if shutil.which("wrk") is None:
        raise MissingProgramError("wrk is not installed (on Debian: apt-get install wrk)")
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", f"--timeout={_TIMEOUT_S}s", "--latency"]
    command += [*(["-s", str(script)] if script else []), url]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds + 30).stdout
    return read(printed)


def read(printed: str) -> Load:
    """Read what wrk has printed.

    Raises:
        RuntimeError: not all was answered with 2xx.

    """
    if "Non-2xx" in printed or "Socket errors" in printed:
        raise RuntimeError(f"not every request was answered as it should be:\n{printed}")
    rate, requests = re.search(r"Requests/sec:\s+([\d.]+)", printed), re.search(r"(\d+) requests in", printed)
    p99 = re.search(r"99%\s+([\d.]+)(us|ms|s)\s", printed)  # wrk fills seconds up with a space
    assert rate, printed
    assert requests, printed
    assert p99, printed
    return Load(float(rate[1]), int(requests[1]), float(p99[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1}[p99[2]])


def posts(file: Path, body: str) -> Path:
    """Write a script that posts the same body again and again."""
    file.write_text(f'wrk.method = "POST"\nwrk.headers["Content-Type"] = "application/json"\nwrk.body = {json.dumps(body)}\n')
    return file


def posts_per_receipt(file: Path, receipts: list[str], rate: int | None = None) -> Path:
    """Write a script that posts for one lease after another, and begins anew after the last: so many a second, or as many as can be."""
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
    if rate is not None:
        file.write_text(file.read_text() + _PACE.format(rate=rate))
    return file
