"""`Worker`: leases messages, runs a handler for each, beats while the work moves, and settles."""

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, nullcontext
from itertools import cycle
from typing import Self

from leasebeat._beat_sender import BeatSender
from leasebeat._claims import Claims
from leasebeat._client import Client
from leasebeat._context import Context
from leasebeat._errors import ApiError, InvalidRequestError, LeasebeatError
from leasebeat._leases import Lease
from leasebeat._loop_thread import LoopThread
from leasebeat._retry import Pauses
from leasebeat._signals import stop_on_signals
from leasebeat._task import FLUSH_TIMEOUT_S, Handler, Task
from leasebeat._tracked_lease import TrackedLease
from leasebeat._version import __version__

_log = logging.getLogger(__name__)

MAX_CONCURRENCY = 1000  # as many leases as one call may name
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0
SHORTEST_ROUND_S = 0.25
WAIT_WITH_SEVERAL_QUEUES_S = 1.0

CANCEL_TIMEOUT_S = 1.0

_HOST = socket.gethostname()[:150]  # leaves room in a worker's id

# What the second and third call of `stop` ask for.
RELEASE_NOW = 2
ABANDON = 3


class Worker:
    """Works on the messages of one or more queues.

    Example::

        def handle(message, context):
            for done, chunk in enumerate(read(message.body["file"])):
                transcode(chunk)
                context.beat(progress=done)
            return {"chunks": done}

        Worker("http://127.0.0.1:8080", "default", handle, concurrency=4).run()

    What a handler returns is the output of the ack. An exception is a nack with its text; `GiveUp` and `RetryLater` say
    what is to become of the message. A handler that does not beat loses its lease when that runs out, and somebody else
    gets the message.
    """

    def __init__(
        self,
        service: Client | str,
        queues: str | Iterable[str],
        handler: Handler,
        *,
        worker_id: str | None = None,
        version: str = __version__,
        concurrency: int = 1,
        wait: float = 20.0,
        visibility_timeout: float | None = None,
        drain_timeout: float = 30.0,
    ) -> None:
        """Describe a worker. Nothing starts before `run`.

        Args:
            service: A client, or the address of the service.
            queues: The queue to work on, or several that are asked in turn.
            handler: Called with the message and a `Context`: in a thread, or in an event loop if it is a coroutine function.
            worker_id: Who works, for people and figures. Host, process and a random part if left out.
            version: Which version of the work it does, for the registry. That of this SDK if left out.
            concurrency: How many messages to work on at once, 1 to 1000. No more than these are ever leased.
            wait: Seconds that a claim waits for work, at most 50. With several queues, 1 second at most.
            visibility_timeout: Length of the leases in seconds. None takes the queue's.
            drain_timeout: Seconds that handlers have to finish once the worker stops. What is left then is released.

        Raises:
            ValueError: If there is no queue, or `concurrency` is out of range.
        """
        self._queues = [queues] if isinstance(queues, str) else list(queues)
        if not self._queues or not 1 <= concurrency <= MAX_CONCURRENCY:
            raise ValueError(f"a worker needs at least one queue, and a concurrency from 1 to {MAX_CONCURRENCY}")
        self._client = Client(service) if isinstance(service, str) else service
        self._owns_client = isinstance(service, str)
        self._handler = handler
        self._worker_id = worker_id
        self._version = version
        self._concurrency = concurrency
        self._wait = wait if len(self._queues) == 1 else min(wait, WAIT_WITH_SEVERAL_QUEUES_S)
        self._visibility_timeout = visibility_timeout
        self._drain_timeout = drain_timeout
        self._stopping = threading.Event()
        self._stops = 0
        self._changed = threading.Condition()
        self._tasks: set[Task] = set()
        self._run: _Run | None = None

    def run(self) -> None:
        """Work until `stop` is called, SIGTERM or SIGINT arrives, or the service drains this worker.

        Returns when everything is settled or given back.

        In the main thread it handles these signals, each as one call of `stop`. A worker runs once.

        Raises:
            NotFoundError: If a queue does not exist.
            InvalidRequestError: If the service refuses the settings.
            RuntimeError: If it has run before.
        """
        with self._changed:
            if self._run is not None:
                raise RuntimeError("a Worker runs once")
            self._run = _Run(self._client, self._worker_id or _default_worker_id(), self._version, self._be_drained)
        with self._client if self._owns_client else nullcontext(), stop_on_signals(self.stop), self._run as run:
            try:
                self._work(run)
            finally:
                self._stopping.set()
                self._drain(run)

    def stop(self) -> None:
        """Take no more messages, and let `run` return once the handlers are done. Safe to call from any thread.

        A second call does not wait for the handlers, but releases their messages; a third does not even wait for acks under way.
        """
        with self._changed:
            self._stops += 1
            self._take_no_more()

    def _be_drained(self) -> None:
        """Stop as the service asks. It repeats that in each answer, so it does not count as a call of `stop`."""
        with self._changed:
            if not self._stopping.is_set():
                _log.info("The service drains this worker, which takes no more messages")
                self._take_no_more()

    def _take_no_more(self) -> None:
        self._stopping.set()
        if self._run is not None:
            self._run.claims.stop()
        self._changed.notify_all()

    # --- work

    def _work(self, run: "_Run") -> None:
        """Claim as many messages as can start now, until stopped."""
        backoff = Pauses(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        queues = cycle(self._queues)
        empty = 0  # claims in a row that found nothing
        while free := self._wait_for_free_slots():
            queue = next(queues)
            patient = empty >= len(self._queues) - 1  # once all the others had nothing either
            wait = self._wait if patient else 0.0
            asked_at = time.monotonic()
            try:
                leases = run.claims.claim(queue, max_messages=free, wait=wait, visibility_timeout=self._visibility_timeout)
            except LeasebeatError as error:
                if _is_lasting(error):
                    raise
                pause = backoff.pause(getattr(error, "retry_after", None))
                _log.warning("Claiming from %s failed, next try in %.1f s: %s", queue, pause, error)
                self._stopping.wait(pause)
                continue
            backoff.reset()
            for lease in leases:
                self._start(run, lease)
            if leases.drain:
                self._be_drained()
            empty = 0 if leases or patient else empty + 1
            if patient and not leases:  # never ask in a tight loop, whether we are not to wait or the service does not
                self._stopping.wait(asked_at + SHORTEST_ROUND_S - time.monotonic())

    def _wait_for_free_slots(self) -> int:
        """How many handlers can start now; 0 once stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping.is_set() or len(self._tasks) < self._concurrency)
            return 0 if self._stopping.is_set() else self._concurrency - len(self._tasks)

    def _start(self, run: "_Run", lease: Lease) -> None:
        tracked = TrackedLease(lease)
        context = Context(lease, tracked, run.sender, worker_id=run.worker_id, stopping=self._stopping)
        task = Task(lease, context, tracked, client=self._client, sender=run.sender, hurry=run.hurry)
        run.sender.track(tracked)
        with self._changed:
            self._tasks.add(task)
        task.start(self._handler, run.handlers, self._done)

    def _done(self, task: Task) -> None:
        with self._changed:
            self._tasks.discard(task)
            self._changed.notify_all()

    # --- drain

    def _drain(self, run: "_Run") -> None:
        """Let handlers finish, release what does not, and wait until every ack is answered. Beats go on all the while."""
        self._wait_for_handlers()
        run.hurry.set()
        released = self._release_rest(run)
        with self._changed:
            self._changed.wait_for(lambda: self._stops >= ABANDON or not self._tasks - released)

    def _wait_for_handlers(self) -> None:
        with self._changed:
            if self._tasks:
                _log.info("Stopping: %d handlers have %.0f s to finish", len(self._tasks), self._drain_timeout)
            self._changed.wait_for(lambda: self._stops >= RELEASE_NOW or not self._tasks, self._drain_timeout)

    def _release_rest(self, run: "_Run") -> set[Task]:
        """Give back what still runs, with its last report. Returns the tasks it was taken from."""
        with self._changed:
            running = list(self._tasks)
        run.sender.flush([task.tracked for task in running], timeout=FLUSH_TIMEOUT_S)
        unfinished = {task for task in running if task.tracked.begin_settling(loss="settled")}
        for task in unfinished:
            run.sender.forget(task.tracked)
            task.cancel()
        until = time.monotonic() + CANCEL_TIMEOUT_S
        for task in unfinished:
            task.wait_cancelled(until)
        self._release([task.tracked for task in unfinished])
        return unfinished

    def _release(self, leases: Sequence[TrackedLease]) -> None:
        if not leases:
            return
        try:
            results = self._client.release_many([lease.receipt for lease in leases])
        except LeasebeatError as error:
            _log.warning("%d leases could not be released and run out by themselves: %s", len(leases), error)
            return
        for lease, result in zip(leases, results, strict=True):
            if not result.succeeded:
                _log.warning("The release of message %s failed: %s", lease.message_id, result.status)
        _log.info("Released %d leases", sum(result.succeeded for result in results))


class _Run:
    """What exists only while a worker runs: threads, and connections of their own."""

    def __init__(self, client: Client, worker_id: str, version: str, on_drain: Callable[[], None]) -> None:
        self.worker_id = worker_id
        self.claims = Claims(client.options, worker_id, host=_HOST, version=version)
        self.sender = BeatSender(client.options, worker_id, on_drain)
        self.handlers = LoopThread("leasebeat-handlers")
        self.hurry = threading.Event()  # set once a drain has used up its time
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._open.callback(self.sender.close)
        self._open.enter_context(self.handlers)
        self._open.enter_context(self.claims)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()


def _is_lasting(error: LeasebeatError) -> bool:
    """Whether a claim would fail again and again: the settings are wrong, or the queue's name is."""
    return isinstance(error, InvalidRequestError) or (isinstance(error, ApiError) and error.code == "queue-not-found")


def _default_worker_id() -> str:
    return f"{_HOST}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
