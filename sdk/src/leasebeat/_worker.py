"""`Worker`: leases messages, runs a handler for each, beats while the work moves, and settles."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Self

from leasebeat._beat_sender import BeatSender
from leasebeat._claims import Claims
from leasebeat._client import Client
from leasebeat._context import Context
from leasebeat._errors import LeasebeatError
from leasebeat._handlers import Handler, Handlers, ThreadHandlers
from leasebeat._identity import default_worker_id
from leasebeat._leases import Lease, Leases
from leasebeat._once_used import OnceUsed
from leasebeat._pace import Pace, is_missing_queue
from leasebeat._preferences import Preferences
from leasebeat._process_pool import ProcessHandlers, check_importable
from leasebeat._retry import Pauses, RetryPolicy
from leasebeat._signals import stop_on_signals
from leasebeat._task import FLUSH_TIMEOUT_S, Task
from leasebeat._tracked_lease import TrackedLease
from leasebeat._version import __version__

if TYPE_CHECKING:
    from leasebeat import _health_server as health
else:
    health = OnceUsed("leasebeat._health_server")

_log = logging.getLogger(__name__)

MAX_CONCURRENCY = 1000  # as many leases as one call may name
WAIT_WITH_SEVERAL_QUEUES_S = 1.0
UNREACHED_S = 30.0  # without an answered claim, though it is tried: no longer ready

CANCEL_TIMEOUT_S = 1.0

# How urgent it is to stop: what the first, second and third call of `stop` ask for, whatever `release_now` asks for besides.
DRAIN = 1
RELEASE_NOW = 2
ABANDON = 3


class Worker:
    """Works on the messages of one or more queues, in the order of preference in which they are given.

    A later queue is asked only when those before it have nothing ready. One that is deleted while the worker runs is left out until it
    exists again.

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
        drain_timeout: float = 20.0,
        processes: bool = False,
        health_port: int | None = None,
        health_host: str = "",
        stall_threshold: float = 720.0,
    ) -> None:
        """Describe a worker. Nothing starts before `run`.

        Args:
            service: A client, or the address of the service.
            queues: The queue to work on, or several, the one preferred first.
            handler: Called with the message and a `Context`: in a thread, or in an event loop if it is a coroutine function. A coroutine
                that goes on after its lease is lost is cancelled after 2 s.
            worker_id: Who works, for people and figures. Host, process and a random part if left out.
            version: Which version of the work it does, for the registry. That of this SDK if left out.
            concurrency: How many messages to work on at once, 1 to 1000. No more than these are ever leased.
            wait: Seconds that a claim waits for work, at most 50. With several queues, 1 second at most.
            visibility_timeout: Length of the leases in seconds. None takes the queue's.
            drain_timeout: Seconds that handlers have to finish once the worker stops. What is left then is released, which may take
                some seconds more. So let it be some 10 s shorter than what the platform gives a process between SIGTERM and SIGKILL, which
                is 30 s in Kubernetes.
            processes: Run handlers in processes, `concurrency` of them, each for one message after another: for work that keeps the
                interpreter busy. The handler must be importable by name. A process whose lease is lost, or that is not done when the
                drain ends, is ended. POSIX only.
            health_port: Where to answer the probes of a platform: `GET /health/live` is 200 unless a handler has not beaten for
                `stall_threshold`, `GET /health/ready` is 200 while the worker takes work; 503 if not. None answers none.
            health_host: The address to answer them on. Empty is every address of IPv4.
            stall_threshold: Seconds without a beat after which a handler counts as stalled. It loses its lease on its own; this is
                for whoever starts the process anew.

        Raises:
            ValueError: If there is no queue, a number is out of range, or a handler for processes cannot be imported by name.
        """
        if not (1 <= concurrency <= MAX_CONCURRENCY and stall_threshold > 0):
            raise ValueError(f"a worker needs a concurrency from 1 to {MAX_CONCURRENCY}, and a positive stall_threshold")
        self._queues = Preferences([queues] if isinstance(queues, str) else queues)
        self._client = Client(service) if isinstance(service, str) else service
        self._owns_client = isinstance(service, str)
        self._worker_id = worker_id
        self._version = version
        self._concurrency = concurrency
        self._wait = wait if len(self._queues) == 1 else min(wait, WAIT_WITH_SEVERAL_QUEUES_S)
        self._visibility_timeout = visibility_timeout
        self._drain_timeout = drain_timeout
        self._stall_threshold = stall_threshold
        self._stopping = threading.Event()
        self._make_handlers: Callable[[], Handlers] = partial(ThreadHandlers, handler)
        if processes:
            check_importable(handler)
            self._make_handlers = partial(ProcessHandlers, handler, concurrency, self._stopping)
        self._health = nullcontext() if health_port is None else self._probed(health_host, health_port)
        self._polling = False
        self._pace = Pace(self._stopping.wait)
        self._unreached_since: float | None = None
        self._asked_to_stop: deque[int] = deque()  # how urgently
        self._stops = 0
        self._urgency = 0
        self._changed = threading.Condition()
        self._tasks: set[Task] = set()
        self._has_run = False
        self._run: _Run | None = None

    def run(self) -> None:
        """Work until `stop` is called, SIGTERM or SIGINT arrives, or the service drains this worker.

        Returns when everything is settled or given back.

        In the main thread it handles these signals, each as one call of `stop`. A worker runs once.

        Raises:
            NotFoundError: If no queue exists.
            InvalidRequestError: If the service refuses the settings.
            RuntimeError: If it has run before, or the system has no thread for it.
            OSError: If the health port is taken, or the system has no process (EAGAIN) or open file (EMFILE) for it.
            LeasebeatError: If the processes for handlers do not start.
        """
        with self._changed:
            if self._has_run:
                raise RuntimeError("a Worker runs once")
            self._has_run = True
        with self._client if self._owns_client else nullcontext(), self._health, stop_on_signals(self.stop), self._begin() as run:
            try:
                self._work(run)
            finally:
                self._stopping.set()
                self._drain(run)

    def _begin(self) -> "_Run":
        with self._changed:
            worker_id = self._worker_id or default_worker_id()
            self._run = _Run(self._client, worker_id, self._version, self._make_handlers(), self._be_drained)
            self._heed()
            return self._run

    def stop(self) -> None:
        """Take no more messages, and let `run` return once the handlers are done. Any thread and signal handler may call it.

        A second call does not wait for the handlers, but releases their messages; a third does not even wait for acks under way.
        """
        self._ask_to_stop(DRAIN)

    def release_now(self) -> None:
        """Stop, and do not wait for the handlers, but release their messages, as a second call of `stop` does.

        For who knows that they will not finish, and need not wait for the end of `drain_timeout`. Repeating it asks for no more. Any
        thread and signal handler may call it.
        """
        self._ask_to_stop(RELEASE_NOW)

    def _ask_to_stop(self, urgency: int) -> None:
        """Leave word, without a lock, as a signal handler may interrupt a thread that holds it."""
        self._asked_to_stop.append(urgency)
        run = self._run
        if run is not None:
            run.claims.soon(self._heed)

    def _heed(self) -> None:
        """Stop as urgently as has been asked for."""
        with self._changed:
            while self._asked_to_stop:
                urgency = self._asked_to_stop.popleft()
                self._stops += urgency == DRAIN
                self._urgency = max(self._urgency, urgency, self._stops)
            if self._urgency:
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
        self._polling = True
        alone = len(self._queues) == 1
        patient = alone  # with several, once all had nothing
        while free := self._wait_for_free_slots(run):
            asked_at = time.monotonic()
            found = self._ask_all(run, free, self._wait if patient else 0.0)
            if patient and not found:
                self._pace.after_nothing(asked_at)
            patient = alone or not found

    def _ask_all(self, run: "_Run", free: int, wait: float) -> int:
        """Ask the queues by preference until `free` slots are taken. Only the first is waited for, so that none before it is overlooked.

        Returns how many are taken.
        """
        found = 0
        for queue in self._queues.to_ask():
            found += self._ask(run, queue, free - found, wait)
            wait = 0.0
            if found >= free or self._stopping.is_set():
                break
        return found

    def _ask(self, run: "_Run", queue: str, free: int, wait: float) -> int:
        """Claim from one queue, and start on what it grants: nothing, after a pause, if that fails, or if only this queue is missing.

        Returns how many slots are taken.
        """
        asked_at = time.monotonic()
        try:
            leases = run.claims.claim(queue, max_messages=free, wait=wait, visibility_timeout=self._visibility_timeout)
        except LeasebeatError as error:
            if not (is_missing_queue(error) and self._queues.note_missing(queue)):
                self._unreached_since = self._unreached_since or asked_at
                self._pace.after_failure(error, f"Claiming from {queue}")
            return 0
        self._unreached_since = None
        self._queues.note_found(queue)
        started = self._start_all(run, queue, leases)
        if leases.drain:
            self._be_drained()
        return started

    def _wait_for_free_slots(self, run: "_Run") -> int:
        """How many handlers can start now; 0 once stopped.

        While there is no slot, there is none either for what a failed claim of another queue may have been granted: it is given back.
        """
        backoff = Pauses()
        while not self._has_free_slots(within=backoff.pause() if run.claims.has_unanswered else None):
            run.claims.give_back_unanswered()
        return 0 if self._stopping.is_set() else self._concurrency - len(self._tasks)

    def _has_free_slots(self, within: float | None) -> bool:
        """Wait for free slots, or for the word to stop, at most so many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._stopping.is_set() or len(self._tasks) < self._concurrency, within)

    def _start_all(self, run: "_Run", queue: str, leases: Leases) -> int:
        """Start a task for each lease. What the system has no thread for is given back, as if its claim had failed.

        Returns how many have started.
        """
        for started, lease in enumerate(leases):
            try:
                self._start(run, lease)
            except RuntimeError as error:
                self._release(leases[started:])
                self._pace.after_failure(error, f"Starting on messages of {queue}")
                return started
        self._pace.after_success()
        return len(leases)

    def _start(self, run: "_Run", lease: Lease) -> None:
        tracked = TrackedLease(lease)
        context = Context(
            lease.message,
            tracked,
            attempt=lease.attempt,
            generation=lease.generation,
            worker_id=run.worker_id,
            stopping=self._stopping,
            on_move=run.sender.wake,
        )
        call = run.handlers.call(context, tracked)
        task = Task(context, tracked, call, client=run.settling, sender=run.sender, hurry=run.hurry)
        with self._changed:
            self._tasks.add(task)
        task.start(self._done)

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
            self._changed.wait_for(lambda: self._urgency >= ABANDON or not self._tasks - released)

    def _wait_for_handlers(self) -> None:
        with self._changed:
            if self._tasks:
                _log.info("Stopping: %d handlers have %.0f s to finish", len(self._tasks), self._drain_timeout)
            self._changed.wait_for(lambda: self._urgency >= RELEASE_NOW or not self._tasks, self._drain_timeout)

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
        self._release([task.tracked.lease for task in unfinished])
        return unfinished

    def _release(self, leases: Sequence[Lease]) -> None:
        if not leases:
            return
        try:
            results = self._client.release_many(leases)
        except LeasebeatError as error:
            _log.warning("%d leases could not be released and run out by themselves: %s", len(leases), error)
            return
        for lease, result in zip(leases, results, strict=True):
            if not result.succeeded:
                _log.warning("The release of message %s failed: %s", lease.message.id, result.status)
        _log.info("Released %d leases", sum(result.succeeded for result in results))

    # --- health

    def _probed(self, host: str, port: int) -> AbstractContextManager[object]:
        return health.HealthServer(host, port, {"/health/live": self._liveness, "/health/ready": self._readiness})

    def _liveness(self) -> "health.Report":
        with self._changed:
            silences = {task.tracked.message_id: task.silence for task in self._tasks}
        stalled = {message_id: round(silence, 1) for message_id, silence in silences.items() if silence > self._stall_threshold}
        return health.Report(healthy=not stalled, status="stalled" if stalled else "live", facts={"stalled": stalled} if stalled else {})

    def _readiness(self) -> "health.Report":
        since = self._unreached_since
        if self._stopping.is_set() or not self._polling:
            return health.Report(healthy=False, status="stopping" if self._polling else "starting")
        if since is not None and time.monotonic() - since > UNREACHED_S:
            return health.Report(healthy=False, status="unreached", facts={"seconds": round(time.monotonic() - since, 1)})
        return health.Report(healthy=True, status="ready")


class _Run:
    """What exists only while a worker runs: threads, and connections of their own."""

    def __init__(self, client: Client, worker_id: str, version: str, handlers: Handlers, on_drain: Callable[[], None]) -> None:
        self.worker_id = worker_id
        self.claims = Claims(client.options, worker_id, version=version)
        self.sender = BeatSender(client.options, worker_id, on_drain)
        # A task waits between its tries itself, and beats meanwhile.
        self.settling = Client.with_options(replace(client.options, retry=RetryPolicy(unavailable=0)))
        self.handlers = handlers
        self.hurry = threading.Event()  # set once a drain has used up its time
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            opening.callback(self.sender.close)
            opening.enter_context(self.settling)
            opening.enter_context(self.claims)
            opening.enter_context(self.handlers)
            self._open = opening.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
