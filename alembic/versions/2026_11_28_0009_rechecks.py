"""Keep the later looks at leases that live on in a narrow table of their own, one row per block of neighbours."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "recheck",
        sa.Column("shard", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("block", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("check_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("shard", "block", name=op.f("recheck_pkey")),
    )
    op.create_index("recheck_due", "recheck", ["shard", "check_at"], postgresql_where=sa.text("block >= 0"))
    op.execute("alter table recheck set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0)")


def downgrade() -> None:
    op.execute("update lease set check_at = expires_at where check_at = 'infinity'")
    op.drop_table("recheck")
