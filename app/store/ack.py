"""Ack: the work is done, for good (design rule 6)."""

from dataclasses import dataclass, field

from app.store.coalescer import OrFault
from app.store.columns import sparse
from app.store.database import Pool
from app.store.fate import LeaseKey
from app.store.keys import WITH_A_QUEUE, key, shard_key
from app.store.settle import KEEP_REPORT, OnSettled, Settled, Verdicts, apart, ended_by, keep_reports, settle

ACK = f"""
-- Locks: the leases named, in id order; then the messages, of which only the late ones can be awaited, in id order.
-- Index: lease_pkey, message_pkey, queue_pkey.
with asked as materialized (
    select *
    from unnest($2::bigint[], $3::bigint[], $4::json[]) as asked(message_id, generation, output)
    order by message_id
),
held as materialized (
    select asked.*, lease.shard
    from asked
    left join lateral (
        select shard from lease
        where lease.shard = $1 and lease.message_id = asked.message_id and lease.generation = asked.generation
        for update
    ) as lease on true
),
ended as (
    delete from lease
    using held
    where {shard_key("lease.message_id", "held.message_id")}
    returning lease.shard, held.message_id, held.generation, held.output, lease.progress, lease.detail, lease.expires_at <= now() as late,
              lease.queue_id as freed
),
late as materialized (
    select message.shard, held.message_id, held.generation, held.output
    from held
    cross join lateral (
        select message.shard
        from message
        {WITH_A_QUEUE}
        where held.shard is null and message.shard = $1 and message.id = held.message_id and message.generation = held.generation
          and message.ended_by in ('expired', 'unconfirmed')
        for no key update of message
    ) as message
),
done as (
    select shard, message_id, generation, output, progress, detail, late, freed from ended
    union all
    select shard, message_id, generation, output, null, null, true, null from late
)
update message
set status = 'completed', ended_by = case when ended.late then 'acked_late' else 'acked' end, finished_at = now(),
    output = ended.output, error = null, reason = null, {KEEP_REPORT}
from done as ended, queue
where {shard_key("message.id", "ended.message_id")} and message.generation = ended.generation
  and {key("queue.id", "message.queue_id")}
returning message.id as message_id, message.generation, message.ended_by as fate,
          case when queue.max_in_flight is not null then ended.freed end as freed, 0::float8 as wait
"""


@dataclass(slots=True)  # not frozen, as `Beat` is not
class Ack:
    """One lease to ack, with its result as JSON text."""

    message_id: int
    generation: int
    output: str | None = field(repr=False)


async def ack(pool: Pool, shard: int, acks: list[Ack], on_settled: OnSettled) -> list[OrFault[Settled]]:
    """Complete every message whose lease lives, or ran out with nobody having leased it since."""
    first = {(each.message_id, each.generation): each for each in reversed(acks)}

    async def complete(leases: list[LeaseKey]) -> Verdicts:
        return await settle(pool, shard, leases, on_settled, ACK, sparse([first[lease].output for lease in leases]))

    verdicts = await complete(list(first))
    # A lease that was reclaimed under the statement is found expired by now, and its ack is a late one.
    verdicts |= await apart("ack", ended_by({"expired", "unconfirmed"}, verdicts), complete)
    verdicts = await keep_reports(pool, shard, verdicts, first, _report)
    return [verdicts[each.message_id, each.generation] for each in acks]


def _report(ack: Ack) -> str:
    return f'{{"verb": "ack", "output": {ack.output or "null"}}}'
