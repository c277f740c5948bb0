"""`leasebeat send`."""

import dataclasses
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Annotated

import typer

from leasebeat._client import Client
from leasebeat._messages import NewMessage
from leasebeat._wire import encode
from leasebeat.cli._given import DEFAULT_URL, STANDARD_INPUT, Url, parse_json, read_json
from leasebeat.cli._status import print_json

MAX_BATCH = 1000
MAX_BATCH_BYTES = 6 * 1024 * 1024  # the service reads requests of up to 8 MiB


def send(
    queue: Annotated[str, typer.Argument(help="The queue to send to.")],
    body: Annotated[str, typer.Argument(help="The work, as JSON. - reads it from standard input.")] = STANDARD_INPUT,
    *,
    lines: Annotated[
        bool, typer.Option("--lines", help="Each line of standard input is the body of a message; they are sent 1000 at a time.")
    ] = False,
    priority: Annotated[int | None, typer.Option(help="Higher is leased first, within its fairness key.")] = None,
    delay: Annotated[float | None, typer.Option(help="Seconds before the message becomes ready.")] = None,
    fairness_key: Annotated[str | None, typer.Option(help="The tenant or flow it belongs to.")] = None,
    work_type: Annotated[str | None, typer.Option(help="What kind of work it is.")] = None,
    task_id: Annotated[str | None, typer.Option(help="The larger task that it is part of.")] = None,
    max_attempts: Annotated[int | None, typer.Option(help="Its own limit of attempts, in place of the queue's.")] = None,
    dedup_key: Annotated[
        str | None, typer.Option(help="While a message with this key is kept in the queue, it is returned instead.")
    ] = None,
    header: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="For the worker. May be repeated.")] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(help="A name for this send: repeating it stores nothing twice. With --lines, batch 2 gets the key KEY-2."),
    ] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Send a message, or one per line. Prints each one's id and status once it is stored."""
    message = partial(
        NewMessage,
        headers=_headers(header or ()),
        priority=priority,
        delay=delay,
        fairness_key=fairness_key,
        work_type=work_type,
        task_id=task_id,
        max_attempts=max_attempts,
        dedup_key=dedup_key,
    )
    if not lines:
        batches: Iterable[Sequence[NewMessage]] = [[message(read_json(body, "the body"))]]
    elif body != STANDARD_INPUT or dedup_key is not None:
        raise typer.BadParameter("--lines takes no body, and no --dedup-key, which would make all lines one message")
    else:
        batches = _batches(message(parse_json(line, f"line {number}")) for number, line in _numbered_lines())
    with Client(url) as client:
        for number, batch in enumerate(batches, start=1):
            key = f"{idempotency_key}-{number}" if lines and idempotency_key else idempotency_key
            for sent in client.send_many(queue, batch, idempotency_key=key):
                print_json(sent)


def _headers(given: Iterable[str]) -> dict[str, str] | None:
    pairs = [each.partition("=") for each in given]
    if wrong := [name for name, equals, _ in pairs if not (name and equals)]:
        raise typer.BadParameter(f"a header is NAME=VALUE, not {wrong[0]!r}")
    return {name: value for name, _, value in pairs} or None


def _numbered_lines() -> Iterator[tuple[int, bytes]]:
    """The lines of standard input that are not blank."""
    return ((number, line) for number, line in enumerate(sys.stdin.buffer, start=1) if line.strip())


def _batches(messages: Iterable[NewMessage]) -> Iterator[list[NewMessage]]:
    """Cut by number and size only, so that the same input makes the same batches, each with its idempotency key, again."""
    batch: list[NewMessage] = []
    room = MAX_BATCH_BYTES
    for message in messages:
        size = len(encode(dataclasses.asdict(message)))
        if batch and (len(batch) == MAX_BATCH or size > room):
            yield batch
            batch, room = [], MAX_BATCH_BYTES
        batch.append(message)
        room -= size
    if batch:
        yield batch
