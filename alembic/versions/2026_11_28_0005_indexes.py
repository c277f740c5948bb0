"""Make the indexes that the new columns are for, and validate the new constraints, while the service goes on."""

from alembic import op

from app.store.indexes import exchange

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_CREATED = {
    "message_status": "index {} on message (shard, queue_id, status, id) include (attempt_count) where status <> ''",
    "message_ready_by_type": "index {} on message (shard, queue_id, work_type, fairness_key, priority desc, id) "
    "where status between 'pending' and 'pending' and work_type is not null",
    "message_ready_by_task": "index {} on message (shard, queue_id, task_id, fairness_key, priority desc, id) "
    "where status between 'pending' and 'pending' and task_id is not null",
    "message_finished": "index {} on message (shard, queue_id, finished_at) where finished_at is not null",
    "message_dedup": "unique index {} on message (shard, dedup_queue_id, dedup_key) where dedup_key is not null",
    "lease_holder": "unique index {} on lease (shard, queue_id, worker_id, claim_id, claim_slot)",
    "checkpoint_history": "index {} on checkpoint (shard, history, created_at)",
    "checkpoint_recent": "index {} on checkpoint (shard, created_at)",
    "send_request_age": "index {} on send_request (shard, created_at)",
    "worker_draining": "index {} on worker (worker_id) where draining",
}
_REPLACED = {
    "message_by_status": "index {} on message (shard, queue_id, status, id) where status <> ''",
    "lease_claim": "unique index {} on lease (shard, queue_id, worker_id, claim_id, claim_slot) where claim_id is not null",
}
_CHECKED = {"queue": ["queue_dead_letter_queue_id_fkey"], "message": ["message_ended_by_is_known", "message_reason_is_known"]}


def upgrade() -> None:
    for table, names in _CHECKED.items():
        for name in names:
            op.execute(f"alter table {table} validate constraint {name}")
    exchange(_CREATED, _REPLACED)


def downgrade() -> None:
    exchange(_REPLACED, _CREATED)
