"""`HeldMessage`: a leased message that can extend and settle itself."""

from dataclasses import replace
from typing import Any

from leasebeat._client import Client
from leasebeat._leases import AckResult, BeatResult, Lease, NackResult, ReleaseResult


class HeldMessage:
    """A leased message with the client to call for it: what a `LeaseExtender` attaches to.

    Attributes:
        lease: The lease as it stands: its `valid_until` is the latest that is known, so that calls for it know how long it lasts.

    Example::

        for lease in client.claim("default", worker_id="worker-1"):
            message = HeldMessage(client, lease)
            with LeaseExtender().attach(message, heartbeat):
                message.ack(work(message.body, heartbeat))
    """

    def __init__(self, client: Client, lease: Lease, *, worker_id: str | None = None) -> None:
        """Bind a lease to a client.

        Args:
            client: Sends the calls.
            lease: The lease to extend and settle.
            worker_id: Who beats.
        """
        self._client = client
        self._worker_id = worker_id
        self._progress: int | None = None
        self.lease = lease

    def __repr__(self) -> str:
        return f"HeldMessage(id={self.id!r}, generation={self.lease.generation})"

    @property
    def id(self) -> str:
        """The message's id."""
        return self.lease.message.id

    @property
    def body(self) -> Any:
        """The work: equal to what was sent, as far as 64-bit floats go."""
        return self.lease.message.body

    @property
    def valid_until(self) -> float:
        """Until when it is safe to work, on `time.monotonic()`, as far as the answers said."""
        return self.lease.valid_until

    def note_progress(self, progress: int) -> None:
        """Keep how much work is done, to go with the next extension: any number that grows with it, from 0."""
        self._progress = progress

    def extend_visibility(self, seconds: float | None = None) -> BeatResult:  # noqa: ARG002 - the interface of the seeds' messages
        """Beat, with the progress that was noted, so that the service extends the lease.

        How far is for the queue's `extension` to say, so that one setting rules all workers; `seconds` is accepted because
        extenders pass it, and not sent.

        Raises:
            ReceiptHandleExpiredError: If the lease ran out, or somebody else holds one.
            LeaseLostError: If it was settled or its message was cancelled.
        """
        result = self._client.beat(self.lease, progress=self._progress, worker_id=self._worker_id)
        if result.valid_until is not None:
            self.lease = replace(self.lease, valid_until=max(self.lease.valid_until, result.valid_until))
        return result

    def ack(self, output: Any = None) -> AckResult:
        """Complete the message. See `Client.ack`."""
        return self._client.ack(self.lease, output)

    def nack(self, error: str | None = None, *, delay: float | None = None, retryable: bool = True) -> NackResult:
        """End a failed attempt. See `Client.nack`."""
        return self._client.nack(self.lease, error, delay=delay, retryable=retryable)

    def release(self) -> ReleaseResult:
        """Give the message back untouched. See `Client.release`."""
        return self._client.release(self.lease)
