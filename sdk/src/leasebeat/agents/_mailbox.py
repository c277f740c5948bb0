"""`Mailbox`: a queue of requests, whose replies are messages too."""

import dataclasses
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from leasebeat._claims import Claims
from leasebeat._client import Client
from leasebeat._held_message import HeldMessage
from leasebeat._identity import default_worker_id
from leasebeat._leases import AckResult, BeatResult, Lease, NackResult, ReleaseResult
from leasebeat._messages import REPLY_TO, SentMessage
from leasebeat._unanswered import Unanswered

BodyT = TypeVar("BodyT")
ReplyT = TypeVar("ReplyT")


class MailboxMessage(Generic[BodyT, ReplyT]):
    """A message in hand: what a `LeaseExtender` attaches to, and what can be replied to and settled."""

    def __init__(self, client: Client, lease: Lease, read: Callable[[Any], BodyT], *, worker_id: str) -> None:
        """Hold a lease.

        Args:
            client: Sends the calls.
            lease: The lease of the message.
            read: Makes the body from its JSON.
            worker_id: Who works on it.
        """
        self._client = client
        self._held = HeldMessage(client, lease, worker_id=worker_id)
        self._read = read
        self.attempt = lease.attempt
        self.reply_to = lease.message.headers.get(REPLY_TO)

    def __repr__(self) -> str:
        return f"MailboxMessage(id={self.id!r}, attempt={self.attempt})"

    @property
    def id(self) -> str:
        """The message's id. It is the same at each delivery."""
        return self._held.id

    @property
    def body(self) -> BodyT:
        """What was sent.

        Raises:
            Exception: What `read` raises, if its sender wrote something else.
        """
        return self._read(self._held.body)

    @property
    def valid_until(self) -> float:
        """Until when it is safe to work, on `time.monotonic()`, as far as the answers said."""
        return self._held.valid_until

    def note_progress(self, progress: int) -> None:
        """Keep how much work is done, to go with the next extension. See `HeldMessage.note_progress`."""
        self._held.note_progress(progress)

    def extend_visibility(self, seconds: float | None = None) -> BeatResult:
        """Beat, so that the service extends the lease. See `HeldMessage.extend_visibility`.

        Raises:
            LeaseLostError: The subclass that says why the lease is over.
        """
        return self._held.extend_visibility(seconds)

    def reply(self, body: ReplyT) -> SentMessage | None:
        """Send a reply to where the sender asked for it. None if it did not.

        A message has one reply while that is kept: if an earlier delivery was replied to, its reply stands, and this is a `duplicate`.

        Raises:
            NotFoundError: If there is no such queue.
            InvalidRequestError: If the reply breaks a limit of messages.
            TypeError: If it has no JSON form.
        """
        if self.reply_to is None:
            return None
        return self._client.send(self.reply_to, plain(body), dedup_key=f"reply-to-{self.id}")

    def acknowledge(self, output: ReplyT | None = None) -> AckResult:
        """Complete the message. The output is kept with it. See `Client.ack`."""
        return self._held.ack(plain(output))

    def nack(self, error: str | None = None, *, delay: float | None = None, retryable: bool = True) -> NackResult:
        """End a failed attempt. See `Client.nack`."""
        return self._held.nack(error, delay=delay, retryable=retryable)

    def release(self) -> ReleaseResult:
        """Give the message back untouched. See `Client.release`."""
        return self._held.release()


class Mailbox(Generic[BodyT, ReplyT]):
    """Sends and receives the messages of one queue.

    Example::

        requests = Mailbox(client, "reviews", read=MainLoopRequest.reader(str))
        replies = Mailbox(client, "replies", read=MainLoopResult.reader(str))
        requests.send(MainLoopRequest("Look at change 17"), reply_to="replies")
        for message in replies.receive(wait_time_seconds=20):
            print(message.body.output)
            message.acknowledge()
    """

    def __init__(self, client: Client, queue: str, *, read: Callable[[Any], BodyT], worker_id: str | None = None) -> None:
        """Describe a mailbox. The queue has to exist.

        Args:
            client: Sends the calls.
            queue: The queue's name.
            read: Makes what was sent from its JSON.
            worker_id: Who receives, for people and figures. Host and process if left out.
        """
        self._client = client
        self._read = read
        self.queue = queue
        self.worker_id = worker_id if worker_id is not None else default_worker_id()
        self._unanswered = Unanswered()

    def send(self, body: BodyT, *, reply_to: str | None = None, idempotency_key: str | None = None) -> SentMessage:
        """Send a message. Once this returns, it is stored.

        Args:
            body: Any JSON value, or a dataclass of such.
            reply_to: The queue for the reply. None: no reply is sent, but the result is kept as the message's `output`.
            idempotency_key: A name for this send, so that repeating it stores nothing twice.

        Raises:
            NotFoundError: If there is no such queue.
            InvalidRequestError: If the body breaks a limit.
            TypeError: If it has no JSON form.
        """
        headers = None if reply_to is None else {REPLY_TO: reply_to}
        return self._client.send(self.queue, plain(body), headers=headers, idempotency_key=idempotency_key)

    def receive(
        self, *, max_messages: int = 1, visibility_timeout: float | None = None, wait_time_seconds: float = 0.0
    ) -> tuple[MailboxMessage[BodyT, ReplyT], ...]:
        """Lease messages. Empty if there are none.

        If no answer came, messages may have been leased all the same: the next call for the same has them.

        Args:
            max_messages: The most to lease.
            visibility_timeout: Length of the leases in seconds. None takes the queue's.
            wait_time_seconds: Seconds to wait for a message, at most 50.

        Raises:
            NotFoundError: If there is no such queue.
            ServiceUnreachableError: If no answer came.
        """
        with self._unanswered.name_for((max_messages, visibility_timeout)) as claim_id:
            leases = self._client.claim(
                self.queue,
                worker_id=self.worker_id,
                max_messages=max_messages,
                visibility_timeout=visibility_timeout,
                wait=wait_time_seconds,
                claim_id=claim_id,
            )
        return tuple(map(self._hold, leases))

    @contextmanager
    def receiving(self, on_drain: Callable[[], None]) -> Generator["Receiving[BodyT, ReplyT]", None, None]:
        """Receive one message at a time, until another thread stops it. `on_drain` is called when the service drains this worker."""
        with Claims(self._client.options, self.worker_id) as claims:
            yield Receiving(self.queue, claims, self._hold, on_drain)

    def _hold(self, lease: Lease) -> MailboxMessage[BodyT, ReplyT]:
        return MailboxMessage(self._client, lease, self._read, worker_id=self.worker_id)


class Receiving(Generic[BodyT, ReplyT]):
    """A mailbox while a loop receives from it."""

    def __init__(
        self, queue: str, claims: Claims, hold: Callable[[Lease], MailboxMessage[BodyT, ReplyT]], on_drain: Callable[[], None]
    ) -> None:
        self._queue = queue
        self._claims = claims
        self._hold = hold
        self._on_drain = on_drain

    def receive(self, *, visibility_timeout: float | None, wait_time_seconds: float) -> MailboxMessage[BodyT, ReplyT] | None:
        """Wait for a message. None if there is none, or once stopped."""
        leases = self._claims.claim(self._queue, max_messages=1, wait=wait_time_seconds, visibility_timeout=visibility_timeout)
        if leases.drain:
            self._on_drain()
        return self._hold(leases[0]) if leases else None

    def stop(self) -> None:
        """End the wait, and let no other begin. Safe from any thread."""
        self._claims.stop()

    def soon(self, work: Callable[[], object]) -> None:
        """Have something done in another thread. Signal handlers may call it: it takes no lock."""
        self._claims.soon(work)


def plain(body: Any) -> Any:
    """The JSON form of a body."""
    return dataclasses.asdict(body) if dataclasses.is_dataclass(body) and not isinstance(body, type) else body
