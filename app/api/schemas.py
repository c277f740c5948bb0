"""What crosses the wire: one model per request and answer, and the only place that describes them.

Durations are seconds. Moments are RFC 3339 in UTC and are for people; what drives a client is a duration (design rule 1).
"""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.api import fields as f
from app.leases.states import Reason, Status

EXAMPLE_RECEIPT = "AAAAAAAAAAAqAAAAAAAAAAFvZ1lQ0ZkGm3mJ1vV4c0Y6"
EXAMPLE_MOMENT = "2026-12-01T12:00:00.000000Z"


class Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Nothing(Wire):
    """Nothing to say. The body may be left out."""


# --- queues -----------------------------------------------------------------------------------------------------------


class Backoff(Wire):
    """How long a message waits after a failed attempt: `initial * factor ** (attempt_count - 1)` seconds, at most `max`."""

    initial: f.DelaySeconds = Field(
        default=0.0, description="Seconds after the first failed attempt. 0: ready again at once.", examples=[5]
    )
    factor: f.BackoffFactor = Field(default=2.0, description="How many times longer each further wait is.", examples=[2])
    max: f.DelaySeconds = Field(default=900.0, description="The longest wait, in seconds.", examples=[900])
    jitter: bool = Field(
        default=True, description="Wait a random part of that time, so that retries do not come in waves.", examples=[True]
    )


class Bounds(Wire):
    """Between which an adaptive queue's lease duration stays."""

    min: f.LeaseSeconds = Field(default=10.0, description="The shortest, in seconds.", examples=[10])
    max: f.LeaseSeconds = Field(default=3600.0, description="The longest, in seconds.", examples=[3600])


class QueueConfig(Wire):
    """How a queue treats its messages. Every field is optional; one that is left out has its default."""

    visibility_timeout: f.LeaseSeconds = Field(300.0, description="Length of a new lease, in seconds.", examples=[300])
    extension: f.LeaseSeconds = Field(300.0, description="How far from now an extending beat moves the expiry, in seconds.", examples=[300])
    beat_interval: f.DelaySeconds = Field(
        60.0,
        description="At most one extension per this many seconds. 0 makes each beat extend. Must be below half of `extension`.",
        examples=[60],
    )
    extension_enabled: bool = Field(
        True, description="Whether beats extend at all. If false, every beat is answered `held`.", examples=[True]
    )
    max_lease: f.LeaseSeconds = Field(
        43200.0, description="The hard end of every lease, in seconds from its grant. No beat moves it.", examples=[43200]
    )
    max_attempts: f.Attempts = Field(3, description="How many attempts a message has before it is given up.", examples=[3])
    progress_required: bool = Field(
        False,
        description="A beat extends only if its `progress` is higher than at the last extension; otherwise it answers `stalled`.",
        examples=[False],
    )
    weights: Annotated[dict[f.Label, f.Weight], Field(max_length=10_000)] = Field(
        default_factory=dict,
        description="Share of leases per fairness key. A key that is not named here has weight 1.",
        examples=[{"tenant-a": 2}],
    )
    backoff: Backoff = Field(
        Backoff(), description="The wait after an attempt that was nacked without a `delay` of its own, or that ran out."
    )
    dead_letter_queue: f.QueueName | None = Field(
        None,
        description="The queue that messages move to when they are given up. Null leaves them here as `failed`. Not the queue itself, "
        "nor one whose own dead letters lead back here.",
        examples=["dead-letters"],
    )
    max_in_flight: f.InFlight | None = Field(
        None, description="The most leases that the queue's messages may have at one time. Null: no limit.", examples=[50]
    )
    retention: f.RetentionSeconds = Field(
        604800.0, description="Seconds that finished messages are kept: completed, failed and cancelled ones.", examples=[604800]
    )
    adaptive: bool = Field(
        False,
        description="Derive the times from how long messages have taken: leases and extensions of twice the 95th percentile, and a tenth "
        "of that as beat interval. Until there are enough samples, the configured times apply.",
        examples=[False],
    )
    adaptive_bounds: Bounds = Field(Bounds(), description="The bounds of a derived lease duration.")
    paused: bool | None = Field(
        None, description="Whether no leases are granted. Null leaves that as it is; a new queue is not paused.", examples=[False]
    )


class DerivedTimes(Wire):
    """What an adaptive queue has derived, in seconds."""

    visibility_timeout: float = Field(description="Length of a new lease, and of an extension.", examples=[84.0])
    beat_interval: float = Field(description="A tenth of that.", examples=[8.4])
    sweep_interval: float = Field(description="A fifth of it: how often a sweep of one's own need run.", examples=[16.8])
    samples: int = Field(description="How many durations it is derived from.", examples=[1000])


class MessageCounts(Wire):
    """How many messages there are, by state."""

    scheduled: int = Field(description="Delayed, or waiting out a backoff.", examples=[0])
    pending: int = Field(description="Ready to be leased.", examples=[3])
    in_progress: int = Field(description="Leased.", examples=[1])
    completed: int = Field(description="Acked, and still kept.", examples=[120])
    failed: int = Field(description="Given up, and still kept.", examples=[0])
    cancelled: int = Field(description="Cancelled, and still kept.", examples=[0])


class QueueFigures(MessageCounts):
    """A queue's messages by state, as of the last background count."""

    as_of: datetime = Field(description="When they were counted.", examples=[EXAMPLE_MOMENT])


class Queue(QueueConfig):
    """A queue and its configuration."""

    paused: bool = Field(description="Whether no leases are granted.", examples=[False])
    derived: DerivedTimes | None = Field(None, description="What an adaptive queue has derived. Null while there is nothing.")
    figures: QueueFigures | None = Field(None, description="Its messages by state. Null until they are first counted.")
    name: str = Field(description="The queue's name.", examples=["default"])
    created_at: datetime = Field(description="When the queue was created.", examples=[EXAMPLE_MOMENT])
    updated_at: datetime = Field(description="When its configuration last changed.", examples=[EXAMPLE_MOMENT])
    warnings: list[str] = Field(
        default_factory=list,
        description="Calibration advice: settings that work but are unlikely to be meant.",
        examples=[["extension is longer than visibility_timeout: a beat lengthens a lease beyond its first length"]],
    )


class QueueList(Wire):
    items: list[Queue] = Field(description="The queues, by name.")
    next_cursor: str | None = Field(description="Pass it as `cursor` for the next page. Null on the last.", examples=[None])


class PurgeRequest(Wire):
    """Which messages to remove. The body may be left out."""

    statuses: Annotated[list[Literal["scheduled", "pending", "completed", "failed", "cancelled"]], Field(min_length=1, max_length=5)] = (
        Field(
            ["scheduled", "pending"],
            description="Remove messages in these states. Leased ones are never removed: cancel them.",
            examples=[["scheduled", "pending"]],
        )
    )


class PurgeResponse(Wire):
    purged: int = Field(description="How many messages were removed.", examples=[17])
    more: bool = Field(description="True if time ran out before all were: call again.", examples=[False])


class RedriveRequest(Wire):
    """Which messages to send back, and where to. The body may be left out: all, each to where it came from."""

    limit: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None, description="The most messages to send back, oldest first. Null: all.", examples=[100]
    )
    to: f.QueueName | None = Field(None, description="The queue to send them to. Null: each to where it came from.", examples=["default"])


class RedriveResponse(Wire):
    redriven: int = Field(description="How many messages were sent back.", examples=[17])
    more: bool = Field(description="True if time ran out before all were: call again.", examples=[False])


# --- messages ---------------------------------------------------------------------------------------------------------


class NewMessage(Wire):
    """One message to send."""

    body: f.JsonBody = Field(description="The work: any JSON value of at most 256 KiB.", examples=[{"file": "a.wav"}])
    headers: f.Headers = Field(
        default_factory=dict, description="Up to 50 short strings for the worker, for example a `traceparent`.", examples=[{"lang": "en"}]
    )
    priority: f.Priority = Field(0, description="Higher is leased first, within its fairness key.", examples=[0])
    delay: f.DelaySeconds = Field(0.0, description="Seconds before the message becomes ready.", examples=[0])
    fairness_key: f.Label = Field(
        "", description="The tenant or flow it belongs to. Leases are shared out among keys.", examples=["tenant-a"]
    )
    work_type: f.Label | None = Field(None, description="What kind of work it is.", examples=["transcode"])
    task_id: f.Label | None = Field(None, description="The larger task that it is part of.", examples=["task-7"])
    max_attempts: f.Attempts | None = Field(None, description="Its own limit of attempts. Null takes the queue's.", examples=[5])
    dedup_key: f.DedupKey | None = Field(
        None,
        description="While a message that was sent to this queue with the same key is kept, none is stored; the first one is returned.",
        examples=["invoice-7"],
    )


class SendRequest(Wire):
    messages: Annotated[list[NewMessage], Field(min_length=1, max_length=f.MAX_BATCH)] = Field(
        description="1 to 1000 messages; all are stored, or none."
    )


class SentMessage(Wire):
    id: str = Field(description="The message's id.", examples=["42"])
    status: Status = Field(
        description="Its state when it was stored, also in the answer to a repeated request: `pending`, or `scheduled` if it was sent with "
        "a delay. Of a duplicate: its state now.",
        examples=["pending"],
    )
    duplicate: bool = Field(
        description="True if a message with this `dedup_key` was there already: this is that one, as it is now.", examples=[False]
    )


class SendResponse(Wire):
    messages: list[SentMessage] = Field(description="One per message sent, in order.")


class MessageFacts(Wire):
    """What a worker and an operator both see of a message."""

    id: str = Field(description="The message's id.", examples=["42"])
    queue: str = Field(description="The queue it is in.", examples=["default"])
    body: Any = Field(description="The work: equal to what was sent, as far as 64-bit floats go.", examples=[{"file": "a.wav"}])
    headers: dict[str, str] = Field(description="The headers it was sent with.", examples=[{"lang": "en"}])
    priority: int = Field(description="Higher is leased first.", examples=[0])
    fairness_key: str = Field(description="The tenant or flow it belongs to.", examples=["tenant-a"])
    work_type: str | None = Field(description="What kind of work it is.", examples=["transcode"])
    task_id: str | None = Field(description="The larger task that it is part of.", examples=["task-7"])
    created_at: datetime = Field(description="When it was sent.", examples=[EXAMPLE_MOMENT])
    attempt_count: int = Field(description="How many attempts ended by nack or by running out, so far.", examples=[0])
    max_attempts: int = Field(description="At this many attempts in its queue it is given up; a dead letter begins anew.", examples=[3])
    source_queue: str | None = Field(description="The queue that a dead letter came from.", examples=[None])
    progress: int | None = Field(description="The last progress that a lease of it reported.", examples=[17])
    detail: Any = Field(description="The last detail that a lease of it reported.", examples=[{"step": "upload"}])


class Message(MessageFacts):
    """A message as an operator sees it. Never carries a receipt."""

    status: Status = Field(description="Its state.", examples=["completed"])
    available_at: datetime = Field(description="When it is or was due to become ready.", examples=[EXAMPLE_MOMENT])
    generation: int = Field(description="How many leases it has had.", examples=[1])
    failed_count: int = Field(description="Attempts that ended by nack, of all that it ever had.", examples=[0])
    expired_count: int = Field(description="Attempts that ended because the lease ran out, of all that it ever had.", examples=[0])
    released_count: int = Field(description="Leases given back untouched; not attempts.", examples=[0])
    unconfirmed_count: int = Field(description="Deliveries that were never confirmed within `confirm_within`; not attempts.", examples=[0])
    output: Any = Field(description="The result given with its ack.", examples=[{"seconds": 12.5}])
    error: str | None = Field(description="Why its newest attempt failed, or why it was given up.", examples=[None])
    reason: Reason | None = Field(
        description="What made it be given up: its last attempt was nacked or ran out, or was nacked as not retryable, or its deliveries "
        "were never confirmed. Kept while it is failed or a dead letter.",
        examples=[None],
    )
    failed_workers: list[str] = Field(description="Who made its failed attempts, newest last; the last 20.", examples=[["worker-1"]])
    dedup_key: str | None = Field(description="The `dedup_key` that it was sent with.", examples=[None])
    leased_at: datetime | None = Field(description="Since when it is leased. Null if it is not.", examples=[None])
    started_at: datetime | None = Field(description="When its newest lease was granted, also if that is over.", examples=[EXAMPLE_MOMENT])
    finished_at: datetime | None = Field(description="When it reached its final state.", examples=[EXAMPLE_MOMENT])


class MessageList(Wire):
    items: list[Message] = Field(description="The messages, oldest first.")
    next_cursor: str | None = Field(description="Pass it as `cursor` for the next page. Null on the last.", examples=["42"])


class Checkpoint(Wire):
    """One entry of a message's history."""

    kind: Literal["error_boundary", "unconfirmed", "late_report"] = Field(
        description="`error_boundary`: an attempt failed. `unconfirmed`: nobody confirmed a delivery. `late_report`: a late result.",
        examples=["error_boundary"],
    )
    reason: Literal["nacked", "lease_expired"] | None = Field(description="What ended the attempt.", examples=["lease_expired"])
    generation: int = Field(description="The lease it is about.", examples=[1])
    created_at: datetime = Field(description="When it was recorded.", examples=[EXAMPLE_MOMENT])
    facts: dict[str, Any] = Field(
        description="Of an attempt: `error`, `retry_count`, `max_retries`, `will_retry`, `worker_id`, `acquired_at`, `expires_at`, "
        "`last_heartbeat`. Of a late report: what it said.",
        examples=[{"worker_id": "worker-1"}],
    )


class CheckpointList(Wire):
    items: list[Checkpoint] = Field(description="The history, newest first.")
    next_cursor: str | None = Field(description="Always null: the history is bounded.", examples=[None])


# --- leases -----------------------------------------------------------------------------------------------------------


class ClaimRequest(Wire):
    """Ask for messages."""

    worker_id: f.WorkerId = Field(
        description="Who asks. For people and figures; the receipt is what proves ownership.", examples=["worker-1"]
    )
    max_messages: Annotated[int, Field(ge=1, le=f.MAX_BATCH)] = Field(
        1,
        description="The most leases to grant. Fewer come of large messages: with one that brings them to 8 MiB, the answer is full.",
        examples=[1],
    )
    visibility_timeout: f.LeaseSeconds | None = Field(
        None, description="Length of the leases in seconds. Null takes the queue's.", examples=[300]
    )
    wait: Annotated[float, Field(ge=0, le=f.MAX_WAIT_S)] = Field(
        0.0, description="Seconds to wait for work if there is none, at most 50.", examples=[20]
    )
    claim_id: f.ClaimId | None = Field(
        None,
        description="The worker's name for this call. Repeating it returns the same leases while they live: a lost answer loses nothing.",
        examples=["5f0c2f3a"],
    )
    work_types: f.WorkTypes | None = Field(
        None, description="Only messages with one of these work types. Null: any, or none.", examples=[["transcode"]]
    )
    task_id: f.Label | None = Field(None, description="Only messages of this task. Null: any, or none.", examples=["task-7"])
    host: f.Label | None = Field(None, description="Where the worker runs, for the registry.", examples=["node-3"])
    version: f.Label | None = Field(None, description="The worker's version, for the registry.", examples=["1.4.0"])
    confirm_within: f.LeaseSeconds | None = Field(
        None,
        description="The leases run out after this many seconds unless a beat or settle confirms them, for the full visibility timeout.",
        examples=[10],
    )


class LeasedMessage(MessageFacts):
    """The message that a lease is for, with what its previous lease last reported."""


class Lease(Wire):
    """The right of one worker to one message, until it expires."""

    receipt: str = Field(description="Names this lease in every later call. Keep it secret.", examples=[EXAMPLE_RECEIPT])
    generation: int = Field(description="1 for the message's first lease, 2 for its second, …: the fencing token.", examples=[1])
    attempt: int = Field(description="1 on the first attempt, and on a dead letter's first in its new queue.", examples=[1])
    expires_at: datetime = Field(description="When the lease expires. For people.", examples=[EXAMPLE_MOMENT])
    expires_in: float = Field(description="Seconds until the lease expires.", examples=[300.0])
    deadline_in: float = Field(description="Seconds until its hard end, which no beat moves.", examples=[43200.0])
    beat_interval: float = Field(description="At most one beat per this many seconds extends.", examples=[60.0])
    extension: float = Field(description="How far from now an extending beat moves the expiry.", examples=[300.0])
    message: LeasedMessage = Field(description="The message.")


class ClaimResponse(Wire):
    leases: list[Lease] = Field(description="The leases granted; empty if there was no work.")
    waited: float = Field(
        description="Seconds from the call's arrival to the try that this answers for: its leases began that much later, or more.",
        examples=[0.0],
    )
    drain: bool = Field(description="True if this worker is to stop taking work: it gets no new leases.", examples=[False])


class LeaseBeat(Wire):
    receipt: f.ReceiptText = Field(description="The lease's receipt.", examples=[EXAMPLE_RECEIPT])
    progress: f.Progress | None = Field(None, description="How much real work is done: any number that grows with it.", examples=[17])
    detail: f.JsonDetail | None = Field(
        None, description="Where the work stands, for whoever resumes it: any JSON value of at most 8 KiB.", examples=[{"step": "upload"}]
    )


class BeatRequest(Wire):
    """Prove progress for up to 1000 leases."""

    worker_id: f.WorkerId | None = Field(None, description="Who beats.", examples=["worker-1"])
    leases: Annotated[list[LeaseBeat], Field(min_length=1, max_length=f.MAX_BATCH)] = Field(description="The leases, 1 to 1000.")


BeatStatus = Literal["extended", "held", "stalled", "expired", "lost", "settled", "cancelled", "unknown", "error"]

WHY_NOT = (
    "`expired`: the lease ran out. `lost`: another lease has been granted since. `settled`: it was acked, nacked or released. "
    "`cancelled`: the message was cancelled. `unknown`: no such lease. `error`: the database refused this item; the service's log has it."
)


class BeatResult(Wire):
    receipt: str = Field(description="The receipt asked about.", examples=[EXAMPLE_RECEIPT])
    status: BeatStatus = Field(
        description="`extended`: the expiry moved. `held`: within the interval, nothing to do. `stalled`: no progress, not extended. "
        + WHY_NOT,
        examples=["extended"],
    )
    expires_at: datetime | None = Field(description="When the lease expires. Null if it is gone.", examples=[EXAMPLE_MOMENT])
    expires_in: float | None = Field(description="Seconds until the lease expires. Null if it is gone.", examples=[300.0])
    next_beat_in: float | None = Field(
        description="Seconds until a beat can extend again; the rest of the lease if none can. Null if it is gone.", examples=[60.0]
    )


class BeatResponse(Wire):
    results: list[BeatResult] = Field(description="One per lease, in order.")
    drain: bool = Field(description="True if this worker is to stop taking work: it gets no new leases.", examples=[False])


class LeaseAck(Wire):
    receipt: f.ReceiptText = Field(description="The lease's receipt.", examples=[EXAMPLE_RECEIPT])
    output: f.JsonBody | None = Field(None, description="The result: any JSON value of at most 256 KiB.", examples=[{"seconds": 12.5}])


class AckRequest(Wire):
    leases: Annotated[list[LeaseAck], Field(min_length=1, max_length=f.MAX_BATCH)] = Field(description="The leases, 1 to 1000.")


class AckResult(Wire):
    receipt: str = Field(description="The receipt asked about.", examples=[EXAMPLE_RECEIPT])
    status: Literal["acked", "expired", "lost", "settled", "cancelled", "unknown", "error"] = Field(
        description="`acked`: the message is completed, for good. " + WHY_NOT, examples=["acked"]
    )
    late: bool = Field(description="True if the lease had run out, but nobody had leased the message since.", examples=[False])


class AckResponse(Wire):
    results: list[AckResult] = Field(description="One per lease, in order.")


class LeaseNack(Wire):
    receipt: f.ReceiptText = Field(description="The lease's receipt.", examples=[EXAMPLE_RECEIPT])
    error: f.ErrorText | None = Field(None, description="What went wrong.", examples=["disk full"])
    delay: f.DelaySeconds | None = Field(
        None, description="Seconds before the message becomes ready again. Null takes the queue's backoff.", examples=[30]
    )
    retryable: bool = Field(True, description="False gives the message up at once.", examples=[True])


class NackRequest(Wire):
    leases: Annotated[list[LeaseNack], Field(min_length=1, max_length=f.MAX_BATCH)] = Field(description="The leases, 1 to 1000.")


class NackResult(Wire):
    receipt: str = Field(description="The receipt asked about.", examples=[EXAMPLE_RECEIPT])
    status: Literal["requeued", "failed", "dead_lettered", "expired", "lost", "settled", "cancelled", "unknown", "error"] = Field(
        description="`requeued`: it will be delivered again. `failed`: it is given up. `dead_lettered`: it is given up, and moved to the "
        "dead-letter queue. " + WHY_NOT,
        examples=["requeued"],
    )


class NackResponse(Wire):
    results: list[NackResult] = Field(description="One per lease, in order.")


class LeaseRelease(Wire):
    receipt: f.ReceiptText = Field(description="The lease's receipt.", examples=[EXAMPLE_RECEIPT])


class ReleaseRequest(Wire):
    leases: Annotated[list[LeaseRelease], Field(min_length=1, max_length=f.MAX_BATCH)] = Field(description="The leases, 1 to 1000.")


class ReleaseResult(Wire):
    receipt: str = Field(description="The receipt asked about.", examples=[EXAMPLE_RECEIPT])
    status: Literal["released", "expired", "lost", "settled", "cancelled", "unknown", "error"] = Field(
        description="`released`: back in the queue, and not an attempt. " + WHY_NOT, examples=["released"]
    )


class ReleaseResponse(Wire):
    results: list[ReleaseResult] = Field(description="One per lease, in order.")


class ActiveLease(Wire):
    """A lease as an operator sees it. Never carries a receipt."""

    message_id: str = Field(description="The message it is for.", examples=["42"])
    queue: str = Field(description="The message's queue.", examples=["default"])
    worker_id: str = Field(description="Who holds it.", examples=["worker-1"])
    generation: int = Field(description="Its number among the message's leases.", examples=[1])
    acquired_at: datetime = Field(description="When it was granted.", examples=[EXAMPLE_MOMENT])
    expires_at: datetime = Field(description="When it expires.", examples=[EXAMPLE_MOMENT])
    expires_in: float = Field(description="Seconds until it expires; 0 or less once it has.", examples=[120.5])
    expired: bool = Field(description="True from the instant of its expiry, whether or not it has been reclaimed.", examples=[False])
    last_beat_at: datetime | None = Field(description="The last beat that changed it.", examples=[EXAMPLE_MOMENT])
    since_beat: float = Field(description="Seconds since then; without a beat, since it was granted.", examples=[12.5])
    overdue: float = Field(description="Seconds since it expired; 0 if it has not.", examples=[0.0])
    progress: int | None = Field(description="The last progress reported.", examples=[17])
    detail: Any = Field(description="The last detail reported.", examples=[{"step": "upload"}])


class ActiveLeaseList(Wire):
    items: list[ActiveLease] = Field(description="The leases, by message id; with `overdue=true`, the longest overdue first.")
    as_of: datetime = Field(description="When they were read.", examples=[EXAMPLE_MOMENT])
    next_cursor: str | None = Field(description="Pass it as `cursor` for the next page. Null on the last.", examples=[None])


# --- workers ----------------------------------------------------------------------------------------------------------


class Worker(Wire):
    """A worker that has shown itself by claiming or beating."""

    worker_id: str = Field(description="Its name.", examples=["worker-1"])
    host: str | None = Field(description="Where it runs, if it said so.", examples=["node-3"])
    version: str | None = Field(description="Its version, if it said so.", examples=["1.4.0"])
    first_seen_at: datetime = Field(description="When it first showed itself.", examples=[EXAMPLE_MOMENT])
    last_seen_at: datetime = Field(description="Its last sign, as noted every 15 seconds.", examples=[EXAMPLE_MOMENT])
    silent_for: float = Field(description="Seconds since then.", examples=[3.2])
    stale: bool = Field(description="True after two minutes without a sign: it may be dead.", examples=[False])
    draining: bool = Field(description="True if it is to stop taking work: it gets no new leases.", examples=[False])
    held_leases: int = Field(description="How many leases it holds, as of the last background count.", examples=[2])


class WorkerList(Wire):
    items: list[Worker] = Field(description="The workers, by name.")
    next_cursor: str | None = Field(description="Pass it as `cursor` for the next page. Null on the last.", examples=[None])
    as_of: datetime | None = Field(description="When their leases were counted. Null before the first count.", examples=[EXAMPLE_MOMENT])


class WorkerDetail(Worker):
    """A worker, with the leases that it holds now."""

    held_leases: int = Field(description="How many leases it holds.", examples=[2])
    leases: list[ActiveLease] = Field(description="Up to 1000 of them, by message id.")


class DrainRequest(Wire):
    """Whether to drain. The body may be left out."""

    draining: bool = Field(True, description="False lets the worker take work again.", examples=[True])


# --- recovery and figures ---------------------------------------------------------------------------------------------


class RecoveryStats(Wire):
    """What one sweep did."""

    expired_found: int = Field(description="Leases that had run out.", examples=[3])
    recovered: int = Field(description="Messages that went back to their queue.", examples=[2])
    failed: int = Field(description="Messages that were given up, dead letters included.", examples=[1])
    checkpoints_created: int = Field(description="Entries added to histories.", examples=[3])
    errors: int = Field(description="Rows that the database refused.", examples=[0])
    scan_duration_ms: float = Field(description="How long the sweep took, in milliseconds.", examples=[4.2])


class LastScan(RecoveryStats):
    """The last sweep of a replica's timer or on demand."""

    ended_at: datetime = Field(description="When it ended.", examples=[EXAMPLE_MOMENT])


class Recovery(Wire):
    """What the sweeps of all replicas have done since the database was made. Each sweep is counted once.

    What a replica that is killed reclaimed in its last moments may be missing.
    """

    is_running: bool = Field(description="Whether this replica's timer keeps up.", examples=[True])
    total_scans: int = Field(description="Sweeps.", examples=[5120])
    total_expired: int = Field(description="Leases that had run out.", examples=[12])
    total_recovered: int = Field(description="Messages that went back to their queue.", examples=[10])
    total_failed: int = Field(description="Messages that were given up, dead letters included.", examples=[2])
    total_checkpoints: int = Field(description="Entries added to histories.", examples=[12])
    total_errors: int = Field(description="Rows that the database refused.", examples=[0])
    recovery_rate: float | None = Field(
        description="Recovered messages, as a share of recovered and failed ones. Null if there are none.", examples=[0.83]
    )
    last_scan: LastScan | None = Field(description="The newest sweep that has been counted. Null before the first.")
    as_of: datetime = Field(
        description="Up to when all replicas' sweeps are counted, give or take five seconds.", examples=[EXAMPLE_MOMENT]
    )


class LeaseHealth(Wire):
    """How the active leases are."""

    active: int = Field(description="Leases that have not been settled or reclaimed.", examples=[40])
    stale: int = Field(description="Of these: no sign of life for two minutes.", examples=[1])
    overdue: int = Field(description="Of these: run out, and not reclaimed yet.", examples=[0])


class RetryCount(Wire):
    """How many finished messages had how many failed attempts."""

    attempt_count: int = Field(description="Failed attempts.", examples=[0])
    completed: int = Field(description="Completed messages with so many.", examples=[118])
    failed: int = Field(description="Failed messages with so many.", examples=[0])


class Stats(Wire):
    """Figures, counted in the background."""

    as_of: datetime | None = Field(description="When they were counted. Null before the first count.", examples=[EXAMPLE_MOMENT])
    refresh: float = Field(description="About how many seconds pass between two counts: more if counting takes long.", examples=[10.0])
    leases: LeaseHealth = Field(description="Lease health.")
    messages: MessageCounts = Field(description="Messages by state.")
    retries: list[RetryCount] = Field(
        description="Retry distribution of the finished messages, by `attempt_count`. Dead letters, which wait, are not."
    )


# --- platform ---------------------------------------------------------------------------------------------------------


class Health(Wire):
    status: Literal["ok"] = Field(description="The process answers.", examples=["ok"])


class Readiness(Wire):
    status: Literal["ready", "not-ready"] = Field(description="Whether this replica can serve.", examples=["ready"])
    database: Literal["ok", "unreachable", "not-migrated"] = Field(
        description="Whether Postgres answers and its schema is this version's.", examples=["ok"]
    )
    timer_lag: float | None = Field(description="Seconds by which this replica's timer is behind its plan.", examples=[0.0])
    version: str = Field(description="The version of the service.", examples=["0.1.0"])
