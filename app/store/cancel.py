"""Cancel: end a message whatever it waits for. If it is leased, its holder hears of it in the answer to its next call."""

from collections.abc import Sequence

from app.store.database import Pool, fetch
from app.store.keys import key, shard_key
from app.store.settle import KEEP_REPORT

CANCEL = f"""
-- Locks: the message's lease, if it has one; then the message.
-- Index: lease_pkey, message_pkey, queue_pkey. A message that changes hands under the statement is left alone: try again.
with held as materialized (
    select shard, message_id from lease where shard = $1 and message_id = $2 for update
),
ended as (
    delete from lease
    using held
    where {shard_key("lease.message_id", "held.message_id")}
    returning lease.generation, lease.progress, lease.detail
)
update message
set status = 'cancelled', ended_by = case when message.generation > 0 then 'cancelled' end, finished_at = now(), {KEEP_REPORT}
from (values ($1::smallint, $2::bigint)) as asked(shard, id)
left join ended on true
cross join queue
where {shard_key("message.id", "asked.id")} and {key("queue.id", "message.queue_id")}
  and case message.status
      when 'in_progress' then message.generation = ended.generation
      when 'pending' then ended.generation is null
      when 'scheduled' then ended.generation is null
  end
returning case when ended.generation is not null and queue.max_in_flight is not null then queue.id end as freed
"""


async def cancel(pool: Pool, shard: int, message_id: int) -> Sequence[int] | None:
    """End a message that is not final. Returns the queues whose parked claims may get something by it, as one has a place free now.

    Returns None if there is no such message, or it is final, or it changed hands just now.
    """
    rows = await fetch(pool, CANCEL, shard, message_id)
    return [row["freed"] for row in rows if row["freed"] is not None] if rows else None
