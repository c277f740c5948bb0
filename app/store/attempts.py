"""Attempts: what the end of a failed one means for its message (design rule 9; seeds 003 and 004).

Nack and reclaim share it: the message is counted, and goes back to its queue, at once or after a backoff; with its last attempt it is
given up: it moves to the queue's dead-letter queue, or stays as `failed`.
"""

from app.store.keys import key, shard_key
from app.store.settle import HISTORY, KEEP_REPORT

MAX_UNCONFIRMED = 20
"""Deliveries that nobody confirmed, after which a message is given up: nothing that takes it ever answers for it."""

MAX_FAILED_WORKERS = 20
"""Workers that a message remembers: the newest of those that made its failed attempts."""


def counted(counter: str, by: str = "1") -> str:
    """Set a counter of the message one higher, or by an SQL number that is 0 or 1; it saturates (design rule 10)."""
    return f"{counter} = {_counted(counter, by)}"


def _counted(counter: str, by: str) -> str:
    return f"least(message.{counter}, 2147483647 - {by}) + {by}"


def end_attempts(*, kind: str, ended_by: str, note: str, error: str, counters: str) -> str:
    """Return the CTEs `returned` and `noted`, which put the message of each lease in `ended` back or give it up, and record why.

    `ended` has the columns of the lease, and `is_attempt`, `retryable` and `delay` (seconds; null takes the queue's backoff). The
    arguments are SQL: the kind of the checkpoint, how the lease ended, the error in the checkpoint and on the message, and the counters.

    Locks: the dead-letter queues that are moved to, shared, so that none is deleted under its new messages.
    Index: message_pkey, queue_pkey, checkpoint_pkey.
    """
    return f"""
weighed as (
    select
        ended.*, {kind} as kind, queue.name as queue_name, queue.max_in_flight is not null as limited, queue.dead_letter_queue_id,
        queue.backoff_initial, queue.backoff_factor, queue.backoff_max, queue.backoff_jitter,
        {HISTORY} as history, coalesce(message.max_attempts, queue.max_attempts) as max_attempts,
        {_counted("attempt_count", "is_attempt::int")} as attempts,
        {_counted("attempt_count", "is_attempt::int")} - message.attempts_before as used,
        {_counted("unconfirmed_count", "(not is_attempt)::int")} as unconfirmed,
        {_counted("unconfirmed_count", "(not is_attempt)::int")} - message.unconfirmed_before as unconfirmed_used
    from ended
    join queue on {key("queue.id", "ended.queue_id")}
    join message on {shard_key("message.id", "ended.message_id")}
),
judged as (
    select
        *, case when is_attempt then not retryable or used >= max_attempts else unconfirmed_used >= {MAX_UNCONFIRMED} end as given_up,
        case when is_attempt and not retryable then 'not_retryable' else kind end as reason
    from weighed
),
placed as materialized (
    select
        judged.*, grave.id as grave, given_up and grave.id is null as failed,
        -- The power stays within a float: after 300 attempts a wait grows no more.
        case when given_up or not is_attempt then 0 else coalesce(
            delay,
            least(backoff_max, backoff_initial * power(backoff_factor, least(used - 1, 300)))
            * case when backoff_jitter then random() else 1 end
        ) end as wait
    from judged
    left join lateral (
        select queue.id from queue where queue.id = judged.dead_letter_queue_id and judged.given_up for key share
    ) as grave on true
),
returned as (
    update message
    set queue_id = coalesce(ended.grave, message.queue_id),
        source_queue = case when ended.grave is null then message.source_queue else coalesce(message.source_queue, ended.queue_name) end,
        status = case when ended.failed then 'failed' when ended.wait > 0 then 'scheduled' else 'pending' end,
        finished_at = case when ended.failed then now() end,
        available_at = now() + make_interval(secs => ended.wait),
        ended_by = {ended_by},
        error = {error},
        reason = case when ended.given_up then ended.reason else message.reason end,
        attempt_count = ended.attempts,
        attempts_before = case when ended.grave is null then message.attempts_before else ended.attempts end,
        unconfirmed_before = case when ended.grave is null then message.unconfirmed_before else ended.unconfirmed end,
        failed_workers = case
            when ended.is_attempt
            then (message.failed_workers || ended.worker_id)[greatest(1, cardinality(message.failed_workers) + 2 - {MAX_FAILED_WORKERS}):]
            else message.failed_workers
        end,
        {counters}, {KEEP_REPORT}
    from placed as ended
    where {shard_key("message.id", "ended.message_id")} and message.generation = ended.generation
    returning ended.*, message.ended_by, message.fairness_key, message.priority,
              case when message.status = 'pending' then message.queue_id end as ready_in,
              case when ended.limited then ended.queue_id end as freed
),
noted as (
    insert into checkpoint (shard, message_id, generation, kind, history, facts)
    select shard, message_id, generation, kind, history, json_build_object(
        'error', {note}, 'retry_count', used, 'max_retries', max_attempts, 'will_retry', not given_up,
        'worker_id', worker_id, 'acquired_at', granted_at, 'expires_at', expires_at, 'last_heartbeat', beat_at
    )
    from returned
    on conflict do nothing
    returning 1
)"""
