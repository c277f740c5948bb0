"""`ToolCounters`: what came of the beats of each tool."""

import threading
from collections import Counter, defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from leasebeat._fork import reset_in_child
from leasebeat._lease_extender import on_extension


@dataclass(frozen=True, slots=True)
class ToolCounts:
    """What one tool has done.

    Attributes:
        calls: How often the model asked for it.
        failures: How many of these ended with an error result.
        beats: Beats of its handler, and those before and after it.
        extensions: Extensions of a lease that these beats brought about.
        failed_extensions: Tries to extend one that failed.
    """

    calls: int = 0
    failures: int = 0
    beats: int = 0
    extensions: int = 0
    failed_extensions: int = 0


class ToolCounters:
    """Counts per tool, from any thread."""

    def __init__(self) -> None:
        """Start at nothing."""
        self._lock = threading.Lock()
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        reset_in_child(self)

    def after_fork(self) -> None:
        """Another thread of the parent may hold the lock for ever."""
        self._lock = threading.Lock()

    def add(self, tool: str, **amounts: int) -> None:
        """Add to the counts of a tool, each by its name in `ToolCounts`."""
        with self._lock:
            self._counts[tool].update(amounts)

    def snapshot(self) -> dict[str, ToolCounts]:
        """The counts by the tools' names, as they are now."""
        with self._lock:
            return {tool: ToolCounts(**counts) for tool, counts in self._counts.items()}

    @contextmanager
    def beating(self, tool: str) -> Generator[None, None, None]:
        """Put the extensions that are made in this block, in this thread, to the account of a tool."""

        def count(extended: bool) -> None:
            self.add(tool, **{"extensions" if extended else "failed_extensions": 1})

        token = on_extension.set(count)
        try:
            yield
        finally:
            on_extension.reset(token)
