"""Recovery: what the sweeps of all replicas have done, in one row (seed 003, `RecoveryStats` and `get_statistics`)."""

import asyncio
import contextlib
import time
from collections import Counter
from dataclasses import asdict, dataclass

import orjson
import structlog

from app.store.database import Pool, Row, fetch
from app.store.faults import UnavailableError

_LAST_SAVE_S = 5.0

_SAVE = """
-- Locks: the one row. Index: recovery_pkey.
-- Of two replicas' last sweeps the newer one stays, whichever is saved first.
update recovery
set scans = scans + $1, expired = expired + $2, recovered = recovered + $3, failed = failed + $4,
    checkpoints = checkpoints + $5, errors = errors + $6, counted_at = now(),
    last_scan = case
        when (last_scan ->> 'ended_at')::timestamptz > now() - make_interval(secs => $8) then last_scan
        else ($7::jsonb || jsonb_build_object('ended_at', now() - make_interval(secs => $8)))::json
    end
where id = 1
"""

_READ = """
-- Locks: none. Index: recovery_pkey.
select scans as total_scans, expired as total_expired, recovered as total_recovered, failed as total_failed,
       checkpoints as total_checkpoints, errors as total_errors, recovered::float8 / nullif(recovered + failed, 0) as recovery_rate,
       counted_at as as_of, last_scan
from recovery
where id = 1
"""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class RecoveryStats:
    """What one sweep did."""

    expired_found: int = 0
    recovered: int = 0
    failed: int = 0
    checkpoints_created: int = 0
    errors: int = 0
    scan_duration_ms: float = 0.0


class Recovery:
    """Notes this replica's sweeps, and adds them to the totals of all."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._unsaved = Counter[str]()
        self._last = RecoveryStats()
        self._ended = 0.0
        self._saving = asyncio.Lock()
        self._found = asyncio.Event()

    def note(self, stats: RecoveryStats) -> None:
        """Count a sweep that has just ended: once, here and nowhere else (scar 33)."""
        self._unsaved.update(
            scans=1,
            expired=stats.expired_found,
            recovered=stats.recovered,
            failed=stats.failed,
            checkpoints=stats.checkpoints_created,
            errors=stats.errors,
        )
        self._last, self._ended = stats, time.monotonic()
        if stats.expired_found:
            self._found.set()

    async def found_something(self, patience: float) -> None:
        """Return when a sweep has found leases that ran out since this returned last, or after `patience` seconds."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._found.wait(), patience)
        self._found.clear()

    async def save(self) -> None:
        """Add what is noted to the totals. Whoever stops waiting for that does not interrupt it, so that it is not done twice.

        Raises:
            UnavailableError: Postgres did not answer.

        """
        await asyncio.shield(self._save())

    async def _save(self) -> None:
        async with self._saving:
            if not self._unsaved:
                return
            noted = self._unsaved.copy()
            totals = (noted[name] for name in ("scans", "expired", "recovered", "failed", "checkpoints", "errors"))
            await fetch(self._pool, _SAVE, *totals, orjson.dumps(asdict(self._last)).decode(), time.monotonic() - self._ended)
            # Only now that it is committed. If the answer was lost, this is not reached and the same is added again: rather that, once
            # in a lost connection, than to lose what was noted in every outage.
            self._unsaved -= noted

    async def save_at_the_end(self) -> None:
        """Save what is left as the replica stops, if Postgres answers soon."""
        try:
            await asyncio.wait_for(self.save(), _LAST_SAVE_S)
        except (UnavailableError, TimeoutError) as error:
            log.warning("the last sweeps are not in the totals", reason=str(error) or type(error).__name__)

    async def totals(self) -> Row:
        """Return the totals of all replicas, with everything that this one has done."""
        await self.save()
        (row,) = await fetch(self._pool, _READ)
        return row
