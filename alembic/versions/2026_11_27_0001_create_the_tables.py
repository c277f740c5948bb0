"""Create the tables, the queue `default`, and the key that receipts are signed with."""

import secrets

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(sa.schema.CreateSequence(sa.Sequence("message_id_seq", data_type=sa.BigInteger())))
    op.create_table(
        "checkpoint",
        sa.Column("shard", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("message_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("generation", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.CheckConstraint("kind in ('nacked', 'lease_expired', 'unconfirmed', 'late_report')", name=op.f("checkpoint_kind_is_known")),
        sa.PrimaryKeyConstraint("shard", "message_id", "generation", "kind"),
    )
    op.create_table(
        "lease",
        sa.Column("shard", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("message_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("queue_id", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("granted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("check_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deadline", sa.DateTime(timezone=True), nullable=False),
        sa.Column("extended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("beat_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("progress", sa.BigInteger(), nullable=True),
        sa.Column("extended_progress", sa.BigInteger(), nullable=True),
        sa.Column("confirm_timeout", sa.Double(), nullable=True),
        sa.Column("claim_slot", sa.Integer(), nullable=True),
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("claim_id", sa.Text(), nullable=True),
        sa.Column("detail", sa.JSON(none_as_null=True), nullable=True),
        sa.PrimaryKeyConstraint("shard", "message_id"),
    )
    op.create_index("lease_check", "lease", ["shard", "check_at"], unique=False)
    op.create_index(
        "lease_claim",
        "lease",
        ["shard", "queue_id", "worker_id", "claim_id", "claim_slot"],
        unique=True,
        postgresql_where=sa.text("claim_id is not null"),
    )
    op.create_table(
        "message",
        sa.Column("shard", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("id", sa.BigInteger(), server_default=sa.text("nextval('message_id_seq')"), nullable=False),
        sa.Column("queue_id", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("available_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("progress", sa.BigInteger(), nullable=True),
        sa.Column("attempt_count", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("nacked_count", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("expired_count", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("released_count", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("unconfirmed_count", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=True),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("ended_by", sa.Text(), nullable=True),
        sa.Column("fairness_key", sa.Text(collation="C"), nullable=False),
        sa.Column("work_type", sa.Text(), nullable=True),
        sa.Column("task_id", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("headers", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("detail", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("output", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.CheckConstraint(
            "(ended_by is null) = (generation = 0 or status = 'in_progress')", name=op.f("message_ended_by_names_newest_lease")
        ),
        sa.CheckConstraint(
            "(finished_at is not null) = (status in ('completed', 'failed', 'cancelled'))", name=op.f("message_finished_when_final")
        ),
        sa.CheckConstraint(
            "ended_by in ('acked', 'acked_late', 'nacked', 'released', 'expired', 'unconfirmed', 'cancelled')",
            name=op.f("message_ended_by_is_known"),
        ),
        sa.CheckConstraint(
            "status in ('scheduled', 'pending', 'in_progress', 'completed', 'failed', 'cancelled')", name=op.f("message_status_is_known")
        ),
        sa.PrimaryKeyConstraint("shard", "id"),
    )
    op.create_index(
        "message_by_status", "message", ["shard", "queue_id", "status", "id"], unique=False, postgresql_where=sa.text("status <> ''")
    )
    op.create_index("message_due", "message", ["shard", "available_at"], unique=False, postgresql_where=sa.text("status = 'scheduled'"))
    op.create_index(
        "message_ready",
        "message",
        ["shard", "queue_id", "fairness_key", sa.literal_column("priority desc"), "id"],
        unique=False,
        postgresql_where=sa.text("status = 'pending'"),
    )
    op.create_table(
        "queue",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("shard", sa.SmallInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("visibility_timeout", sa.Double(), nullable=False),
        sa.Column("extension", sa.Double(), nullable=False),
        sa.Column("beat_interval", sa.Double(), nullable=False),
        sa.Column("extension_enabled", sa.Boolean(), nullable=False),
        sa.Column("max_lease", sa.Double(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("progress_required", sa.Boolean(), nullable=False),
        sa.Column("weights", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "deleted_queue",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("shard", sa.SmallInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "secret",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    _tune()
    _fill()


def _tune() -> None:
    # A page's free space takes the next version of each of its leases, larger by the first beat's report: a beat is a heap-only update.
    op.execute("alter table lease set (fillfactor = 30, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0)")
    op.execute("alter table message set (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0)")


def _fill() -> None:
    op.execute(
        """
        insert into queue (shard, name, visibility_timeout, extension, beat_interval, extension_enabled, max_lease, max_attempts,
                           progress_required, weights)
        values (0, 'default', 300, 300, 60, true, 43200, 3, false, '{}')
        """
    )
    secret = sa.table("secret", sa.column("name", sa.Text()), sa.column("value", sa.LargeBinary()))
    op.bulk_insert(secret, [{"name": "receipt", "value": secrets.token_bytes(32)}])


def downgrade() -> None:
    for table in ("secret", "deleted_queue", "queue", "message", "lease", "checkpoint"):
        op.drop_table(table)
    op.execute("drop sequence message_id_seq")
