"""A `Mailbox` of the package `weakincentives` on Leasebeat, so that its loops run unchanged. Needs Python 3.12 or newer.

Example::

    requests = LeasebeatMailbox("requests", client, body_type=AgentLoopRequest[Ticket])
    MyAgentLoop(adapter=adapter, requests=requests).run()

It does what `weakincentives.runtime.mailbox.Mailbox` says. What users of that package's own mailboxes may notice:

- `extend_visibility(timeout)` moves the end by the queue's `extension`, so the message stays invisible for `timeout` seconds or longer.
  It never shortens, except that 0 makes the message visible at once. A `timeout` beyond the `extension` extends as far as that
  goes and raises an `InvalidParameterError`: give the mailbox the `extension` of your `LeaseExtenderConfig`.
- `acknowledge` is accepted after the timeout, too, while nobody else has received the message: work done is not thrown away.
- `receive` returns as soon as there is a message, and does not wait for `max_messages`. A `visibility_timeout` of 0 is 10 ms.
- `delivery_count` counts deliveries that reached somebody. What a closing mailbox gives back is not counted.
- A message that returns keeps its place by age. After 1,000,000 deliveries it is given up.
- `approximate_count` is exact while there are few messages. Above 500 it is what the service has counted in the background, about
  10 s ago.
- `max_size` is compared with `approximate_count` before each send, so several senders at once may pass it.
- `purge` cancels what others have received, one by one. They get a `ReceiptHandleExpiredError`.
- A body is at most 256 KiB of JSON; a larger one is a `SerializationError`. Of a batch in which one body cannot be read, the others
  go back at once.
- The name of a mailbox is that of a queue: letters, digits, `.`, `_` and `-`. A queue stays until it is deleted, also one for replies.
"""

import dataclasses
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, get_origin

from weakincentives.runtime.mailbox import (
    CompositeResolver,
    InvalidParameterError,
    Mailbox,
    MailboxConnectionError,
    MailboxFullError,
    MailboxResolver,
    Message,
    ReceiptHandleExpiredError,
    SerializationError,
    validate_visibility_timeout,
    validate_wait_time,
)
from weakincentives.serde import dump, parse

from leasebeat._claims import Claims
from leasebeat._client import Client
from leasebeat._errors import ConflictError, InvalidRequestError, LeasebeatError, LeaseLostError, NotFoundError
from leasebeat._fork import reset_in_child
from leasebeat._held_message import HeldMessage
from leasebeat._identity import default_worker_id
from leasebeat._leases import Lease, Leases
from leasebeat._messages import REPLY_TO
from leasebeat._wire import Page

T = TypeVar("T")
R = TypeVar("R")
V = TypeVar("V")

DEFAULT_EXTENSION_S = 300.0  # that of the package's `LeaseExtenderConfig`
SHORTEST_LEASE_S = 0.01  # the service grants no shorter one
LONGEST_WAIT_S = 50.0  # of one claim; a longer wait is several
MOST_MESSAGES = 10

# The package knows no last attempt and no hard end of a lease: these are the furthest that the service allows.
MAX_ATTEMPTS = 1_000_000
MAX_LEASE_S = 31_536_000.0

EXACT = 500  # up to so many messages are counted one by one
PAGE = 100


class LeasebeatMailbox(Generic[T, R]):
    """A mailbox in a queue of Leasebeat. Safe to share between threads, and across forks.

    An operator who drains its worker closes it, which ends the loop that runs on it once its message is done.
    """

    def __init__(
        self,
        name: str,
        client: Client,
        *,
        body_type: type[T] | None = None,
        max_size: int | None = None,
        reply_resolver: "MailboxResolver[R] | None" = None,
        extension: float = DEFAULT_EXTENSION_S,
        worker_id: str | None = None,
    ) -> None:
        """Describe a mailbox. Nothing is sent before the first call.

        Args:
            name: The queue's name. If there is no such queue, the first call makes it, so that every extension takes effect
                and no message is given up early. One that is there already stays as it is configured.
            client: Calls the service. It stays open when the mailbox is closed, as messages may still be settled.
            body_type: What bodies are read as: a dataclass, also a generic one with its arguments, or a type that takes the
                JSON value. None leaves them as JSON.
            max_size: The most unfinished messages there may be for `send`. None: no limit.
            reply_resolver: Finds the mailbox for replies by its name. None: any name is that of a queue.
            extension: Seconds that `extend_visibility` can reach, for a queue that is made by this mailbox.
            worker_id: Who receives, for people and figures. Host, process and a random part if left out.
        """
        self._name = name
        self._client = client
        self._body_type = body_type
        self._max_size = max_size
        self._resolver = (
            CompositeResolver({}, LeasebeatMailboxFactory(client, extension=extension)) if reply_resolver is None else reply_resolver
        )
        self._extension = extension
        self._worker_id = worker_id or default_worker_id()
        self._receivers = _Receivers(client, self._worker_id)
        weakref.finalize(self, self._receivers.close).atexit = False  # its threads end with it, though nobody closes it

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self._name!r})"

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._name

    @property
    def closed(self) -> bool:
        """True once closed, or drained by an operator."""
        return self._receivers.closed

    def send(self, body: T, *, reply_to: "Mailbox[R, None] | None" = None) -> str:
        """Store a message, and return its id.

        Args:
            body: A dataclass, or a JSON value.
            reply_to: Where replies go. Its name travels with the message.

        Raises:
            MailboxFullError: If there are `max_size` messages.
            SerializationError: If the body has no JSON form, or is too large.
            MailboxConnectionError: If the service cannot be reached, or cannot serve.
        """
        if self._max_size is not None and self.approximate_count() >= self._max_size:
            raise MailboxFullError(f"mailbox {self._name!r} holds {self._max_size} messages already")
        headers = None if reply_to is None else {REPLY_TO: reply_to.name}
        with _errors_of_the_package():
            return self._in_queue(partial(self._store, body, headers))

    def receive(self, *, max_messages: int = 1, visibility_timeout: int = 30, wait_time_seconds: float = 0) -> "Sequence[Message[T, R]]":
        """Lease messages, oldest first. Empty if there are none, or once the mailbox is closed, which also ends a wait.

        Args:
            max_messages: The most messages to return, 1 to 10; others count as the nearest of these.
            visibility_timeout: Seconds that the messages are invisible to others, 0 to 43200.
            wait_time_seconds: Seconds to wait for a message.

        Raises:
            InvalidParameterError: If a time is out of range.
            SerializationError: If a body cannot be read as `body_type`. That message stays invisible until its timeout.
            MailboxConnectionError: If the service cannot be reached, or cannot serve.
        """
        validate_visibility_timeout(visibility_timeout)
        validate_wait_time(wait_time_seconds)
        with _errors_of_the_package():
            leases = self._claim(
                max_messages=min(max(1, max_messages), MOST_MESSAGES),
                visibility_timeout=max(visibility_timeout, SHORTEST_LEASE_S),
                until=time.monotonic() + wait_time_seconds,
            )
        return self._read_all(leases)

    def purge(self) -> int:
        """Remove all messages, also those that are invisible, and return how many.

        Raises:
            MailboxConnectionError: If the service cannot be reached, or cannot serve.
        """
        with _errors_of_the_package():
            return self._purge_ready() + self._cancel_leased()

    def approximate_count(self) -> int:
        """Count the messages, visible and invisible.

        Raises:
            MailboxConnectionError: If the service cannot be reached, or cannot serve.
        """
        with _errors_of_the_package():
            return self._in_queue(self._count)

    def close(self) -> None:
        """Receive no more, and wake who waits to. Messages that were received can still be settled."""
        self._receivers.close()

    # --- the queue

    def _in_queue(self, call: Callable[[], V]) -> V:
        """Make a call, and before that the queue if the service knows none."""
        try:
            return call()
        except NotFoundError:
            self._make_queue()
            return call()

    def _make_queue(self) -> None:
        self._client.put_queue(self._name, extension=self._extension, beat_interval=0, max_lease=MAX_LEASE_S, max_attempts=MAX_ATTEMPTS)

    def _store(self, body: Any, headers: Mapping[str, str] | None) -> str:
        try:
            json_value = dump(body) if dataclasses.is_dataclass(body) else body
            return self._client.send(self._name, json_value, headers=headers).id
        except (InvalidRequestError, TypeError, ValueError) as error:
            raise SerializationError(f"the body cannot be sent: {error}") from error

    def _count(self) -> int:
        """Count one by one while there are few, and else as the service has counted: what waits is listed with its bodies."""
        figures = self._client.get_queue(self._name).figures
        counted = 0 if figures is None else figures.scheduled + figures.pending + figures.in_progress
        if counted > EXACT:
            return counted
        lists: list[Callable[..., Page[Any]]] = [
            *(partial(self._client.list_messages, self._name, status=status) for status in ("scheduled", "pending")),
            partial(self._client.list_leases, queue=self._name),
        ]
        return sum(1 for get in lists for _ in islice(_listed(partial(get, limit=PAGE)), EXACT))

    def _purge_ready(self) -> int:
        purge = partial(self._client.purge_queue, self._name)
        result = self._in_queue(purge)
        purged = result.purged
        while result.more:
            result = purge()
            purged += result.purged
        return purged

    def _cancel_leased(self) -> int:
        cancelled = 0
        for lease in _listed(partial(self._client.list_leases, queue=self._name, limit=PAGE)):
            with suppress(ConflictError, NotFoundError):  # finished meanwhile
                self._client.cancel_message(lease.message_id)
                cancelled += 1
        return cancelled

    # --- deliveries

    def _claim(self, *, max_messages: int, visibility_timeout: float, until: float) -> Leases:
        while True:
            wait = min(max(0.0, until - time.monotonic()), LONGEST_WAIT_S)
            claim = partial(self._receivers.claim, self._name, max_messages=max_messages, wait=wait, visibility_timeout=visibility_timeout)
            leases = self._in_queue(claim)
            if leases.drain:
                self.close()
            if leases or self.closed or time.monotonic() >= until:
                return leases

    def _read_all(self, leases: Leases) -> "list[Message[T, R]]":
        messages = []
        for lease in leases:
            try:
                messages.append(self._message(lease))
            except SerializationError:
                self._give_back([other for other in leases if other is not lease])
                raise
        return messages

    def _give_back(self, leases: Sequence[Lease]) -> None:
        if leases:
            with suppress(LeasebeatError):  # then they run out by themselves
                self._client.release_many(leases)

    def _message(self, lease: Lease) -> "Message[T, R]":
        """Make the package's message. Its handle only names the delivery: the package shows it, and the receipt is a secret."""
        delivery = _Delivery(self._client, lease, self._worker_id)
        reply_to = lease.message.headers.get(REPLY_TO)
        return Message(
            id=lease.message.id,
            body=self._read(lease.message.body),
            receipt_handle=f"{lease.message.id}:{lease.generation}",
            delivery_count=lease.attempt,
            enqueued_at=lease.message.created_at,
            reply_to=None if reply_to is None else self._resolver.resolve_optional(reply_to),
            _acknowledge_fn=delivery.acknowledge,
            _nack_fn=delivery.nack,
            _extend_fn=delivery.extend_visibility,
        )

    def _read(self, body: Any) -> Any:
        body_type: Any = self._body_type
        if body_type is None:
            return body
        try:
            is_dataclass = dataclasses.is_dataclass(get_origin(body_type) or body_type)
            return parse(body_type, body) if is_dataclass else body_type(body)
        except Exception as error:  # whatever a type raises
            raise SerializationError(f"a body in {self._name!r} cannot be read as {body_type}: {error}") from error


class LeasebeatMailboxFactory(Generic[R]):
    """Makes mailboxes by name, for a resolver of replies.

    Example::

        resolver = CompositeResolver(registry={}, factory=LeasebeatMailboxFactory(client))
    """

    def __init__(self, client: Client, *, body_type: type[R] | None = None, extension: float = DEFAULT_EXTENSION_S) -> None:
        """Describe the mailboxes: all have this client, this type of bodies and this extension in seconds."""
        self._client = client
        self._body_type = body_type
        self._extension = extension

    def create(self, identifier: str) -> "Mailbox[R, None]":
        """Make the mailbox of this name. It costs nothing until it is used."""
        return LeasebeatMailbox(identifier, self._client, body_type=self._body_type, extension=self._extension)


class _Delivery:
    """One delivery of a message: what its callbacks do."""

    def __init__(self, client: Client, lease: Lease, worker_id: str) -> None:
        self._held = HeldMessage(client, lease, worker_id=worker_id)
        self._settled = False  # the service answers a repeat as it did the first time, and the package wants it refused

    def acknowledge(self) -> None:
        with self._settling():
            self._held.ack()

    def nack(self, visibility_timeout: float) -> None:
        with self._settling():
            self._held.nack(delay=visibility_timeout)

    def extend_visibility(self, timeout: float) -> None:
        """Extend for at least `timeout` seconds; 0 ends the delivery, and the message is visible.

        Raises:
            InvalidParameterError: If the queue extends less far. The lease is then extended as far as it does.
            ReceiptHandleExpiredError: If the delivery is over.
        """
        if timeout == 0:
            self.nack(0)
            return
        with _errors_of_the_package():
            expires_in = self._held.extend_visibility().expires_in or 0.0
        if expires_in < timeout:
            raise InvalidParameterError(
                f"message {self._held.id} is extended by {expires_in:.0f} s, not by {timeout}: "
                f"the queue {self._held.lease.message.queue!r} needs a longer `extension`, and a `beat_interval` of 0"
            )

    @contextmanager
    def _settling(self) -> Generator[None, None, None]:
        if self._settled:
            raise ReceiptHandleExpiredError(f"this delivery of message {self._held.id} is over")
        with _errors_of_the_package():
            yield
        self._settled = True


class _Receivers:
    """Long polls of several threads at once, each on a `Claims` of its own, which are kept for the next ones."""

    def __init__(self, client: Client, worker_id: str) -> None:
        self._make = partial(Claims, client.options, worker_id)
        self.closed = False
        self.after_fork()
        reset_in_child(self)

    def after_fork(self) -> None:
        """Begin anew: the threads of the claims are not there in a child."""
        self._lock = threading.Lock()
        self._idle: list[Claims] = []
        self._busy: set[Claims] = set()
        self._closing: SimpleQueue[None] = SimpleQueue()
        self._closer: threading.Thread | None = None

    def claim(self, queue: str, *, max_messages: int, wait: float, visibility_timeout: float) -> Leases:
        """Wait for leases. Nothing once closed.

        Raises:
            LeasebeatError: If the service refused the claim, or did not answer.
        """
        if self.closed:
            return Leases()
        claims = self._take()
        try:
            return claims.claim(queue, max_messages=max_messages, wait=wait, visibility_timeout=visibility_timeout)
        finally:
            self._put_back(claims)

    def close(self) -> None:
        """Let no claim start, and have all end that are under way.

        Another thread ends them: a signal's handler may close at any moment, also when the code that it interrupts holds a lock.
        """
        self.closed = True
        self._closing.put(None)

    def _end_all(self) -> None:
        self._closing.get()
        with self._lock:
            idle, self._idle = self._idle, []
            for claims in self._busy:
                claims.stop()
        for claims in idle:
            claims.__exit__(None, None, None)

    def _take(self) -> Claims:
        with self._lock:
            if self._closer is None:
                self._closer = threading.Thread(target=self._end_all, name="leasebeat-mailbox", daemon=True)
                self._closer.start()
            claims = self._idle.pop() if self._idle else self._make().__enter__()
            self._busy.add(claims)
            if self.closed:
                claims.stop()
            return claims

    def _put_back(self, claims: Claims) -> None:
        with self._lock:
            self._busy.discard(claims)
            if not self.closed:
                self._idle.append(claims)
                return
        claims.__exit__(None, None, None)


@contextmanager
def _errors_of_the_package() -> Generator[None, None, None]:
    """Raise what the package's loops know."""
    try:
        yield
    except LeaseLostError as error:
        raise ReceiptHandleExpiredError(str(error)) from error
    except InvalidRequestError as error:
        raise InvalidParameterError(str(error)) from error
    except LeasebeatError as error:
        raise MailboxConnectionError(str(error)) from error


def _listed(get: Callable[..., Page[V]]) -> Iterator[V]:
    """Go through a list page by page, as far as is asked for."""
    page = get()
    yield from page.items
    while page.next_cursor is not None:
        page = get(cursor=page.next_cursor)
        yield from page.items
