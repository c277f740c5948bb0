"""The states of a message, and the kinds of entries in its history."""

from typing import Literal

Status = Literal["scheduled", "pending", "in_progress", "completed", "failed", "cancelled"]
CheckpointKind = Literal["nacked", "lease_expired", "unconfirmed", "late_report"]
