"""Add what retries, dead letters and deduplication need of a message."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

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
    for name, kind in _MESSAGE.items():
        op.execute(f"alter table message add column {name} {kind}")
    op.execute("alter table message drop constraint message_ended_by_is_known")
    op.execute(
        f"alter table message add constraint message_ended_by_is_known check ({_ENDED_BY.format(repr('dead_lettered') + ', ')}) not valid"
    )
    op.execute(
        "alter table message add constraint message_reason_is_known "
        "check (reason in ('nacked', 'not_retryable', 'lease_expired', 'unconfirmed')) not valid"
    )


def downgrade() -> None:
    # Dead letters go on as what they are by then: messages of the queue that they are in.
    op.execute("update message set ended_by = 'nacked' where ended_by = 'dead_lettered'")
    op.execute("alter table message drop constraint message_reason_is_known, drop constraint message_ended_by_is_known")
    op.execute(f"alter table message add constraint message_ended_by_is_known check ({_ENDED_BY.format('')})")
    for name in _MESSAGE:
        op.execute(f"alter table message drop column {name}")
