"""Add the settings of a queue. Each of these migrations holds one table at a time: traffic locks them in other orders."""

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


def upgrade() -> None:
    for name, kind in _QUEUE.items():
        op.execute(f"alter table queue add column {name} {kind}")
    op.execute(
        "alter table queue add constraint queue_dead_letter_queue_id_fkey "
        "foreign key (dead_letter_queue_id) references queue (id) on delete set null not valid"
    )


def downgrade() -> None:
    for name in _QUEUE:
        op.execute(f"alter table queue drop column {name}")
