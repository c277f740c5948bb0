"""Add the index for claims that filter by a task and work types at once."""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_INDEX = "message_ready_by_both"


def upgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute(f"drop index concurrently if exists {_INDEX}")  # one that an earlier try left half made is of no use
        op.execute(
            f"create index concurrently if not exists {_INDEX} "
            "on message (shard, queue_id, task_id, work_type, fairness_key, priority desc, id) "
            "where status > 'in_progress' and status < 'scheduled' and task_id is not null and work_type is not null"
        )


def downgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute(f"drop index concurrently if exists {_INDEX}")
