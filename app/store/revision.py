"""Which revision the database's schema is at, and whether this version serves on it."""

import ast
import re
from functools import cache
from pathlib import Path

from app.store.database import Pool, fetch

_IS_MIGRATED = "select to_regclass('alembic_version') as there"
_REVISION = "select version_num from alembic_version"
_DOWN_REVISION = re.compile(r"^down_revision\b[^=]*= *(.+)$", re.MULTILINE)


@cache
def _older_revisions(folder: Path) -> frozenset[str | None]:
    """Return what some migration leads on from, None for an empty database among it.

    The files are read as text. To import Alembic, which only migrating needs, would take a tenth of a start.
    """
    texts = [file.read_text() for file in (folder / "versions").iterdir() if file.suffix == ".py"]
    return frozenset(ast.literal_eval(down_revision) for text in texts for down_revision in _DOWN_REVISION.findall(text))


def is_behind(revision: str | None, folder: Path) -> bool:
    """Tell whether a database at this revision lacks a migration of this version.

    A revision that this version does not know is a later one's: while an upgrade rolls out, or after it was rolled back, the old
    version serves on the new schema, which every migration allows for.
    """
    return revision in _older_revisions(folder)


async def revision_of(pool: Pool) -> str | None:
    """Return the revision that the database is at, or None if it was never migrated.

    Raises:
        UnavailableError: Postgres did not answer.

    """
    if (await fetch(pool, _IS_MIGRATED))[0]["there"] is None:
        return None
    rows = await fetch(pool, _REVISION)
    return rows[0]["version_num"] if rows else None
