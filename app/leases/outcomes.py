"""What became of a lease, and how each verb answers for it: the one place where a refusal gets its word (design rule 2).

The store finds out how a lease ended; these tables turn that into the words of the interface. A verb repeated after it took effect
answers as it did the first time, so that a lost answer can be asked for again.
"""

from typing import Literal

End = Literal["acked", "acked_late", "nacked", "given_up", "dead_lettered", "released", "expired", "unconfirmed", "cancelled"]
Fate = Literal["unknown", "lost"] | End
"""How a lease ended; `lost` when a later lease was granted, `given_up` when its nack was the message's last, and `dead_lettered` when
that moved the message to a dead-letter queue."""

_REFUSALS: dict[Fate, str] = {
    "unknown": "unknown",
    "lost": "lost",
    "acked": "settled",
    "acked_late": "settled",
    "nacked": "settled",
    "given_up": "settled",
    "dead_lettered": "settled",
    "released": "settled",
    "expired": "expired",
    "unconfirmed": "expired",
    "cancelled": "cancelled",
}

BEAT = _REFUSALS
ACK: dict[Fate, str] = _REFUSALS | {"acked": "acked", "acked_late": "acked"}
NACK: dict[Fate, str] = _REFUSALS | {"nacked": "requeued", "given_up": "failed", "dead_lettered": "dead_lettered"}
RELEASE: dict[Fate, str] = _REFUSALS | {"released": "released"}

REPORT_KEPT: frozenset[Fate] = frozenset({"lost", "expired", "unconfirmed", "cancelled"})
"""Fates after which a refused result or error is kept as a `late_report`: the work was done, only too late."""
