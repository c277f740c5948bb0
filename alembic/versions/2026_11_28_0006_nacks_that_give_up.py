"""Let a message tell that its last nack gave it up, also after a redrive."""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_ENDED_BY = "ended_by in ('acked', 'acked_late', 'nacked', {}'dead_lettered', 'released', 'expired', 'unconfirmed', 'cancelled')"


def upgrade() -> None:
    op.execute("alter table message drop constraint message_ended_by_is_known")
    op.execute(
        f"alter table message add constraint message_ended_by_is_known check ({_ENDED_BY.format(repr('given_up') + ', ')}) not valid"
    )
    with op.get_context().autocommit_block():
        op.execute("alter table message validate constraint message_ended_by_is_known")


def downgrade() -> None:
    op.execute("update message set ended_by = 'nacked' where ended_by = 'given_up'")
    op.execute("alter table message drop constraint message_ended_by_is_known")
    op.execute(f"alter table message add constraint message_ended_by_is_known check ({_ENDED_BY.format('')}) not valid")
