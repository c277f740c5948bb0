"""Add what retries, dead letters, limits, deduplication, the registry and the figures need. What needs an index is in 0003."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_QUEUE = {
    "backoff_initial": "double precision not null default 0",
    "backoff_factor": "double precision not null default 2",
    "backoff_max": "double precision not null default 900",
    "backoff_jitter": "boolean not null default true",
    "dead_letter_queue_id": "bigint",
    "max_in_flight": "bigint",
    "retention": "double precision not null default 604800",
    "paused": "boolean not null default false",
    "adaptive": "boolean not null default false",
    "adaptive_min": "double precision not null default 10",
    "adaptive_max": "double precision not null default 3600",
    "derived_lease": "double precision",
    "derived_samples": "bigint",
}
_MESSAGE = {
    "attempts_before": "bigint not null default 0",
    "unconfirmed_before": "bigint not null default 0",
    "started_at": "timestamptz",
    "dedup_queue_id": "bigint",
    "dedup_key": "text",
    "reason": "text",
    "failed_workers": "text[] not null default '{}'",
    "source_queue": "text",
}
_ENDED_BY = "ended_by in ('acked', 'acked_late', 'nacked', {}'released', 'expired', 'unconfirmed', 'cancelled')"


def upgrade() -> None:
    for name, kind in _QUEUE.items():
        op.execute(f"alter table queue add column {name} {kind}")
    for name, kind in _MESSAGE.items():
        op.execute(f"alter table message add column {name} {kind}")
    op.execute("alter table checkpoint add column history text")
    op.execute(
        "alter table queue add constraint queue_dead_letter_queue_id_fkey "
        "foreign key (dead_letter_queue_id) references queue (id) on delete set null not valid"
    )
    op.execute("alter table message drop constraint message_ended_by_is_known")
    op.execute(
        f"alter table message add constraint message_ended_by_is_known check ({_ENDED_BY.format(repr('dead_lettered') + ', ')}) not valid"
    )
    op.execute(
        "alter table message add constraint message_reason_is_known "
        "check (reason in ('nacked', 'not_retryable', 'lease_expired', 'unconfirmed')) not valid"
    )
    _create_tables()
    op.execute("insert into recovery (id) values (1)")


def _create_tables() -> None:
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


def downgrade() -> None:
    for table in ("figure", "recovery", "worker", "send_request"):
        op.drop_table(table)
    # Dead letters go on as what they are by then: messages of the queue that they are in.
    op.execute("update message set ended_by = 'nacked' where ended_by = 'dead_lettered'")
    op.execute("alter table message drop constraint message_reason_is_known, drop constraint message_ended_by_is_known")
    op.execute(f"alter table message add constraint message_ended_by_is_known check ({_ENDED_BY.format('')})")
    op.execute("alter table checkpoint drop column history")
    for table, columns in (("message", _MESSAGE), ("queue", _QUEUE)):
        for name in columns:
            op.execute(f"alter table {table} drop column {name}")
