"""`Task`: one lease from its grant to its settlement, in a thread of its own."""

import concurrent.futures
import inspect
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from leasebeat._beat_sender import BeatSender
from leasebeat._client import Client
from leasebeat._context import Context
from leasebeat._errors import GiveUp, InvalidRequestError, LeasebeatError, LeaseLostError, RetryLater, ServerError
from leasebeat._leases import Ack, Lease, Nack, Verdict
from leasebeat._loop_thread import LoopThread
from leasebeat._messages import LeasedMessage
from leasebeat._retry import Pauses
from leasebeat._tracked_lease import TrackedLease

_log = logging.getLogger(__name__)

Handler = Callable[[LeasedMessage, Context], Any]
"""Does the work of one message and returns its output. A coroutine function is awaited in an event loop of its own thread."""

MAX_ERROR_CHARS = 8192
FLUSH_TIMEOUT_S = 2.0
LATE_ACK_GRACE_S = 30.0  # the service takes a late ack while nobody else has leased the message, so finished work is worth some tries


class Task:
    """Runs the handler for one lease, and settles it: the result is its ack, an exception its nack.

    It settles patiently: until the service answers or the lease has run out, and an ack for a while beyond.
    """

    def __init__(
        self, lease: Lease, context: Context, tracked: TrackedLease, *, client: Client, sender: BeatSender, hurry: threading.Event
    ) -> None:
        """Describe the work.

        Args:
            lease: The lease to work under.
            context: What the handler gets besides the message.
            tracked: The lease as handler, sender and this task see it.
            client: Settles.
            sender: Beats while it settles.
            hurry: Once set, an ack is tried no longer than its lease lasts.
        """
        self.tracked = tracked
        self._lease = lease
        self._context = context
        self._client = client
        self._sender = sender
        self._hurry = hurry
        self._coroutine: concurrent.futures.Future[Any] | None = None
        self._ended = threading.Event()  # the future of a cancelled coroutine is done before the coroutine is

    def start(self, handler: Handler, loop: LoopThread, done: Callable[["Task"], None]) -> None:
        """Work in a thread of its own, then call `done`. The thread does not keep the process alive if the handler hangs."""
        name = f"leasebeat-message-{self.tracked.message_id}"
        threading.Thread(target=self._run, args=(handler, loop, done), name=name, daemon=True).start()

    def cancel(self) -> None:
        """Cancel the handler if it is a coroutine. A handler in a thread hears from its context."""
        if self._coroutine is not None:
            self._coroutine.cancel()

    def wait_cancelled(self, until: float) -> None:
        """Wait until a cancelled coroutine has ended, at most until a moment on `time.monotonic()`."""
        if self._coroutine is not None:
            self._ended.wait(max(0.0, until - time.monotonic()))

    # --- work

    def _run(self, handler: Handler, loop: LoopThread, done: Callable[["Task"], None]) -> None:
        process = os.getpid()
        try:
            output = self._work(handler, loop)
        except BaseException as error:  # noqa: BLE001 - whatever ends a handler, SystemExit included, ends its attempt
            settle = partial(self._nack, error)
        else:
            settle = partial(self._ack, output)
        if os.getpid() != process:
            return  # a child that the handler forked and let go on: the message is its parent's to settle
        try:
            settle()
        finally:
            self._sender.forget(self.tracked)
            done(self)

    def _work(self, handler: Handler, loop: LoopThread) -> Any:
        result = handler(self._lease.message, self._context)
        if not inspect.iscoroutine(result):
            return result
        self._coroutine = loop.submit(self._await(result))
        return self._coroutine.result()

    async def _await(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await work
        finally:
            self._ended.set()

    # --- settle

    def _ack(self, output: Any) -> None:
        """Ack, also a lease that is lost: the service takes a late result if nobody else is at work, and keeps it if so."""
        if not self.tracked.begin_settling():
            return
        try:
            self._settle("ack", lambda: self._client.ack_many([Ack(self.tracked.receipt, output)])[0], grace=LATE_ACK_GRACE_S)
        except (InvalidRequestError, TypeError, ValueError, RecursionError) as error:
            _log.warning("The output of message %s cannot be stored: %s", self.tracked.message_id, error)
            self._send_nack(Nack(self.tracked.receipt, _text(error)))

    def _nack(self, error: BaseException) -> None:
        """Nack with the error's text, after the last report has gone out. A lost lease is not the handler's to nack."""
        loss = self.tracked.loss
        if loss is not None or not self.tracked.begin_settling():
            self._log_abandoned(error, loss)
            return
        self._log_failure(error)
        self._sender.flush([self.tracked], timeout=min(FLUSH_TIMEOUT_S, max(self.tracked.remaining() / 2, 0.0)))
        delay = error.delay if isinstance(error, RetryLater) else None  # then the queue's backoff decides
        self._send_nack(Nack(self.tracked.receipt, _text(error), delay, retryable=not isinstance(error, GiveUp)))

    def _send_nack(self, nack: Nack) -> None:
        try:
            self._settle("nack", lambda: self._client.nack_many([nack])[0])
        except (InvalidRequestError, TypeError, ValueError) as error:
            _log.warning("The nack of message %s is repeated without its error: %s", self.tracked.message_id, error)
            self._settle("nack", lambda: self._client.nack_many([Nack(nack.lease, retryable=nack.retryable)])[0])

    def _settle(self, verb: str, send: Callable[[], Verdict], *, grace: float = 0.0) -> None:
        backoff = Pauses()
        level = logging.WARNING  # once per outage, not once per try
        while True:
            try:
                verdict = send()
                verdict.raise_if_refused(self.tracked.message_id)
            except LeaseLostError as error:
                _log.warning("The %s of message %s was refused: %s", verb, self.tracked.message_id, error.status)
                return
            except InvalidRequestError:
                raise
            except LeasebeatError as error:
                row_refused = isinstance(error, ServerError) and error.code == "row-refused"
                if not self._wait(backoff.pause(getattr(error, "retry_after", None)), grace, beating=not row_refused):
                    _log.warning("The %s of message %s is given up: %s", verb, self.tracked.message_id, error)
                    return
                _log.log(level, "The %s of message %s failed and is repeated: %s", verb, self.tracked.message_id, error)
                level = logging.DEBUG
            else:
                return

    def _wait(self, seconds: float, grace: float, *, beating: bool) -> bool:
        """Wait before the next try. False if the time for tries is over before.

        A result on its way is work, so it is beaten for; one that the database refuses is not, or it would hold its lease for ever.
        """
        in_time = self.tracked.remaining() > seconds
        hurried = self._hurry.is_set()
        if not in_time and (hurried or self.tracked.remaining() + grace <= seconds):
            return False
        if beating and self.tracked.move():
            self._sender.wake()
        if hurried:
            time.sleep(seconds)
        else:
            self._hurry.wait(seconds)
        return True

    def _log_failure(self, error: BaseException) -> None:
        if isinstance(error, GiveUp | RetryLater):
            _log.info("Handler of message %s ended with %s", self.tracked.message_id, _text(error))
        else:
            _log.warning("Handler of message %s failed", self.tracked.message_id, exc_info=error)

    def _log_abandoned(self, error: BaseException, loss: LeaseLostError | None) -> None:
        own = isinstance(error, LeaseLostError | concurrent.futures.CancelledError)
        _log.info("Handler of message %s stopped: %s", self.tracked.message_id, loss or "released", exc_info=None if own else error)


def _text(error: BaseException) -> str:
    """What the service keeps of an error: its type and message, without what no service could store."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - an error that cannot say what it is still ends the attempt
        said = ""
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()[:MAX_ERROR_CHARS]
