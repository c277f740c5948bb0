"""The tables. Migrations are made from them, and `make check` proves that the two agree.

`shard` comes first in every key of a hot table, and every hot statement names exactly one (design section 4).
Partial indexes hold only the rows that their readers want, so that no claim and no timer walks past others.
"""

from datetime import datetime
from typing import get_args

from sqlalchemy import (
    ARRAY,
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
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
from app.leases.states import CheckpointKind, Reason, Status

STATUSES: tuple[str, ...] = get_args(Status)

_RANK = text("(-priority::int)")
"""What ready messages of one fairness key are ordered by. All in their indexes goes up, so that a claim can begin within one."""

message_ids = Sequence("message_id_seq", metadata=SQLModel.metadata, data_type=BigInteger)


def _one_of(column: str, values: tuple[str, ...], name: str) -> CheckConstraint:
    return CheckConstraint(f"{column} in ({', '.join(repr(value) for value in values)})", name=conv(name))


def _total() -> Column[int]:
    return Column(BigInteger, nullable=False, server_default=text("0"))


def _moment(*, default: bool = False, nullable: bool = False) -> Column[datetime]:
    return Column(DateTime(timezone=True), nullable=nullable, server_default=text("now()") if default else None)


class Queue(SQLModel, table=True):
    """A queue and its configuration. `id` changes when a queue is deleted and made again under its old name.

    An adaptive queue's times are derived: `derived_lease` seconds, from `derived_samples` durations.
    """

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
    backoff_initial: float = Field(sa_column=Column(Double, nullable=False, server_default=text("0")))
    backoff_factor: float = Field(sa_column=Column(Double, nullable=False, server_default=text("2")))
    backoff_max: float = Field(sa_column=Column(Double, nullable=False, server_default=text("900")))
    backoff_jitter: bool = Field(sa_column=Column(Boolean, nullable=False, server_default=text("true")))
    dead_letter_queue_id: int | None = Field(sa_column=Column(BigInteger, ForeignKey("queue.id", ondelete="SET NULL")))
    max_in_flight: int | None = Field(sa_column=Column(BigInteger))
    retention: float = Field(sa_column=Column(Double, nullable=False, server_default=text("604800")))
    paused: bool = Field(sa_column=Column(Boolean, nullable=False, server_default=text("false")))
    adaptive: bool = Field(sa_column=Column(Boolean, nullable=False, server_default=text("false")))
    adaptive_min: float = Field(sa_column=Column(Double, nullable=False, server_default=text("10")))
    adaptive_max: float = Field(sa_column=Column(Double, nullable=False, server_default=text("3600")))
    derived_lease: float | None = Field(sa_column=Column(Double))
    derived_samples: int | None = Field(sa_column=Column(BigInteger))
    created_at: datetime = Field(sa_column=_moment(default=True))
    updated_at: datetime = Field(sa_column=_moment(default=True))


class DeletedQueue(SQLModel, table=True):
    """A queue that is gone, and whose messages are still to be removed, in small batches."""

    __tablename__ = "deleted_queue"

    id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    shard: int = Field(sa_column=Column(SmallInteger, nullable=False))


class Message(SQLModel, table=True):
    """One unit of work: an immutable body, and a state.

    `attempts_before` and `unconfirmed_before` are how much of the two counts no longer counts towards their limits: what was used up
    before it became a dead letter. `started_at` is when its newest lease was granted. `source_queue` names the queue that a dead letter
    came from. A `dedup_key` is known in the queue that it was sent to, wherever its message is by now. `size` is how many bytes its body
    and headers take as text; null if an older version has stored it.
    """

    __table_args__ = (
        _one_of("status", STATUSES, "message_status_is_known"),
        _one_of("ended_by", get_args(End), "message_ended_by_is_known"),
        _one_of("reason", get_args(Reason), "message_reason_is_known"),
        CheckConstraint(
            "(finished_at is not null) = (status in ('completed', 'failed', 'cancelled'))", name=conv("message_finished_when_final")
        ),
        CheckConstraint(
            "(ended_by is null) = (generation = 0 or status = 'in_progress')", name=conv("message_ended_by_names_newest_lease")
        ),
        Index("message_ready", "shard", "queue_id", "fairness_key", _RANK, "id", postgresql_where=text("status = 'pending'")),
        Index("message_due", "shard", "available_at", postgresql_where=text("status = 'scheduled'")),
        # The condition holds for every row. It keeps this index from statements that look messages up by id: while the table is small,
        # Postgres would take it for as good as the primary key, and keep that plan.
        Index(
            "message_status",
            "shard",
            "queue_id",
            "status",
            "id",
            postgresql_where=text("status <> ''"),
            postgresql_include=["attempt_count"],
        ),
        Index(
            "message_ready_by_type",
            "shard",
            "queue_id",
            "work_type",
            "fairness_key",
            _RANK,
            "id",
            postgresql_where=text("status between 'pending' and 'pending' and work_type is not null"),
        ),
        Index(
            "message_ready_by_task",
            "shard",
            "queue_id",
            "task_id",
            "fairness_key",
            _RANK,
            "id",
            postgresql_where=text("status between 'pending' and 'pending' and task_id is not null"),
        ),
        Index(
            "message_ready_by_both",
            "shard",
            "queue_id",
            "task_id",
            "work_type",
            "fairness_key",
            _RANK,
            "id",
            postgresql_where=text("status > 'in_progress' and status < 'scheduled' and task_id is not null and work_type is not null"),
        ),
        Index("message_finished", "shard", "queue_id", "finished_at", postgresql_where=text("finished_at is not null")),
        Index("message_dedup", "shard", "dedup_queue_id", "dedup_key", unique=True, postgresql_where=text("dedup_key is not null")),
    )

    shard: int = Field(sa_column=Column(SmallInteger, primary_key=True, autoincrement=False))
    id: int = Field(sa_column=Column(BigInteger, message_ids, primary_key=True, server_default=message_ids.next_value()))
    queue_id: int = Field(sa_column=Column(BigInteger, nullable=False))
    generation: int = Field(sa_column=Column(BigInteger, nullable=False, server_default=text("0")))
    created_at: datetime = Field(sa_column=_moment(default=True))
    available_at: datetime = Field(sa_column=_moment(default=True))
    started_at: datetime | None = Field(sa_column=_moment(nullable=True))
    finished_at: datetime | None = Field(sa_column=_moment(nullable=True))
    dedup_queue_id: int | None = Field(sa_column=Column(BigInteger))
    progress: int | None = Field(sa_column=Column(BigInteger))
    attempt_count: int = Field(sa_column=Column(Integer, nullable=False, server_default=text("0")))
    nacked_count: int = Field(sa_column=Column(Integer, nullable=False, server_default=text("0")))
    expired_count: int = Field(sa_column=Column(Integer, nullable=False, server_default=text("0")))
    released_count: int = Field(sa_column=Column(Integer, nullable=False, server_default=text("0")))
    unconfirmed_count: int = Field(sa_column=Column(Integer, nullable=False, server_default=text("0")))
    attempts_before: int = Field(sa_column=_total())
    unconfirmed_before: int = Field(sa_column=_total())
    max_attempts: int | None = Field(sa_column=Column(Integer))
    size: int | None = Field(sa_column=Column(BigInteger))
    priority: int = Field(sa_column=Column(SmallInteger, nullable=False))
    status: str = Field(sa_column=Column(Text, nullable=False))
    ended_by: str | None = Field(sa_column=Column(Text))
    fairness_key: str = Field(sa_column=Column(Text(collation="C"), nullable=False))
    work_type: str | None = Field(sa_column=Column(Text))
    task_id: str | None = Field(sa_column=Column(Text))
    error: str | None = Field(sa_column=Column(Text))
    reason: str | None = Field(sa_column=Column(Text))
    failed_workers: list[str] = Field(sa_column=Column(ARRAY(Text), nullable=False, server_default=text("'{}'")))
    source_queue: str | None = Field(sa_column=Column(Text))
    dedup_key: str | None = Field(sa_column=Column(Text))
    headers: dict[str, str] | None = Field(sa_column=Column(JSON(none_as_null=True)))
    detail: object = Field(sa_column=Column(JSON(none_as_null=True)))
    output: object = Field(sa_column=Column(JSON(none_as_null=True)))
    body: object = Field(sa_column=Column(JSON, nullable=False))


class Lease(SQLModel, table=True):
    """One row per active lease. No index has `expires_at`, so a beat is a heap-only update; the timer's index has `check_at`.

    `check_at` is when the timer looks at the lease. After the first look it is infinite as a rule, and the later looks are in `recheck`.
    """

    __table_args__ = (
        # The condition holds for every row; see `message_status`.
        Index("lease_due", "shard", "check_at", postgresql_where=text("generation > 0")),
        Index(
            "lease_of_worker",
            "shard",
            "queue_id",
            "worker_id",
            "claim_id",
            "claim_slot",
            unique=True,
            postgresql_where=text("generation > 0"),
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


class Recheck(SQLModel, table=True):
    """When the timer looks again at a block of leases that were alive when it last did: before the first of them can run out.

    It has the leases whose `check_at` is infinite, some of which may have ended since.
    """

    # The condition holds for every row; see `message_status`.
    __table_args__ = (Index("recheck_due", "shard", "check_at", postgresql_where=text("block >= 0")),)

    shard: int = Field(sa_column=Column(SmallInteger, primary_key=True, autoincrement=False))
    block: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    check_at: datetime = Field(sa_column=_moment())


class Checkpoint(SQLModel, table=True):
    """One entry of a message's history. Its key bounds it: one of each kind per lease.

    Of all that share a `history` (a task, or a message that has none), the newest are kept.
    """

    __table_args__ = (
        _one_of("kind", get_args(CheckpointKind), "checkpoint_kind_is_known"),
        # Its order is what trim reads by; the condition keeps it from statements that look checkpoints up by their message.
        Index(
            "checkpoint_of_history",
            "shard",
            "history",
            "created_at",
            "generation",
            "message_id",
            postgresql_where=text("history is not null"),
        ),
        # The condition holds for every row; see `message_status`.
        Index("checkpoint_made", "shard", "created_at", postgresql_where=text("kind <> ''")),
    )

    shard: int = Field(sa_column=Column(SmallInteger, primary_key=True, autoincrement=False))
    message_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    generation: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    kind: str = Field(sa_column=Column(Text, primary_key=True))
    created_at: datetime = Field(sa_column=_moment(default=True))
    history: str | None = Field(sa_column=Column(Text))
    facts: dict[str, object] = Field(sa_column=Column(JSON, nullable=False))


class SendRequest(SQLModel, table=True):
    """A send that bore an Idempotency-Key: the digest of its body, and the ids of its messages.

    The id of a message that was a duplicate is negative.
    """

    __tablename__ = "send_request"
    # The condition holds for every row; see `message_status`.
    __table_args__ = (Index("send_request_made", "shard", "created_at", postgresql_where=text("key <> ''")),)

    shard: int = Field(sa_column=Column(SmallInteger, primary_key=True, autoincrement=False))
    queue_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    key: str = Field(sa_column=Column(Text, primary_key=True))
    created_at: datetime = Field(sa_column=_moment(default=True))
    digest: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    message_ids: list[int] = Field(sa_column=Column(ARRAY(BigInteger), nullable=False))


class Worker(SQLModel, table=True):
    """A worker that has shown itself by claiming or beating."""

    __table_args__ = (Index("worker_draining", "worker_id", postgresql_where=text("draining")),)

    worker_id: str = Field(sa_column=Column(Text(collation="C"), primary_key=True))
    first_seen_at: datetime = Field(sa_column=_moment(default=True))
    last_seen_at: datetime = Field(sa_column=_moment(default=True))
    draining: bool = Field(sa_column=Column(Boolean, nullable=False, server_default=text("false")))
    host: str | None = Field(sa_column=Column(Text))
    version: str | None = Field(sa_column=Column(Text))


class Recovery(SQLModel, table=True):
    """What the sweeps of all replicas have done since the database was made. One row."""

    id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    scans: int = Field(sa_column=_total())
    expired: int = Field(sa_column=_total())
    recovered: int = Field(sa_column=_total())
    failed: int = Field(sa_column=_total())
    checkpoints: int = Field(sa_column=_total())
    errors: int = Field(sa_column=_total())
    counted_at: datetime = Field(sa_column=_moment(default=True))
    last_scan: dict[str, object] | None = Field(sa_column=Column(JSON(none_as_null=True)))


class Figure(SQLModel, table=True):
    """What one replica has counted in the background for all of them: as of when, how long it took in seconds, and the counts."""

    name: str = Field(sa_column=Column(Text, primary_key=True))
    as_of: datetime = Field(sa_column=_moment())
    took: float = Field(sa_column=Column(Double, nullable=False))
    value: dict[str, object] = Field(sa_column=Column(JSON, nullable=False))


class Secret(SQLModel, table=True):
    """What all replicas on one database share and nobody else may know: the key that receipts are signed with."""

    name: str = Field(sa_column=Column(Text, primary_key=True))
    value: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
