"""The soak: fifty jobs of each kind in hand, with leases of 3 s, some of which hang: `python -m bench.soak`, ten minutes.

A job that moves must never be delivered twice; one that hangs must be delivered a second time within its lease and a second, and be done
then; and the workers must not grow. Each kind has a queue and a worker of its own. A job that ends sends the next one of its chain.

A machine that stands still for longer than a lease can spare fails it, too. So each worker and this program note when they stood still, and
when the disk did: what was delivered when it should not is shown with how much of its time that was. Each job notes when a step begins and
when it ends. One whose step took nearly a lease, though it was to take half of one at most, did not move: it is counted as starved.
"""

import argparse
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median

import psutil
from harness.wait import until

from bench import ROOT
from bench.results import aligned
from bench.soak_program import BEAT_INTERVAL_S, LEASE_S, new_job, queue_of
from bench.soak_stalls import note_stalls, note_stalls_of_disk, stalls, stood_still
from bench.world import serving, world
from leasebeat import Client, Message

KINDS = ("blocking", "cpu", "async", "subprocess")
_CHAINS = 50
_CHAINS_BEGIN_S = 5.0  # fifty programs that start at once would be a test of the machine
_WITHIN_S = LEASE_S + 1
_READY_S = 180
_DRAIN_S = 90
_STOP_S = 60
_LEAST_S = 30
_UNDONE = ("failed", "pending", "scheduled", "in_progress")
_SAMPLES = 60
_STARVED_S = LEASE_S - BEAT_INTERVAL_S
"""A step that takes so long was not run, as it was to take `LONGEST_STEP_S`: its job's lease may be over."""
_MOST_STARVED = 0.01
"""Of those that moved. If there are more, the machine is too small or too busy to tell."""

_OF_LOST_LEASES = (" stopped: the lease of ", " is over: ")
"""What each job that hangs has its worker say."""
_MAY_GROW = 1.1
_SPARE = {"threads": 10.0, "files": 10.0, "MiB": 5.0}
"""By how much more than by `_MAY_GROW`, as jobs come and go."""

Sample = dict[str, float]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the jobs of one kind, and of their worker.

    Attributes:
        kind: Which.
        moved: How many did what they were to do without hanging.
        starved: Of these: delivered a second time, as a step was not run while their first lease ran out.
        moved_twice: Of the others: delivered more than once.
        hung: How many hung, and were done by their second delivery.
        slowest: The longest that one waited for that, in seconds from its last beat to its next lease.
        wrong: How many did not end as they were to: given up, not done, or hung but delivered another number of times than two.
        size: Of what the worker had how many, after a tenth of the time and at its end.
        left: How many processes outlived the worker.
        told: What is to be known of those that were not done, and of each that was delivered when it should not.
    """

    kind: str
    moved: int
    starved: int
    moved_twice: int
    hung: int
    slowest: float
    wrong: int
    size: dict[str, tuple[float, float]]
    left: int
    told: tuple[str, ...]

    @property
    def ok(self) -> bool:
        delivered = self.moved and self.hung and self.slowest <= _WITHIN_S and not (self.moved_twice or self.wrong)
        was_run = self.starved <= _MOST_STARVED * self.moved
        return bool(delivered) and was_run and not self.left and not any(_has_grown(what, *sizes) for what, sizes in self.size.items())

    def line(self) -> tuple[str, ...]:
        sizes = [f"{early:.0f} > {late:.0f}" for early, late in self.size.values()]
        counts = (str(self.moved), str(self.starved), str(self.moved_twice), str(self.hung), f"{self.slowest:.2f}", str(self.wrong))
        return (self.kind, *counts, *sizes, str(self.left), "yes" if self.ok else "NO")


_HEAD = ("kind", "moved", "starved", "twice", "hung", "again within s", "wrong", "threads", "files", "MiB", "left", "ok")


@dataclass(frozen=True, slots=True)
class Notes:
    """Where it is noted when this program and the disk stood still."""

    soak: Path
    disk: Path


@dataclass(slots=True)
class _Step:
    """When a step began, and when it ended, if it did."""

    began: float
    ended: float = math.inf


@dataclass(frozen=True, slots=True)
class _End:
    """When a lease ran out, and when that was noticed."""

    at: float
    reclaimed_at: float


class WorkerProcess:
    """The worker of one kind, with what it was seen to use."""

    def __init__(self, kind: str, url: str, log: Path) -> None:
        self._steps = log.with_suffix(".steps")
        variables = os.environ | {
            "SOAK_URL": url,
            "SOAK_STEPS": str(self._steps),
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "sdk" / "src"))),
        }
        self.kind = kind
        self.log = log
        self.stalls = log.with_suffix(".stalls")
        self._samples: list[Sample] = []
        with log.open("w") as file:
            line = [sys.executable, "-m", "bench.soak_jobs", kind, url, str(self.stalls)]
            self._process = psutil.Popen(line, env=variables, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)

    def sample(self) -> None:
        """Note what it uses: the processes of its handlers with it, but no programs, which come and go."""
        with suppress(psutil.NoSuchProcess):
            family = [self._process, *(self._process.children() if self.kind == "cpu" else ())]
            self._samples.append(_sum([sample for each in family for sample in _sample(each)]))

    def steps(self) -> defaultdict[str, list[_Step]]:
        """The steps of the jobs, by their messages, in the order in which they began."""
        noted: defaultdict[str, list[_Step]] = defaultdict(list)
        for line in self._steps.read_text().splitlines() if self._steps.exists() else ():
            message_id, what, moment = line.split()
            if what == "begin":
                noted[message_id].append(_Step(float(moment)))
            else:
                noted[message_id][-1].ended = float(moment)
        return noted

    def size(self) -> dict[str, tuple[float, float]]:
        """What it had in the second tenth of the time, and in the last one."""
        tenth = max(1, len(self._samples) // 10)
        early, late = self._samples[tenth : 2 * tenth] or self._samples, self._samples[-tenth:]
        return {what: (median(each[what] for each in early), median(each[what] for each in late)) for what in _SPARE}

    def stop(self) -> int:
        """Have it end, and return how many of its processes did not, which are killed then."""
        with suppress(psutil.NoSuchProcess):
            family = [self._process, *self._process.children(recursive=True)]
            self._process.terminate()
            with suppress(psutil.TimeoutExpired):
                self._process.wait(_STOP_S)
            _, left = psutil.wait_procs(family, timeout=LEASE_S)
            for each in left:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            return len(left)
        return 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="how long new jobs are sent; a minute and a half more passes around it")
    seconds = parser.parse_args().seconds
    if seconds < _LEAST_S:
        parser.error(f"at least {_LEAST_S:.0f} seconds, so that there are some that hang, and are done")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing is left running
    outcomes = _soak(seconds)
    print(aligned([_HEAD, *(each.line() for each in outcomes)]))
    ok = all(each.ok for each in outcomes)
    print(f"a soak of {seconds:.0f} s: {'passed' if ok else 'FAILED'}")
    sys.exit(not ok)


def _soak(seconds: float) -> list[Outcome]:
    with world() as here, serving(here.database()) as server, Client(server.url) as client, ExitStack() as stack:
        workers: list[WorkerProcess] = []
        noted_here = Notes(here.folder / "soak.stalls", here.folder / "disk.stalls")
        for kind in KINDS:
            client.put_queue(queue_of(kind), visibility_timeout=LEASE_S, extension=LEASE_S, beat_interval=BEAT_INTERVAL_S, max_attempts=3)
            workers.append(WorkerProcess(kind, server.url, here.folder / f"{kind}.log"))
            stack.callback(workers[-1].stop)
        until(lambda: _registered(client) >= {queue_of(kind) for kind in KINDS}, timeout=_READY_S, pause=0.5)
        note_stalls(noted_here.soak)
        note_stalls_of_disk(noted_here.disk)
        _run(client, workers, seconds)
        outcomes = [_outcome(client, worker, noted_here) for worker in workers]
        _print_stalls(workers, noted_here)
        for worker, outcome in zip(workers, outcomes, strict=True):
            print(*outcome.told, sep="\n", end="\n" * bool(outcome.told))
            if not outcome.ok:
                lines = [line for line in worker.log.read_text().splitlines() if not any(text in line for text in _OF_LOST_LEASES)]
                print(f"--- the end of the log of {worker.kind}:", *lines[-20:], sep="\n")
    return outcomes


def _run(client: Client, workers: Sequence[WorkerProcess], seconds: float) -> None:
    """Begin the chains, watch the workers while they last, and wait until everything is done."""
    stop_at = time.time() + seconds
    for _ in range(_CHAINS):
        for kind in KINDS:
            client.send(queue_of(kind), new_job(kind, stop_at))
        time.sleep(_CHAINS_BEGIN_S / _CHAINS)
    for worker in workers:
        worker.sample()
    while (left := stop_at - time.time()) > 0:
        for worker in workers:
            worker.sample()
        time.sleep(min(left, seconds / _SAMPLES))
    with suppress(AssertionError):  # what is not done shows in the table
        until(lambda: not any(_unfinished(client, kind) for kind in KINDS), timeout=_DRAIN_S, pause=1)


def _print_stalls(workers: Sequence[WorkerProcess], noted_here: Notes) -> None:
    for name, noted in (
        ("the disk", noted_here.disk),
        ("the soak", noted_here.soak),
        *((f"the worker of {worker.kind}", worker.stalls) for worker in workers),
    ):
        lengths = [stall.ended - stall.began for stall in stalls(noted)]
        print(f"{name} stood still {len(lengths)} times, {sum(lengths):.1f} s in all, {max(lengths, default=0.0):.2f} s at most")


def _sample(process: psutil.Process) -> Iterator[Sample]:
    with suppress(psutil.NoSuchProcess):
        yield {"threads": process.num_threads(), "files": process.num_fds(), "MiB": process.memory_info().rss / 2**20}


def _sum(samples: Sequence[Sample]) -> Sample:
    return {what: sum(each[what] for each in samples) for what in _SPARE}


def _has_grown(what: str, early: float, late: float) -> bool:
    return late > early * _MAY_GROW + _SPARE[what]


def _registered(client: Client) -> set[str]:
    return {worker.worker_id for worker in client.list_workers().items}


def _unfinished(client: Client, kind: str) -> bool:
    return any(client.list_messages(queue_of(kind), status=status, limit=1).items for status in ("pending", "scheduled", "in_progress"))


def _outcome(client: Client, worker: WorkerProcess, noted_here: Notes) -> Outcome:
    done = list(_messages(client, worker.kind, "completed"))
    hung = [message for message in done if message.output["hung"]]
    as_meant = [message for message in hung if message.generation == 2]
    late = [message for message in as_meant if _again_after(message) > _WITHIN_S]
    undone = Counter(status for status in _UNDONE for _ in _messages(client, worker.kind, status))
    steps = worker.steps()
    twice = [message for message in done if message.generation > 1 and not message.output["hung"]]
    ends = {message.id: _first_end(client, message) for message in (*twice, *late)}
    starved = [message for message in twice if message.generation == 2 and _was_starved(ends[message.id], steps[message.id])]
    return Outcome(
        worker.kind,
        moved=len(done) - len(hung),
        starved=len(starved),
        moved_twice=len(twice) - len(starved),
        hung=len(as_meant),
        slowest=max(map(_again_after, as_meant), default=0.0),
        wrong=len(hung) - len(as_meant) + undone.total(),
        size=worker.size(),
        left=worker.stop(),
        told=(
            *(f"{queue_of(worker.kind)}: {count} {status}" for status, count in undone.items()),
            *(_tell(message, ends[message.id], steps[message.id], worker.stalls, noted_here) for message in (*twice, *late)),
        ),
    )


def _again_after(message: Message) -> float:
    """Seconds from the last beat of a job that hung to its next lease."""
    last_beat = message.output["last_beat"]
    return math.inf if last_beat is None or message.started_at is None else float(message.started_at.timestamp() - last_beat)


def _first_end(client: Client, message: Message) -> _End | None:
    """How the first lease of a message ran out. None if it was given back, or nacked."""
    for each in client.list_checkpoints(message.id).items:
        if each.reason == "lease_expired" and each.generation == 1:
            return _End(datetime.fromisoformat(each.facts["expires_at"]).timestamp(), each.created_at.timestamp())
    return None


def _was_starved(end: _End | None, steps: Sequence[_Step]) -> bool:
    """Whether a step was under way for nearly a lease, in the time of the lease's last extension."""
    if end is None:
        return False
    of_then = [step for step in steps if step.began < end.at and step.ended > end.at - LEASE_S]
    return any(min(step.ended, end.at) - step.began >= _STARVED_S for step in of_then)


def _tell(message: Message, end: _End | None, steps: Sequence[_Step], noted_there: Path, noted_here: Notes) -> str:
    """Say how the first lease of a message came to its end, and for how long everything stood still from its last extension on."""
    if end is None:
        return f"{message.queue}, {message.id}: its first lease was given back, or nacked"
    extended_at = end.at - LEASE_S
    again_at = message.started_at.timestamp() if message.started_at else math.nan
    last_beat = message.output["last_beat"] or math.nan
    around = ", ".join(
        f"{step.began - extended_at:.2f} to {step.ended - extended_at:.2f}"
        for step in steps
        if step.began < again_at + LEASE_S and step.ended > extended_at - LEASE_S
    )
    places = (noted_there, noted_here.soak, noted_here.disk)
    of_worker, of_soak, of_disk = (stood_still(stalls(noted), extended_at, again_at) for noted in places)
    return (
        f"{message.queue}, {message.id}: in seconds from its lease's last extension or grant, had steps from {around or 'never'}, of "
        f"which the service had heard up to {last_beat - extended_at:.2f}; the lease ended at {LEASE_S:.2f}, was reclaimed at "
        f"{end.reclaimed_at - extended_at:.2f}, leased at {again_at - extended_at:.2f}, begun at "
        f"{message.output['began'] - extended_at:.2f}; until the next lease its worker stood still for {of_worker:.2f} s, the soak for "
        f"{of_soak:.2f} s, the disk for {of_disk:.2f} s"
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
