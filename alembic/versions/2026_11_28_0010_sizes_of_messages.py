"""Note how large each message is, so that a claim takes no more than one answer may hold."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("message", sa.Column("size", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("message", "size")
