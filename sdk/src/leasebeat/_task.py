"""`Task`: one lease from its grant to its settlement, in a thread of its own."""

import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from leasebeat._beat_sender import BeatSender
from leasebeat._client import Client
from leasebeat._context import Context
from leasebeat._errors import GiveUp, InvalidRequestError, LeasebeatError, LeaseLostError, RetryLater
from leasebeat._failure import failure_text
from leasebeat._fork import ending_children
from leasebeat._handlers import GiveBack, HandlerCall
from leasebeat._leases import Ack, Nack, Verdict
from leasebeat._nack_terms import UNSTORABLE, nack_terms
from leasebeat._retry import Pauses
from leasebeat._tracing import processing
from leasebeat._tracked_lease import TrackedLease

_log = logging.getLogger(__name__)

FLUSH_TIMEOUT_S = 2.0
LATE_ACK_GRACE_S = 30.0  # the service takes a late ack while nobody else has leased the message, so finished work is worth some tries


class Task:
    """Runs the handler for one lease, and settles it: the result is its ack, an exception its nack.

    It settles patiently: until the service answers or the lease has run out, and an ack for a while beyond. What the service refuses
    as invalid is not tried again as it is. Other refusals, such as 401, 403 and 404, are those of something in front of the service,
    which may be in the middle of a deployment: they are tried again while the lease lasts, but it is not beaten for, so it ends soon.
    """

    def __init__(
        self,
        context: Context,
        tracked: TrackedLease,
        call: HandlerCall,
        *,
        client: Client,
        sender: BeatSender,
        hurry: threading.Event,
    ) -> None:
        """Describe the work.

        Args:
            context: What the handler gets besides the message.
            tracked: The lease to work under, as handler, sender and this task see it.
            call: Runs the handler.
            client: Settles.
            sender: Beats while it settles.
            hurry: Once set, an ack is tried no longer than its lease lasts.
        """
        self.tracked = tracked
        self._context = context
        self._call = call
        self._client = client
        self._sender = sender
        self._hurry = hurry
        self._handling = False

    @property
    def silence(self) -> float:
        """Seconds since the handler began or last beat; 0 once it has ended."""
        return self._context.heartbeat.elapsed() if self._handling else 0.0

    def start(self, done: Callable[["Task"], None]) -> None:
        """Work in a thread of its own, then call `done`. The thread does not keep the process alive if the handler hangs.

        Raises:
            RuntimeError: If there is no thread to be had. Then `done` has been called, and nothing else.
        """
        name = f"leasebeat-message-{self.tracked.message_id}"
        try:
            self._sender.track(self.tracked)
            threading.Thread(target=self._run, args=(done,), name=name, daemon=True).start()
        except RuntimeError:
            self._end(done)
            raise

    def cancel(self) -> None:
        """Cancel the handler, if it can be. A handler in a thread hears from its context."""
        self._call.cancel()

    def wait_cancelled(self, until: float) -> None:
        """Wait until a cancelled handler has ended, at most until a moment on `time.monotonic()`."""
        self._call.wait_cancelled(until)

    # --- work

    def _run(self, done: Callable[["Task"], None]) -> None:
        try:
            self._process_message()
        finally:
            self._end(done)

    def _end(self, done: Callable[["Task"], None]) -> None:
        try:
            self._sender.forget(self.tracked)
            self._call.close()
        finally:
            done(self)

    def _process_message(self) -> None:
        with processing(self._context.message) as fail:
            try:
                output = self._handle()
            except GiveBack:
                self._give_back()
            except BaseException as error:  # noqa: BLE001 - whatever ends a handler, SystemExit included, ends its attempt
                fail(error)
                self._nack(error)
            else:
                self._ack(output)

    def _handle(self) -> Any:
        self.tracked.raise_if_lost()  # the process may have stood still since the lease was granted
        self._handling = True
        try:
            with ending_children():
                return self._call.run()
        finally:
            self._handling = False

    # --- settle

    def _ack(self, output: Any) -> None:
        """Ack, also a lease that is lost: the service takes a late result if nobody else is at work, and keeps it if so."""
        if not self.tracked.begin_settling():
            return
        try:
            self._settle("ack", lambda: self._client.ack_many([Ack(self.tracked.lease, output)])[0], grace=LATE_ACK_GRACE_S)
        except UNSTORABLE as error:
            _log.warning("The output of message %s cannot be stored: %s", self.tracked.message_id, error)
            self._send_nack(Nack(self.tracked.lease, failure_text(error)))

    def _nack(self, error: BaseException) -> None:
        """Nack with the error's text, after the last report has gone out. A lost lease is not the handler's to nack."""
        loss = self.tracked.loss
        if loss is not None or not self.tracked.begin_settling():
            self._log_abandoned(error, loss)
            return
        self._log_failure(error)
        self._send_last_report()
        self._send_nack(Nack(self.tracked.lease, failure_text(error), **nack_terms(error)))

    def _send_nack(self, nack: Nack) -> None:
        try:
            self._settle_nack(nack)
        except UNSTORABLE as error:
            _log.warning("The nack of message %s is repeated without its error: %s", self.tracked.message_id, error)
            try:
                self._settle_nack(Nack(nack.lease, retryable=nack.retryable))
            except InvalidRequestError as refusal:
                _log.warning("The nack of message %s is refused, so its lease runs out: %s", self.tracked.message_id, refusal)

    def _give_back(self) -> None:
        """Release, after the last report has gone out."""
        if self.tracked.loss is not None or not self.tracked.begin_settling():
            return
        self._send_last_report()
        try:
            self._settle("release", lambda: self._client.release_many([self.tracked.lease])[0])
        except InvalidRequestError as refusal:
            _log.warning("The release of message %s is refused, so its lease runs out: %s", self.tracked.message_id, refusal)

    def _send_last_report(self) -> None:
        self._sender.flush([self.tracked], timeout=min(FLUSH_TIMEOUT_S, max(self.tracked.remaining() / 2, 0.0)))

    def _settle_nack(self, nack: Nack) -> None:
        self._settle("nack", lambda: self._client.nack_many([replace(nack, lease=self.tracked.lease)])[0])

    def _settle(self, verb: str, send: Callable[[], Verdict], *, grace: float = 0.0) -> None:
        backoff = Pauses()
        level = logging.WARNING  # once per outage, not once per try
        beaten_until = time.monotonic() + LATE_ACK_GRACE_S
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
                beating = error.passing or (time.monotonic() < beaten_until and not _is_refused(error))
                pause = backoff.pause(error.retry_after)
                if not self._wait(pause, 0.0 if error.turned_away else grace, beating=beating):
                    _log.warning("The %s of message %s is given up: %s", verb, self.tracked.message_id, error)
                    return
                _log.log(level, "The %s of message %s failed and is repeated: %s", verb, self.tracked.message_id, error)
                level = logging.DEBUG
            else:
                return

    def _wait(self, seconds: float, grace: float, *, beating: bool) -> bool:
        """Wait before the next try. False if the time for tries is over before.

        A result on its way is work, so it is beaten for; one that the service answers and does not take is not for long, or it would
        hold its lease for ever.
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
            _log.info("Handler of message %s ended with %s", self.tracked.message_id, failure_text(error))
        else:
            _log.warning("Handler of message %s failed", self.tracked.message_id, exc_info=error)

    def _log_abandoned(self, error: BaseException, loss: LeaseLostError | None) -> None:
        own = isinstance(error, LeaseLostError | concurrent.futures.CancelledError)
        _log.info("Handler of message %s stopped: %s", self.tracked.message_id, loss or "released", exc_info=None if own else error)


def _is_refused(error: LeasebeatError) -> bool:
    """Whether the call was answered, and may well be answered so again."""
    return error.turned_away or getattr(error, "code", None) == "row-refused"
