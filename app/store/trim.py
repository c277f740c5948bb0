"""Trim: of all checkpoints that share a history, keep the newest (seed 003, `checkpoint_retention_limit`)."""

import asyncio
import time
from datetime import datetime

from app.store.chores import Chore, mine
from app.store.database import Pool, fetch
from app.store.keys import shard_key

KEPT = 100
_BATCH = 1000
_FIRST_WINDOW_S = 3600.0
_OVERLAP_S = 60.0
"""A checkpoint bears the moment at which its transaction began, and is seen when that commits: a statement's time-out later, at most."""

TRIM = f"""
-- Locks: the chore's own, so that one replica at a time does it; the surplus checkpoints, skipping those in other hands.
-- Index: checkpoint_made from where the last batch ended, checkpoint_of_history, checkpoint_pkey.
-- Only a history that has grown can be too long, so it looks at those with a new checkpoint.
with {mine(Chore.TRIM)},
recent as materialized (
    select added.history, added.created_at
    from mine
    cross join lateral (
        select history, created_at
        from checkpoint
        where checkpoint.shard = mine.shard and checkpoint.kind <> ''
          and checkpoint.created_at > coalesce($2::timestamptz, now() - make_interval(secs => $3))
        order by created_at
        fetch first ($4) rows with ties
    ) as added
),
grown as materialized (
    select distinct mine.shard, recent.history from mine cross join recent where recent.history is not null
),
surplus as materialized (
    select older.*
    from grown
    cross join lateral (
        select shard, message_id, generation, kind
        from checkpoint
        where checkpoint.shard = grown.shard and checkpoint.history = grown.history
        order by created_at desc, generation desc, message_id desc  -- as only the one index has it
        limit $4
        offset {KEPT}
    ) as older
    limit $4
),
held as materialized (
    select found.*
    from surplus
    cross join lateral (
        select shard, message_id, generation, kind
        from checkpoint
        where (shard, message_id, generation, kind) = (surplus.shard, surplus.message_id, surplus.generation, surplus.kind)
        for update skip locked
    ) as found
),
trimmed as (
    delete from checkpoint
    using held
    where {shard_key("checkpoint.message_id", "held.message_id")}
      and checkpoint.generation = held.generation and checkpoint.kind = held.kind
    returning checkpoint.kind
)
select
    exists (select from mine) as mine,
    (select count(*) from recent) as looked_at,
    (select max(created_at) from recent) as reached,
    (select count(*) from trimmed) as trimmed
"""


class Trimmer:
    """One replica's way through the new checkpoints of one shard, batch by batch: the last hour's at first, then what came since.

    Whoever asks for a batch while another is under way has the one after it.
    """

    def __init__(self, pool: Pool, shard: int) -> None:
        self._pool = pool
        self._shard = shard
        self._began = time.monotonic()
        self._covered = self._began - _FIRST_WINDOW_S
        self._reached: datetime | None = None
        self._turn = asyncio.Lock()

    async def trim(self) -> bool:
        """Do one batch. Returns whether there may be more."""
        async with self._turn:
            return await self._trim()

    async def _trim(self) -> bool:
        if self._reached is None:
            self._began = time.monotonic()
        window = self._began - self._covered + _OVERLAP_S
        (row,) = await fetch(self._pool, TRIM, self._shard, self._reached, window, _BATCH)
        if row["trimmed"] >= _BATCH:
            return True
        if row["looked_at"] >= _BATCH:
            self._reached = row["reached"]
            return True
        self._reached = None
        if row["mine"]:
            self._covered = self._began
        return False
