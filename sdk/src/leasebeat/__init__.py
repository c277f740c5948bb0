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
from leasebeat._heartbeat import Heartbeat
from leasebeat._held_message import HeldMessage
from leasebeat._http import Options
from leasebeat._lease_extender import Extendable, LeaseExtender, LeaseExtenderConfig
from leasebeat._leases import (
    Ack,
    AckResult,
    ActiveLease,
    Beat,
    BeatResult,
    Lease,
    LeaseRef,
    Nack,
    NackResult,
    ReleaseResult,
    Verdict,
)
from leasebeat._messages import Checkpoint, LeasedMessage, Message, NewMessage, SentMessage
from leasebeat._platform import Health, Readiness
from leasebeat._queues import Queue
from leasebeat._retry import RetryPolicy
from leasebeat._task import Handler
from leasebeat._version import __version__
from leasebeat._wire import Page
from leasebeat._worker import Worker

__all__ = [
    "Ack",
    "AckResult",
    "ActiveLease",
    "ApiError",
    "AsyncClient",
    "Beat",
    "BeatResult",
    "Checkpoint",
    "Client",
    "ConflictError",
    "Context",
    "Extendable",
    "FieldError",
    "GiveUp",
    "Handler",
    "Health",
    "Heartbeat",
    "HeldMessage",
    "InvalidRequestError",
    "Lease",
    "LeaseCancelledError",
    "LeaseConflictError",
    "LeaseExpiredError",
    "LeaseExtender",
    "LeaseExtenderConfig",
    "LeaseLostError",
    "LeaseRef",
    "LeaseSettledError",
    "LeasebeatError",
    "LeasedMessage",
    "Message",
    "Nack",
    "NackResult",
    "NewMessage",
    "NotFoundError",
    "Options",
    "Page",
    "Queue",
    "Readiness",
    "ReceiptHandleExpiredError",
    "ReleaseResult",
    "RetryLater",
    "RetryPolicy",
    "SentMessage",
    "ServerError",
    "ServiceUnreachableError",
    "UnavailableError",
    "UnknownLeaseError",
    "Verdict",
    "Worker",
    "__version__",
]
