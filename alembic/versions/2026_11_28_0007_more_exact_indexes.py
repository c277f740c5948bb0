"""Serve claims that filter twice, and keep indexes that go by time from statements that look rows up by their keys."""

from app.store.indexes import exchange

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_CREATED = {
    "message_ready_by_both": (
        "index {} on message (shard, queue_id, task_id, work_type, fairness_key, priority desc, id) "
        "where status > 'in_progress' and status < 'scheduled' and task_id is not null and work_type is not null"
    ),
    "lease_due": "index {} on lease (shard, check_at) where generation > 0",
    "checkpoint_made": "index {} on checkpoint (shard, created_at) where kind <> ''",
    "send_request_made": "index {} on send_request (shard, created_at) where key <> ''",
    "lease_of_worker": "unique index {} on lease (shard, queue_id, worker_id, claim_id, claim_slot) where generation > 0",
}
_REPLACED = {
    "lease_check": "index {} on lease (shard, check_at)",
    "checkpoint_recent": "index {} on checkpoint (shard, created_at)",
    "send_request_age": "index {} on send_request (shard, created_at)",
    "lease_holder": "unique index {} on lease (shard, queue_id, worker_id, claim_id, claim_slot)",
}


def upgrade() -> None:
    exchange(_CREATED, _REPLACED)


def downgrade() -> None:
    exchange(_REPLACED, _CREATED)
