"""Leasebeat: lease messages, prove progress by beating, settle them."""

from leasebeat._client import AsyncClient, Client
from leasebeat._context import Context
from leasebeat._errors import (
    ApiError,
    ConflictError,
    FieldError,
    GiveUp,
    InvalidRequestError,
    LeasebeatError,
    LeaseCancelledError,
    LeaseConflictError,
    LeaseExpiredError,
    LeaseLostError,
    LeaseSettledError,
    NotFoundError,
    ReceiptHandleExpiredError,
    RetryLater,
    ServerError,
    ServiceUnreachableError,
    UnavailableError,
    UnknownLeaseError,
)
from leasebeat._figures import LastScan, LeaseHealth, MessageCounts, Recovery, RecoveryStats, RetryCount, Stats
from leasebeat._handlers import Handler
from leasebeat._heartbeat import Heartbeat
from leasebeat._heartbeat_thread import HeartbeatThread, start_heartbeat
from leasebeat._held_message import HeldMessage
from leasebeat._http import Options
from leasebeat._lease_extender import Extendable, LeaseExtender, LeaseExtenderConfig
from leasebeat._lease_manager import LeaseManager
from leasebeat._leases import (
    Ack,
    AckResult,
    ActiveLease,
    Beat,
    BeatResult,
    BeatResults,
    Lease,
    LeaseRef,
    Leases,
    Nack,
    NackResult,
    ReleaseResult,
    Verdict,
)
from leasebeat._messages import Checkpoint, LeasedMessage, Message, NewMessage, SentMessage
from leasebeat._platform import Health, Readiness
from leasebeat._queues import Backoff, Bounds, DerivedTimes, PurgeResult, Queue, QueueFigures, RedriveResult
from leasebeat._recovery_sweep import RecoverySweep
from leasebeat._registry import WorkerDetail, WorkerInfo
from leasebeat._retry import RetryPolicy
from leasebeat._task_runner import TaskRunner
from leasebeat._tracing import trace_headers
from leasebeat._version import __version__
from leasebeat._watchdog import Watchdog
from leasebeat._wire import Page
from leasebeat._worker import Worker

__all__ = [
    "Ack",
    "AckResult",
    "ActiveLease",
    "ApiError",
    "AsyncClient",
    "Backoff",
    "Beat",
    "BeatResult",
    "BeatResults",
    "Bounds",
    "Checkpoint",
    "Client",
    "ConflictError",
    "Context",
    "DerivedTimes",
    "Extendable",
    "FieldError",
    "GiveUp",
    "Handler",
    "Health",
    "Heartbeat",
    "HeartbeatThread",
    "HeldMessage",
    "InvalidRequestError",
    "LastScan",
    "Lease",
    "LeaseCancelledError",
    "LeaseConflictError",
    "LeaseExpiredError",
    "LeaseExtender",
    "LeaseExtenderConfig",
    "LeaseHealth",
    "LeaseLostError",
    "LeaseManager",
    "LeaseRef",
    "LeaseSettledError",
    "LeasebeatError",
    "LeasedMessage",
    "Leases",
    "Message",
    "MessageCounts",
    "Nack",
    "NackResult",
    "NewMessage",
    "NotFoundError",
    "Options",
    "Page",
    "PurgeResult",
    "Queue",
    "QueueFigures",
    "Readiness",
    "ReceiptHandleExpiredError",
    "Recovery",
    "RecoveryStats",
    "RecoverySweep",
    "RedriveResult",
    "ReleaseResult",
    "RetryCount",
    "RetryLater",
    "RetryPolicy",
    "SentMessage",
    "ServerError",
    "ServiceUnreachableError",
    "Stats",
    "TaskRunner",
    "UnavailableError",
    "UnknownLeaseError",
    "Verdict",
    "Watchdog",
    "Worker",
    "WorkerDetail",
    "WorkerInfo",
    "__version__",
    "start_heartbeat",
    "trace_headers",
]
