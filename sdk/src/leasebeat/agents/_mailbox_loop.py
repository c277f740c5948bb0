"""`MailboxLoop`: receives requests, and sends the result of each, whatever happens to the work on it."""

import itertools
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Generic, ParamSpec, TypeVar

from leasebeat._errors import GiveUp, InvalidRequestError, LeasebeatError, LeaseLostError, NotFoundError, RetryLater
from leasebeat._failure import MAX_ERROR_CHARS, failure_text, said
from leasebeat._fork import ending_children
from leasebeat._heartbeat import Heartbeat
from leasebeat._lease_extender import LeaseExtender, LeaseExtenderConfig
from leasebeat._nack_terms import nack_terms
from leasebeat._pace import Pace
from leasebeat._retry import Pauses
from leasebeat._signals import stop_on_signals
from leasebeat._wire import encode
from leasebeat.agents._errors import WorkInterruptedError
from leasebeat.agents._limits import Deadline
from leasebeat.agents._mailbox import Mailbox, MailboxMessage, Receiving, plain

_log = logging.getLogger(__name__)

RequestT = TypeVar("RequestT")
ResultT = TypeVar("ResultT")
P = ParamSpec("P")


class MailboxLoop(ABC, Generic[RequestT, ResultT]):
    """Works on the requests of a mailbox, one at a time.

    The beats of its heartbeat extend the lease of the request in hand. When the work is done, the loop makes sure that it still
    has the lease, replies, and acknowledges. A worker that dies between these two has replied, and the request comes again; but
    a message has one reply (see `MailboxMessage.reply`), so that of the next worker is not stored.

    A loop that has lost its lease sends nothing: somebody else may be at work, whose result counts.
    """

    def __init__(self, requests: Mailbox[RequestT, ResultT] | None, lease_extender: LeaseExtenderConfig, drain_timeout: float) -> None:
        self._requests = requests
        self._lease_extender = lease_extender
        self._drain_timeout = drain_timeout
        self._heartbeat = Heartbeat()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._asked_to_stop: deque[None] = deque()
        self._stops = 0
        self._hurry = threading.Event()
        self._receiving: Receiving[RequestT, ResultT] | None = None
        self._deadline = Deadline()
        self._drain_timer: threading.Timer | None = None

    @property
    def heartbeat(self) -> Heartbeat:
        """Beats when a request comes, and for the work on it. A watchdog may look at its `elapsed()`."""
        return self._heartbeat

    def run(self, max_iterations: int | None = None, visibility_timeout: float | None = 300, wait_time_seconds: float = 20) -> None:
        """Work until `stop` is called, SIGTERM or SIGINT arrives, or the service drains this worker.

        In the main thread it handles these signals, each as one call of `stop`.

        What is no `Exception`, such as a `SystemExit`, ends it, except that of a tool, which is the tool's failure: the message in hand is
        nacked before that goes on to the caller, or released if it is a `KeyboardInterrupt`.

        Args:
            max_iterations: How often to ask for a request, whether one comes or not. None: without end.
            visibility_timeout: Length of the leases in seconds. None takes the queue's.
            wait_time_seconds: Seconds to wait for a request each time, at most 50.

        Raises:
            NotFoundError: If the queue does not exist.
            InvalidRequestError: If the service refuses the settings.
            ValueError: If the loop was made without a mailbox.
        """
        if self._requests is None:
            raise ValueError("this loop has no mailbox to run on")
        rounds = itertools.repeat(None) if max_iterations is None else itertools.repeat(None, max_iterations)
        with stop_on_signals(self.stop), self._receive_from(self._requests) as receiving:
            receive = partial(receiving.receive, visibility_timeout=visibility_timeout, wait_time_seconds=wait_time_seconds)
            pace = Pace(self._stopping.wait)
            for _ in rounds:
                self._heed()
                if self._stopping.is_set():
                    return
                self._iterate(receive, pace)

    def stop(self) -> None:
        """Take no more requests, and let `run` return once the one in hand is done. Any thread and signal handler may call it.

        If it is not done in the `drain_timeout` of the configuration, or `stop` is called again, it is given back before the next
        turn, tool, beat of a tool or part of an answer, without counting as an attempt. Once stopped, a loop stays stopped.
        """
        self._asked_to_stop.append(None)  # without a lock, as a signal handler may interrupt a thread that holds it
        receiving = self._receiving
        if receiving is not None:
            receiving.soon(self._heed)

    def _heed(self) -> None:
        """Stop as urgently as has been asked for."""
        with self._lock:
            while self._asked_to_stop:
                self._asked_to_stop.popleft()
                self._stops += 1
            stops = self._stops
        if stops > 1:
            self._give_back()
        if stops:
            self._take_no_more()

    def _be_drained(self) -> None:
        """Stop as the service asks. It repeats that in each answer, so it does not count as a call of `stop`."""
        self._take_no_more()

    def _take_no_more(self) -> None:
        with self._lock:
            if self._stopping.is_set():
                return
            self._stopping.set()
            if self._receiving is None:  # it does not run, so there is nothing to drain
                return
            self._receiving.stop()
            _log.info("Stopping: the request in hand, if there is one, has %.0f s to finish", self._drain_timeout)
            self._drain_timer = threading.Timer(self._drain_timeout, self._give_back)
            self._drain_timer.daemon = True
            self._drain_timer.start()

    def _give_back(self) -> None:
        self._hurry.set()
        self._deadline.cut(WorkInterruptedError("the worker stops"))

    # --- receive

    @contextmanager
    def _receive_from(self, requests: Mailbox[RequestT, ResultT]) -> Generator[Receiving[RequestT, ResultT], None, None]:
        with requests.receiving(self._be_drained) as receiving:
            self._receiving = receiving
            try:
                yield receiving
            finally:
                with self._lock:
                    self._receiving = None
                if self._drain_timer is not None:
                    self._drain_timer.cancel()
                    self._drain_timer.join()

    def _iterate(self, receive: Callable[[], MailboxMessage[RequestT, ResultT] | None], pace: Pace) -> None:
        asked_at = time.monotonic()
        try:
            message = receive()
        except LeasebeatError as error:
            self._heartbeat.beat()  # a service that is away is no stall of this loop
            pace.after_failure(error, "Receiving")
            return
        pace.after_success()
        self._heartbeat.beat()
        if message is None:
            pace.after_nothing(asked_at)
        else:
            with self._given_back_on_exit(message):
                self._handle_message(message)

    # --- work

    @abstractmethod
    def _time_limit(self, request: RequestT) -> float | None:
        """How many seconds a request may take."""

    @abstractmethod
    def _answer(self, request: RequestT, deadline: Deadline) -> ResultT:
        """Do the work. What it raises becomes a failure, except what is for the message: `RetryLater` and `GiveUp`."""

    @abstractmethod
    def _failure(self, request: RequestT, error: Exception) -> ResultT:
        """The result that says what went wrong."""

    def _handle_message(self, message: MailboxMessage[RequestT, ResultT]) -> None:
        """Work on one message, and settle it, unless its lease is lost."""
        try:
            request = message.body
            deadline = self._deadline = Deadline(self._time_limit(request))
        except Exception as error:  # noqa: BLE001 - whatever its sender wrote, it is no better next time
            _log.warning("Message %s is no request", message.id, exc_info=error)
            self._settle(
                message,
                partial(
                    self._patiently, message, message.nack, f"this is no request: {failure_text(error)}"[:MAX_ERROR_CHARS], retryable=False
                ),
            )
            return
        if self._hurry.is_set():
            self._give_back()
        extender = LeaseExtender(self._lease_extender, on_lost=partial(deadline.cut, WorkInterruptedError("the lease is lost")))
        with extender.attach(message, self._heartbeat):
            settle = self._work_on(message, request, deadline)
        if extender.lost.is_set():
            _log.warning("The lease of message %s is lost, so nothing is sent", message.id)
        else:
            self._settle(message, settle)

    def _work_on(self, message: MailboxMessage[RequestT, ResultT], request: RequestT, deadline: Deadline) -> Callable[[], object]:
        """Do the work. Returns what settles the message."""
        try:
            with ending_children():
                result = self._answer(request, deadline)
            encode(plain(result))  # a result without a JSON form is a failure too
        except WorkInterruptedError as error:
            _log.info("The work on message %s stops: %s", message.id, error)
            return partial(self._patiently, message, message.release)
        except (RetryLater, GiveUp) as error:
            return partial(self._patiently, message, message.nack, failure_text(error), **nack_terms(error))
        except Exception as error:  # noqa: BLE001 - the sender of the request is to hear of it
            _log.warning("The request in message %s failed", message.id, exc_info=error)
            result = self._failure(request, error)
        self._heartbeat.beat()  # a result is progress, and the last chance to hear that the lease is lost
        return partial(self._reply_and_ack, message, request, result)

    def _reply_and_ack(self, message: MailboxMessage[RequestT, ResultT], request: RequestT, result: ResultT) -> None:
        """Make sure of the lease, then reply, then acknowledge: so no reply is lost, and none is sent without a lease."""
        self._patiently(message, message.extend_visibility)
        try:
            self._patiently(message, message.reply, result)
            self._patiently(message, message.acknowledge, result)
        except (InvalidRequestError, RecursionError) as error:
            _log.warning("The result for message %s cannot be stored: %s", message.id, error)
            failure = self._failure(request, error)
            self._patiently(message, message.reply, failure)
            self._patiently(message, message.acknowledge, failure)

    @contextmanager
    def _given_back_on_exit(self, message: MailboxMessage[RequestT, ResultT]) -> Generator[None, None, None]:
        """Give a message back before the program ends: untouched if a person ends it, else as a failed attempt, as it may do so again."""
        try:
            yield
        except KeyboardInterrupt:
            self._settle(message, message.release)
            raise
        except BaseException as error:
            self._settle(message, partial(message.nack, failure_text(error)))
            raise

    def _settle(self, message: MailboxMessage[RequestT, ResultT], settle: Callable[[], object]) -> None:
        """Settle a message, as a failed attempt if its result cannot be sent. What is not settled is for the next worker."""
        try:
            try:
                settle()
            except (InvalidRequestError, NotFoundError) as error:
                self._patiently(message, message.nack, f"the result cannot be sent: {error}")
        except LeasebeatError as error:
            _log.warning("Message %s could not be settled: %s", message.id, error)

    def _patiently(self, message: MailboxMessage[RequestT, ResultT], call: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Make a call, and repeat it while it fails, until the lease has run out, or this loop is in a hurry to stop.

        There is no beat meanwhile: a call that the service cannot do, though it can do beats, must not hold the lease for ever.
        """
        backoff = Pauses()
        while True:
            in_hurry = self._hurry.is_set()
            try:
                call(*args, **kwargs)
            except (LeaseLostError, InvalidRequestError, NotFoundError):
                raise
            except LeasebeatError as error:
                pause = backoff.pause(error.retry_after)
                if in_hurry or time.monotonic() + pause >= message.valid_until:
                    raise
                _log.warning("A call for message %s failed and is repeated: %s", message.id, error)
                self._hurry.wait(pause)
            else:
                return


def text_of(error: BaseException) -> str:
    """What an error says, or what it is if it says nothing."""
    return said(error) or type(error).__name__
