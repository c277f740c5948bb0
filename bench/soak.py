"""The soak: chains of jobs of each kind, with leases of 3 s, some of which hang: `python -m bench.soak`, ten minutes.

A job that moves must never be delivered twice; one that hangs must be delivered anew within its lease and a second. Each kind has a queue
and a worker of its own. A job that ends sends the next one of its chain, so that as many are in hand all the time.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from harness.server import Server
from harness.wait import until

from bench import ROOT
from bench.soak_jobs import CHAINS, KINDS, LEASE_S, SLOTS, new_job, queue_of
from bench.world import serving, world
from leasebeat import Client, Message, NewMessage

_WITHIN_S = LEASE_S + 1
_BEAT_INTERVAL_S = 0.3
_DRAIN_S = 90


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the jobs of one kind. Redeliveries are in seconds after the last beat."""

    kind: str
    moved: int
    moved_twice: int
    redeliveries: Sequence[float]
    unfinished: int

    @property
    def ok(self) -> bool:
        return bool(self.redeliveries) and max(self.redeliveries) <= _WITHIN_S and not (self.moved_twice or self.unfinished)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("seconds", nargs="?", type=float, default=600, help="how long new jobs are sent")
    seconds = parser.parse_args().seconds
    with world() as here, serving(here.database()) as server, Client(server.url) as client, ExitStack() as stack:
        for kind in KINDS:
            client.put_queue(queue_of(kind), visibility_timeout=LEASE_S, extension=LEASE_S, beat_interval=_BEAT_INTERVAL_S, max_attempts=3)
            stack.enter_context(_worker(kind, server))
        stop_at = time.time() + seconds
        for kind in KINDS:
            client.send_many(queue_of(kind), [NewMessage(new_job(kind, stop_at)) for _ in range(CHAINS)])
        time.sleep(seconds)
        with_work = [queue_of(kind) for kind in KINDS]
        until(lambda: not any(_unfinished(client, queue) for queue in with_work), timeout=_DRAIN_S, pause=1)
        outcomes = [_outcome(client, kind) for kind in KINDS]
    for each in outcomes:
        longest = f"{max(each.redeliveries):.2f} s" if each.redeliveries else "none"
        print(
            f"{each.kind:10} {each.moved:6} that moved, {each.moved_twice} of them delivered twice; {len(each.redeliveries):5} that hung, "
            f"the last of them delivered anew after {longest}; {each.unfinished} unfinished: {'yes' if each.ok else 'NO'}"
        )
    sys.exit(not all(each.ok for each in outcomes))


@contextmanager
def _worker(kind: str, server: Server) -> Iterator[None]:
    jobs = [sys.executable, "-m", "bench.soak_jobs"]
    if kind == "subprocess":
        options = ["--url", server.url, "--concurrency", str(SLOTS), "--quiet", "--drain-timeout", "5"]
        command = [sys.executable, "-m", "leasebeat", "work", queue_of(kind), *options, "--", *jobs]
    else:
        command = [*jobs, kind, server.url]
    variables = os.environ | {"SOAK_URL": server.url, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "sdk" / "src")))}
    process = subprocess.Popen(command, env=variables, cwd=ROOT)
    try:
        yield
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    finally:
        process.kill()
        process.wait()


def _unfinished(client: Client, queue: str) -> bool:
    return any(client.list_messages(queue, status=status, limit=1).items for status in ("pending", "scheduled", "in_progress"))


def _outcome(client: Client, kind: str) -> Outcome:
    done = list(_messages(client, kind, "completed"))
    hung = [message for message in done if message.output["hung"]]
    moved = [message for message in done if not message.output["hung"]]
    return Outcome(
        kind,
        moved=len(moved),
        moved_twice=sum(message.generation > 1 for message in moved),
        redeliveries=[message.output["redelivered_after"] for message in hung],
        unfinished=len(list(_messages(client, kind, "failed"))),
    )


def _messages(client: Client, kind: str, status: str) -> Iterator[Message]:
    cursor = None
    while True:
        page = client.list_messages(queue_of(kind), status=status, cursor=cursor, limit=1000)
        yield from page.items
        if page.next_cursor is None:
            return
        cursor = page.next_cursor


if __name__ == "__main__":
    main()
