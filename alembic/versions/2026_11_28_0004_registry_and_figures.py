"""Add the tables of send requests, workers, recoveries and figures, and the history that a checkpoint belongs to."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("alter table checkpoint add column history text")
    op.create_table(
        "send_request",
        sa.Column("shard", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("queue_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("message_ids", sa.ARRAY(sa.BigInteger()), nullable=False),
        sa.PrimaryKeyConstraint("shard", "queue_id", "key"),
    )
    op.create_table(
        "worker",
        sa.Column("worker_id", sa.Text(collation="C"), nullable=False),
        sa.Column("first_seen_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("last_seen_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("draining", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("host", sa.Text(), nullable=True),
        sa.Column("version", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("worker_id"),
    )
    op.create_table(
        "recovery",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        *(
            sa.Column(name, sa.BigInteger(), server_default=sa.text("0"), nullable=False)
            for name in ("scans", "expired", "recovered", "failed", "checkpoints", "errors")
        ),
        sa.Column("counted_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("last_scan", sa.JSON(none_as_null=True), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "figure",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("as_of", sa.DateTime(timezone=True), nullable=False),
        sa.Column("took", sa.Double(), nullable=False),
        sa.Column("value", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.execute("insert into recovery (id) values (1)")


def downgrade() -> None:
    for table in ("figure", "recovery", "worker", "send_request"):
        op.drop_table(table)
    op.execute("alter table checkpoint drop column history")
