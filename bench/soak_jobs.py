"""The jobs of the soak: `python -m bench.soak_jobs KIND URL` works on those of a kind, without arguments it does one as a program."""

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from leasebeat import Client, Context, LeasedMessage, Worker

LEASE_S = 3.0
CHAINS = 50
KINDS = ("blocking", "cpu", "async", "subprocess")
SLOTS = 70
"""More than chains: a job whose lease is lost hangs on beside its successor."""
_HANG_S = 3 * LEASE_S
_STEP_S = (0.05, 1.0)
_STEPS = (3, 12)
_HANGING_SHARE = 0.1

Facts = dict[str, Any]


def queue_of(kind: str) -> str:
    return f"soak-{kind}"


def new_job(kind: str, stop_at: float) -> Facts:
    """Make a job: how long its steps take, and whether its first attempt hangs half-way. After `stop_at` it sends no other."""
    steps = [random.uniform(*_STEP_S) for _ in range(random.randint(*_STEPS))]
    return {"kind": kind, "steps": steps, "hangs": random.random() < _HANGING_SHARE, "stop_at": stop_at}


def blocking(message: LeasedMessage, context: Context) -> Facts:
    return _in_steps(message, context, time.sleep)


def cpu(message: LeasedMessage, context: Context) -> Facts:
    return _in_steps(message, context, _spin)


async def coroutine(message: LeasedMessage, context: Context) -> Facts:
    began = time.time()
    for seconds, number in _steps(message.body, context.attempt):
        await asyncio.sleep(seconds)
        if number:
            context.beat(**_report(number))
    context.beat()  # one that has hung hears here that it has lost
    return await asyncio.to_thread(_finish, message.body, began, message.detail)


def program() -> None:
    """Do one job as a program that `leasebeat work` has started."""
    job, began = json.load(sys.stdin), time.time()
    before = json.loads(os.environ.get("LEASEBEAT_DETAIL") or "null")
    for seconds, number in _steps(job, int(os.environ["LEASEBEAT_ATTEMPT"])):
        time.sleep(seconds)
        if number:
            print(json.dumps(_report(number)), flush=True)
    print(json.dumps(_finish(job, began, before)), flush=True)


def _in_steps(message: LeasedMessage, context: Context, work: Callable[[float], None]) -> Facts:
    began = time.time()
    for seconds, number in _steps(message.body, context.attempt):
        work(seconds)
        if number:
            context.beat(**_report(number))
    context.beat()  # one that has hung hears here that it has lost
    return _finish(message.body, began, message.detail)


def _steps(job: Facts, attempt: int) -> Iterator[tuple[float, int | None]]:
    """Go through the steps: how long each takes, and its number, to report. One that hangs is not reported."""
    hangs = job["hangs"] and attempt == 1
    steps = job["steps"][: len(job["steps"]) // 2] if hangs else job["steps"]
    yield from zip(steps, range(1, len(steps) + 1), strict=True)
    if hangs:
        yield _HANG_S, None


def _report(number: int) -> Facts:
    return {"progress": number, "detail": {"at": time.time()}}


def _finish(job: Facts, began: float, before: Facts | None) -> Facts:
    """Send the next job of the chain, and return how long after its last beat this one was delivered again, if it was."""
    if time.time() < job["stop_at"]:
        with Client(os.environ["SOAK_URL"]) as client:
            client.send(queue_of(job["kind"]), new_job(job["kind"], job["stop_at"]))
    return {"hung": job["hangs"], "redelivered_after": began - before["at"] if before else None}


def _spin(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def main() -> None:
    if len(sys.argv) == 1:
        program()
        return
    kind, url = sys.argv[1:]
    handler = {"blocking": blocking, "cpu": cpu, "async": coroutine}[kind]
    if kind == "cpu":
        os.nice(10)  # else what keeps the machine busy would starve the service, which has a machine of its own elsewhere
    Worker(url, queue_of(kind), handler, concurrency=SLOTS, processes=kind == "cpu").run()


if __name__ == "__main__":
    main()
