"""Give the indexes of ready messages one direction, so that a claim can begin at a place within them."""

from alembic import op

from app.store.indexes import create

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_INDEXES = {
    "message_ready": "(shard, queue_id, fairness_key, {}, id) where status = 'pending'",
    "message_ready_by_type": (
        "(shard, queue_id, work_type, fairness_key, {}, id) where status between 'pending' and 'pending' and work_type is not null"
    ),
    "message_ready_by_task": (
        "(shard, queue_id, task_id, fairness_key, {}, id) where status between 'pending' and 'pending' and task_id is not null"
    ),
    "message_ready_by_both": (
        "(shard, queue_id, task_id, work_type, fairness_key, {}, id) "
        "where status > 'in_progress' and status < 'scheduled' and task_id is not null and work_type is not null"
    ),
}


def upgrade() -> None:
    _make_anew("(-priority::int)")


def downgrade() -> None:
    _make_anew("priority desc")


def _make_anew(rank: str) -> None:
    """Put indexes in place of those of the same names, which serve until then. What an earlier try has left half made is made again."""
    with op.get_context().autocommit_block():
        for name, definition in _INDEXES.items():
            successor = f"{name}_{revision}"
            create(successor, f"index {{}} on message {definition.format(rank)}")
            op.execute(f"drop index concurrently if exists {name}")
            op.execute(f"-- squawk-ignore renaming-object\nalter index {successor} rename to {name}")  # no statement names an index
