"""`leasebeat top`."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from leasebeat._client import Client
from leasebeat._errors import LeasebeatError
from leasebeat._figures import Stats
from leasebeat._leases import ActiveLease
from leasebeat._queues import Queue
from leasebeat._registry import WorkerInfo
from leasebeat._signals import stop_on_signals
from leasebeat.cli._given import DEFAULT_URL, Url
from leasebeat.cli._tables import add_row, console, every, queue_table, table

ROWS = 20  # of workers and of leases, of which there may be a million


def top(
    *,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, print and end.")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Show queues, workers and leases, again and again until interrupted. A service that is away is waited for."""
    stopped = threading.Event()
    with Client(url) as client:
        if once:
            console().print(_draw(_look(client)))
            return
        with stop_on_signals(stopped.set), _screen() as show:
            look: _Look | None = None
            while not stopped.is_set():
                try:
                    look, trouble = _look(client), None
                except LeasebeatError as error:
                    trouble = error
                show(_draw(look, trouble))
                stopped.wait(interval)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What was seen, and when, on `time.monotonic()`."""

    at: float
    stats: Stats
    queues: tuple[Queue, ...]
    workers: Sequence[WorkerInfo]
    leases: tuple[ActiveLease, ...]


def _look(client: Client) -> _Look:
    overdue = client.list_leases(overdue=True, limit=ROWS).items
    in_time = client.list_leases(overdue=False, limit=ROWS).items
    return _Look(
        at=time.monotonic(),
        stats=client.stats(),
        queues=tuple(every(client.list_queues)),
        workers=sorted(every(client.list_workers), key=lambda worker: worker.stale)[:ROWS],
        leases=(overdue + in_time)[:ROWS],
    )


@contextmanager
def _screen() -> Iterator[Callable[[RenderableType], None]]:
    """Where looks are shown: in place on a terminal, one after the other elsewhere."""
    output = console()
    if not output.is_terminal:
        yield output.print
        return
    with Live(console=output, screen=True, auto_refresh=False) as live:
        yield lambda drawing: live.update(drawing, refresh=True)


def _draw(look: _Look | None, trouble: LeasebeatError | None = None) -> RenderableType:
    parts: list[RenderableType] = []
    if trouble is not None:
        seen = "nothing seen yet" if look is None else f"as seen {time.monotonic() - look.at:.0f} s ago"
        parts.append(Text(f"The service does not answer ({seen}): {trouble}", style="bold red"))
    if look is not None:
        parts += [_summary(look.stats), queue_table(look.queues), _worker_table(look.workers), _lease_table(look.leases)]
    return Group(*parts)


def _summary(stats: Stats) -> Text:
    counted = "not counted yet" if stats.as_of is None else f"counted at {stats.as_of:%H:%M:%S} UTC"
    leases = stats.leases
    return Text(f"{leases.active} active leases, {leases.stale} stale, {leases.overdue} overdue; {counted}")


def _worker_table(workers: Iterable[WorkerInfo]) -> Table:
    made = table("Workers", "worker", "host", "version", "leases", "silent s", "notes", words={"worker", "host", "version", "notes"})
    for worker in workers:
        notes = [word for word, applies in (("stale", worker.stale), ("draining", worker.draining)) if applies]
        add_row(
            made,
            worker.worker_id,
            worker.host,
            worker.version,
            worker.held_leases,
            worker.silent_for,
            ", ".join(notes),
            style="dim" if worker.stale else "",
        )
    return made


def _lease_table(leases: Iterable[ActiveLease]) -> Table:
    columns = ("message", "queue", "worker", "generation", "expires s", "since beat s", "progress", "detail")
    made = table("Leases", *columns, words={"queue", "worker", "detail"})
    for lease in leases:
        add_row(
            made,
            lease.message_id,
            lease.queue,
            lease.worker_id,
            lease.generation,
            lease.expires_in,
            lease.since_beat,
            lease.progress,
            lease.detail,
            style="red" if lease.expired else "",
        )
    return made
