"""`BeatSender`: turns the reports of all leases into as few `POST /beat` as the service asks for, and minds their deadlines."""

import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from leasebeat._client import Client
from leasebeat._errors import InvalidRequestError, LeasebeatError, verdict_error
from leasebeat._fork import reset_in_child
from leasebeat._http import Options
from leasebeat._leases import Beat, BeatResults
from leasebeat._retry import Pauses, RetryPolicy, time_to_answer
from leasebeat._ticker import Ticker
from leasebeat._tracked_lease import TrackedLease

_log = logging.getLogger(__name__)

MAX_BATCH = 1000
WATCH_INTERVAL_S = 1.0
STALL_MARGIN_S = 0.5


class BeatSender:
    """Sends what has moved when it is due, and nothing for a lease that did not move.

    It has connections of its own, so no other call holds a beat up. A beat that fails leaves its lease as it is until the
    local deadline; then the lease counts as lost, before the service gives it to somebody else. Deadlines are minded by a
    thread of their own, so that each is heard on time whatever the call to the service does. The two threads watch each other.
    """

    def __init__(self, options: Options, worker_id: str, on_drain: Callable[[], None]) -> None:
        self._client = Client.with_options(replace(options, retry=RetryPolicy(unavailable=0)))
        self._timeout = options.timeout
        self._worker_id = worker_id
        self._on_drain = on_drain
        self._lock = threading.Lock()
        self._leases: dict[str, TrackedLease] = {}
        self._backoff = Pauses()
        self._not_before = 0.0
        self._failing = False
        self._beats = Ticker("leasebeat-beats", self._send_due)
        self._deadlines = Ticker("leasebeat-deadlines", self._check_deadlines)
        reset_in_child(self)

    def track(self, lease: TrackedLease) -> None:
        """Watch a lease from now on."""
        with self._lock:
            self._leases[lease.receipt] = lease
        self._deadlines.wake()

    def forget(self, lease: TrackedLease) -> None:
        """Stop watching a lease."""
        with self._lock:
            self._leases.pop(lease.receipt, None)

    def wake(self) -> None:
        """Look now at what is to be sent. In a child that was forked, this is where its own threads start."""
        self._beats.wake()
        if not self._deadlines.running:
            self._deadlines.wake()

    def flush(self, leases: Sequence[TrackedLease], timeout: float) -> None:
        """Try once to send the unsent reports of these leases, for at most `timeout` seconds."""
        unsent = [lease for lease in leases if lease.hurry()]
        if unsent:
            self.wake()
        until = time.monotonic() + timeout
        for lease in unsent:
            lease.wait_until_sent(until - time.monotonic())

    def close(self) -> None:
        """Stop the threads, and close the connections unless a call hangs in one."""
        self._deadlines.close()
        if self._beats.close():
            self._client.close()

    def after_fork(self) -> None:
        """In a child: nothing to send until a handler reports there."""
        self._lock = threading.Lock()
        self._on_drain = _leave_to_parent
        for lease in self._leases.values():
            lease.after_fork()

    def _watched(self) -> list[TrackedLease]:
        with self._lock:
            return list(self._leases.values())

    def _check_deadlines(self) -> float:
        leases = self._watched()
        if self._beats.mend():
            for lease in leases:
                lease.put_back_if_in_flight()
            self._beats.wake()
        for lease in leases:
            lease.check_deadline()
        return min(self._next_watch(), min((lease.ends_at for lease in leases), default=math.inf))

    def _next_watch(self) -> float:
        """When one thread is to look after the other: never, if there is nothing to do for either."""
        return time.monotonic() + WATCH_INTERVAL_S if self._leases else math.inf

    def _send_due(self) -> float:
        self._deadlines.mend()
        now = time.monotonic()
        if now >= self._not_before:
            due = iter([lease for lease in self._watched() if lease.next_beat_at <= now])
            while batch := list(itertools.islice(due, MAX_BATCH)):
                self._send(batch)
        next_beat_at = min((lease.next_beat_at for lease in self._watched()), default=math.inf)
        return min(self._next_watch(), max(self._not_before, next_beat_at))

    def _send(self, batch: Sequence[TrackedLease]) -> None:
        beats = [lease.take() for lease in batch]
        try:
            results = self._beat(beats)
        except BaseException as error:
            for lease in batch:
                lease.put_back()
            self._not_before = time.monotonic() + self._backoff.pause(getattr(error, "retry_after", None))
            if not isinstance(error, LeasebeatError):
                raise
            self._log_failure(error)
            return
        self._backoff.reset()
        self._take_in(batch, results)
        if results.drain:
            self._on_drain()

    def _take_in(self, batch: Sequence[TrackedLease], results: BeatResults) -> None:
        failure: LeasebeatError | None = None
        for lease, result in zip(batch, results, strict=True):
            lease.apply(result)
            if result.refused and lease.lost.is_set():
                _log.warning("Lease of message %s is over: %s", lease.message_id, result.status)
            elif not (result.succeeded or result.refused):
                failure = verdict_error(result.status, lease.message_id)
        if failure is None:
            self._log_success()
        else:
            self._log_failure(failure)

    def _log_failure(self, error: LeasebeatError) -> None:
        """Once per outage, not once per try."""
        level = logging.DEBUG if self._failing else logging.WARNING
        self._failing = True
        _log.log(level, "Beats fail and will be repeated: %s", error)

    def _log_success(self) -> None:
        if self._failing:
            self._failing = False
            _log.info("Beats are answered again")

    def _beat(self, beats: Sequence[Beat]) -> BeatResults:
        try:
            return self._call(beats)
        except InvalidRequestError as error:
            # A detail that the service cannot store must not cost the other leases, or its own, their beats.
            _log.warning("Beats are repeated without their details: %s", error)
            return self._call([replace(beat, detail=None) for beat in beats])

    def _call(self, beats: Sequence[Beat]) -> BeatResults:
        """Call within the time of any lease that needs beats, in this call or the next, as a call that hangs delays both."""
        timeout = time_to_answer(self._timeout, min((lease.beaten_until for lease in self._watched()), default=math.inf))
        self._beats.allow(2 * timeout + STALL_MARGIN_S)  # sooner than a lease ends, though not all that may hang heeds time-outs
        return self._client.beat_many(beats, worker_id=self._worker_id, timeout=timeout)


def _leave_to_parent() -> None:
    """What is drained is the worker, which runs in the parent and hears so in its next claim."""
