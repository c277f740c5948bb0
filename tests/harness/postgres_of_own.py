"""A Postgres of a test's own, as safe against crashes as users run it, that can be crashed and restarted."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.embedded import EmbeddedPostgres
from app.store.migrations import migrate
from harness.postgres import MIGRATIONS, programs


class OwnPostgres:
    """Keeps its address over restarts."""

    def __init__(self, folder: Path) -> None:
        self._postgres = EmbeddedPostgres(folder, programs())
        self._postgres.start()
        self.url = self._postgres.url
        migrate(self.url, MIGRATIONS)

    def crash(self) -> None:
        """Make every Postgres process quit at once, without a checkpoint or a goodbye."""
        self._postgres.stop(signal.SIGQUIT)

    def start(self) -> None:
        self._postgres.start()

    def stop(self) -> None:
        self._postgres.stop()


@contextmanager
def own_postgres(folder: Path) -> Iterator[OwnPostgres]:
    postgres = OwnPostgres(folder)
    try:
        yield postgres
    finally:
        postgres.stop()
