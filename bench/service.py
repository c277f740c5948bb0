"""The service as the bench calls it to prepare what is measured, and the check of what was."""

from harness.metrics import samples, value
from harness.server import Server

_BATCH = 1000
QUEUE = "bench"
LEASE_S = 3600


def fill(server: Server, messages: int, queue: str = QUEUE) -> None:
    """Send messages, so that they are ready."""
    for _ in range(0, messages, _BATCH):
        server.api.send(queue, *range(_BATCH))


def lease(server: Server, leases: int, queue: str = QUEUE) -> list[str]:
    """Send and claim messages, and return the receipts of their leases, which last `LEASE_S`."""
    receipts: list[str] = []
    while len(receipts) < leases:
        server.api.send(queue, *range(_BATCH))
        receipts += [each["receipt"] for each in server.api.claim(queue, max_messages=_BATCH, visibility_timeout=LEASE_S)]
    return receipts


def outcomes(server: Server, verb: str) -> dict[str, int]:
    """Return how often each outcome of `beat`, or of one of the verbs that settle, has been answered so far."""
    if verb == "beat":
        return {dict(labels)["outcome"]: int(count) for labels, count in samples(server.api, "leasebeat_beats_total").items()}
    found = samples(server.api, "leasebeat_settles_total")
    return {dict(labels)["outcome"]: int(count) for labels, count in found.items() if dict(labels)["verb"] == verb}


def counted(server: Server, what: str) -> int:
    """Return how many of one kind the service has counted: `sends` or `claims`."""
    return int(value(server.api, f"leasebeat_{what}_total"))
