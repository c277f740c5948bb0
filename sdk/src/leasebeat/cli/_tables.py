"""Tables for people."""

import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from leasebeat._queues import Queue
from leasebeat._wire import Page

T = TypeVar("T")

WIDTH_WITHOUT_TERMINAL = 160


def console() -> Console:
    """Standard output, wide enough for whole rows if it is no terminal."""
    return Console(width=None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL)


def every(list_page: Callable[..., Page[T]]) -> Iterator[T]:
    """The entries of all pages of a list."""
    cursor: str | None = None
    while True:
        page = list_page(cursor=cursor, limit=1000)
        yield from page.items
        cursor = page.next_cursor
        if cursor is None:
            return


def table(title: str, *columns: str, words: Collection[str]) -> Table:
    """An empty table. The columns named as `words` are read from the left, the others are numbers."""
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for column in columns:
        made.add_column(column, justify="left" if column in words else "right", no_wrap=True, overflow="ellipsis")
    return made


def add_row(to: Table, *values: Any, style: str = "") -> None:
    """Add a row of numbers, words and whatever workers have reported."""
    to.add_row(*map(_cell, values), style=style)


def queue_table(queues: Iterable[Queue]) -> Table:
    """The queues, with their messages by state as of the last count."""
    states = ("pending", "scheduled", "in progress", "completed", "failed", "cancelled")
    made = table("Queues", "queue", *states, "lease s", "attempts", "notes", words={"queue", "notes"})
    for queue in queues:
        figures = queue.figures
        counts = [None if figures is None else getattr(figures, state.replace(" ", "_")) for state in states]
        add_row(made, queue.name, *counts, queue.visibility_timeout, queue.max_attempts, _notes(queue))
    return made


def _notes(queue: Queue) -> str:
    notes = [
        "paused" if queue.paused else "",
        "" if queue.max_in_flight is None else f"at most {queue.max_in_flight} in flight",
        "" if queue.dead_letter_queue is None else f"dead letters to {queue.dead_letter_queue}",
    ]
    return ", ".join(filter(None, notes))


def _cell(value: Any) -> Text:
    """One value. What a terminal would take for a command is taken out: workers may report anything."""
    match value:
        case None:
            text = "-"
        case str():
            text = value
        case float():
            text = f"{value:.1f}".removesuffix(".0")
        case _:
            text = json.dumps(value, ensure_ascii=False)
    return Text("".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text))
