"""The tables. Migrations are made from them, and `make check` proves that the two agree.

`shard` comes first in every key of a hot table, and every hot statement names exactly one (design section 4).
Partial indexes hold only the rows that their readers want, so that no claim and no timer walks past others.
"""

from datetime import datetime
from typing import get_args

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    Index,
    Integer,
    LargeBinary,
    Sequence,
    SmallInteger,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.sql.elements import conv
from sqlmodel import Field, SQLModel

from app.leases.outcomes import End
from app.leases.states import CheckpointKind, Status

STATUSES: tuple[str, ...] = get_args(Status)

message_ids = Sequence("message_id_seq", metadata=SQLModel.metadata, data_type=BigInteger)


def _one_of(column: str, values: tuple[str, ...], name: str) -> CheckConstraint:
    return CheckConstraint(f"{column} in ({', '.join(repr(value) for value in values)})", name=conv(name))


def _moment(*, default: bool = False, nullable: bool = False) -> Column[datetime]:
    return Column(DateTime(timezone=True), nullable=nullable, server_default=text("now()") if default else None)


class Queue(SQLModel, table=True):
    """A queue and its configuration. `id` changes when a queue is deleted and made again under its old name."""

    id: int | None = Field(default=None, sa_column=Column(BigInteger, primary_key=True, autoincrement=True))
    shard: int = Field(sa_column=Column(SmallInteger, nullable=False))
    name: str = Field(sa_column=Column(Text, nullable=False, unique=True))
    visibility_timeout: float = Field(sa_column=Column(Double, nullable=False))
    extension: float = Field(sa_column=Column(Double, nullable=False))
    beat_interval: float = Field(sa_column=Column(Double, nullable=False))
    extension_enabled: bool
    max_lease: float = Field(sa_column=Column(Double, nullable=False))
    max_attempts: int
    progress_required: bool
    weights: dict[str, int] = Field(sa_column=Column(JSONB, nullable=False))
    created_at: datetime = Field(sa_column=_moment(default=True))
    updated_at: datetime = Field(sa_column=_moment(default=True))


class DeletedQueue(SQLModel, table=True):
    """A queue that is gone, and whose messages are still to be removed, in small batches."""

    __tablename__ = "deleted_queue"

    id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    shard: int = Field(sa_column=Column(SmallInteger, nullable=False))


class Message(SQLModel, table=True):
    """One unit of work: an immutable body, and a state."""

    __table_args__ = (
        _one_of("status", STATUSES, "message_status_is_known"),
        _one_of("ended_by", get_args(End), "message_ended_by_is_known"),
        CheckConstraint(
            "(finished_at is not null) = (status in ('completed', 'failed', 'cancelled'))", name=conv("message_finished_when_final")
        ),
        CheckConstraint(
            "(ended_by is null) = (generation = 0 or status = 'in_progress')", name=conv("message_ended_by_names_newest_lease")
        ),
        Index(
            "message_ready", "shard", "queue_id", "fairness_key", text("priority desc"), "id", postgresql_where=text("status = 'pending'")
        ),
        Index("message_due", "shard", "available_at", postgresql_where=text("status = 'scheduled'")),
        # The condition holds for every row. It keeps this index from statements that look messages up by id: while the table is small,
        # Postgres would take it for as good as the primary key, and keep that plan.
        Index("message_by_status", "shard", "queue_id", "status", "id", postgresql_where=text("status <> ''")),
    )

    shard: int = Field(sa_column=Column(SmallInteger, primary_key=True, autoincrement=False))
    id: int = Field(sa_column=Column(BigInteger, message_ids, primary_key=True, server_default=message_ids.next_value()))
    queue_id: int = Field(sa_column=Column(BigInteger, nullable=False))
    generation: int = Field(sa_column=Column(BigInteger, nullable=False, server_default=text("0")))
    created_at: datetime = Field(sa_column=_moment(default=True))
    available_at: datetime = Field(sa_column=_moment(default=True))
    finished_at: datetime | None = Field(sa_column=_moment(nullable=True))
    progress: int | None = Field(sa_column=Column(BigInteger))
    attempt_count: int = Field(sa_column=Column(Integer, nullable=False, server_default=text("0")))
    nacked_count: int = Field(sa_column=Column(Integer, nullable=False, server_default=text("0")))
    expired_count: int = Field(sa_column=Column(Integer, nullable=False, server_default=text("0")))
    released_count: int = Field(sa_column=Column(Integer, nullable=False, server_default=text("0")))
    unconfirmed_count: int = Field(sa_column=Column(Integer, nullable=False, server_default=text("0")))
    max_attempts: int | None = Field(sa_column=Column(Integer))
    priority: int = Field(sa_column=Column(SmallInteger, nullable=False))
    status: str = Field(sa_column=Column(Text, nullable=False))
    ended_by: str | None = Field(sa_column=Column(Text))
    fairness_key: str = Field(sa_column=Column(Text(collation="C"), nullable=False))
    work_type: str | None = Field(sa_column=Column(Text))
    task_id: str | None = Field(sa_column=Column(Text))
    error: str | None = Field(sa_column=Column(Text))
    headers: dict[str, str] | None = Field(sa_column=Column(JSON(none_as_null=True)))
    detail: object = Field(sa_column=Column(JSON(none_as_null=True)))
    output: object = Field(sa_column=Column(JSON(none_as_null=True)))
    body: object = Field(sa_column=Column(JSON, nullable=False))


class Lease(SQLModel, table=True):
    """One row per active lease. No index has `expires_at`, so a beat is a heap-only update; the timer's index has `check_at`."""

    __table_args__ = (
        Index("lease_check", "shard", "check_at"),
        Index(
            "lease_claim",
            "shard",
            "queue_id",
            "worker_id",
            "claim_id",
            "claim_slot",
            unique=True,
            postgresql_where=text("claim_id is not null"),
        ),
    )

    shard: int = Field(sa_column=Column(SmallInteger, primary_key=True, autoincrement=False))
    message_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    queue_id: int = Field(sa_column=Column(BigInteger, nullable=False))
    generation: int = Field(sa_column=Column(BigInteger, nullable=False))
    granted_at: datetime = Field(sa_column=_moment())
    expires_at: datetime = Field(sa_column=_moment())
    check_at: datetime = Field(sa_column=_moment())
    deadline: datetime = Field(sa_column=_moment())
    extended_at: datetime | None = Field(sa_column=_moment(nullable=True))
    beat_at: datetime | None = Field(sa_column=_moment(nullable=True))
    progress: int | None = Field(sa_column=Column(BigInteger))
    extended_progress: int | None = Field(sa_column=Column(BigInteger))
    confirm_timeout: float | None = Field(sa_column=Column(Double))
    claim_slot: int | None = Field(sa_column=Column(Integer))
    worker_id: str = Field(sa_column=Column(Text, nullable=False))
    claim_id: str | None = Field(sa_column=Column(Text))
    detail: object = Field(sa_column=Column(JSON(none_as_null=True)))


class Checkpoint(SQLModel, table=True):
    """One entry of a message's history. Its key bounds it: one of each kind per lease."""

    __table_args__ = (_one_of("kind", get_args(CheckpointKind), "checkpoint_kind_is_known"),)

    shard: int = Field(sa_column=Column(SmallInteger, primary_key=True, autoincrement=False))
    message_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    generation: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    kind: str = Field(sa_column=Column(Text, primary_key=True))
    created_at: datetime = Field(sa_column=_moment(default=True))
    facts: dict[str, object] = Field(sa_column=Column(JSON, nullable=False))


class Secret(SQLModel, table=True):
    """What all replicas on one database share and nobody else may know: the key that receipts are signed with."""

    name: str = Field(sa_column=Column(Text, primary_key=True))
    value: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
