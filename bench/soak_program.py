"""A job of the soak as a program that `leasebeat work` starts, and what the jobs of all kinds share.

Of the standard library alone, as several of these programs start each second.
"""

import json
import os
import random
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

LEASE_S = 3.0
BEAT_INTERVAL_S = 0.3
_HANG_S = 3 * LEASE_S
_HANGING_SHARES = {"blocking": 0.15, "cpu": 0.06, "async": 0.15, "subprocess": 0.15}
"""A process that hangs is ended, and the start of another takes a third of a second of the machine: no more of them than two cores bear."""
LONGEST_STEP_S = 1.4
_STEPS = (12, 30)
"""Long jobs, as each of one kind starts a program: with half as many steps these starts took a quarter of two cores."""
_STEP_S = (0.2, LONGEST_STEP_S)

Facts = dict[str, Any]


def queue_of(kind: str) -> str:
    return f"soak-{kind}"


def new_job(kind: str, stop_at: float) -> Facts:
    """Make a job: how long its steps take, and whether its first attempt hangs half-way. After `stop_at` it sends no other."""
    steps = [random.uniform(*_STEP_S) for _ in range(random.randint(*_STEPS))]
    return {"kind": kind, "steps": steps, "hangs": random.random() < _HANGING_SHARES[kind], "stop_at": stop_at}


def steps_of(job: Facts, attempt: int) -> Iterator[tuple[float, int | None]]:
    """Go through the steps: how long each takes, and its number, to report. One that hangs is not reported."""
    hangs = job["hangs"] and attempt == 1
    steps = job["steps"][: len(job["steps"]) // 2] if hangs else job["steps"]
    yield from zip(steps, range(1, len(steps) + 1), strict=True)
    if hangs:
        yield _HANG_S, None


def begin(message_id: str) -> None:
    """Note that a step begins."""
    _note(message_id, "begin", time.time())


def report(message_id: str, number: int) -> Facts:
    """Note that a step has ended, whatever becomes of its report, and return that."""
    now = time.time()
    _note(message_id, "end", now)
    return {"progress": number, "detail": {"at": now}}


def _note(message_id: str, what: str, moment: float) -> None:
    with open(os.environ["SOAK_STEPS"], "a") as file:  # noqa: PTH123 - to import `pathlib` is what the start of a program would wait for
        file.write(f"{message_id} {what} {moment}\n")


def finish(job: Facts, began: float, before: Facts | None) -> Facts:
    """Send the next job of the chain, and return when this attempt began, and when the one before it last beat, if there was one."""
    if time.time() < job["stop_at"]:
        _send(new_job(job["kind"], job["stop_at"]))
    return {"hung": job["hangs"], "began": began, "last_beat": before["at"] if before else None}


def _send(job: Facts) -> None:
    """Send a job, by hand: to import `http.client` would double what the start of a program takes of the machine."""
    host, _, port = os.environ["SOAK_URL"].removeprefix("http://").partition(":")
    body = json.dumps({"messages": [{"body": job}]})
    head = (
        f"POST /queues/{queue_of(job['kind'])}/messages HTTP/1.1",
        f"Host: {host}:{port}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    with socket.create_connection((host, int(port)), timeout=30) as connection, connection.makefile("rb") as answer:
        connection.sendall("\r\n".join((*head, "", body)).encode())
        status = answer.readline()
    if not status.startswith(b"HTTP/1.1 201 "):
        raise RuntimeError(f"the next job was not taken: {status!r}")


def main() -> None:
    began = time.time()
    job = json.load(sys.stdin)
    before = json.loads(os.environ["LEASEBEAT_DETAIL"] or "null")
    message_id = os.environ["LEASEBEAT_MESSAGE_ID"]
    for seconds, number in steps_of(job, int(os.environ["LEASEBEAT_ATTEMPT"])):
        begin(message_id)
        time.sleep(seconds)
        if number is None:
            sys.exit("it hung, and was not ended")
        print(json.dumps(report(message_id, number)), flush=True)
    print(json.dumps(finish(job, began, before)), flush=True)


if __name__ == "__main__":
    main()
