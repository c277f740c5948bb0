"""The states of a message, why one is given up, and the kinds of entries in its history."""

from typing import Literal

Status = Literal["scheduled", "pending", "in_progress", "completed", "failed", "cancelled"]
Reason = Literal["nacked", "not_retryable", "lease_expired", "unconfirmed"]
CheckpointKind = Literal["nacked", "lease_expired", "unconfirmed", "late_report"]
