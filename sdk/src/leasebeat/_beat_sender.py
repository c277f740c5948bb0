"""`BeatSender`: turns the reports of all leases into as few `POST /beat` as the service asks for, and minds their deadlines."""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from leasebeat._client import Client
from leasebeat._errors import InvalidRequestError, LeasebeatError, verdict_error
from leasebeat._fork import reset_in_child
from leasebeat._http import Options
from leasebeat._leases import Beat, BeatResults
from leasebeat._retry import Pauses, RetryPolicy, time_to_answer
from leasebeat._ticker import Ticker
from leasebeat._tracked_lease import TrackedLease

_log = logging.getLogger(__name__)

WATCH_INTERVAL_S = 1.0
STALL_MARGIN_S = 0.5
MOST_REFUSALS = 32  # of calls in one round: three bad reports among a thousand are found


class BeatSender:
    """Sends what has moved when it is due, and nothing for a lease that did not move.

    It has connections of its own, so no other call holds a beat up. A beat that fails leaves its lease as it is until the
    local deadline; then the lease counts as lost, before the service gives it to somebody else. Deadlines are minded by a
    thread of their own, so that each is heard on time whatever the call to the service does. The two threads watch each other.

    Each worker has one, as a call names the worker that beats: by that the service knows who lives, and tells it to drain. So a call
    never names more leases than a worker may have, which are as many as the service takes.
    """

    def __init__(self, options: Options, worker_id: str, on_drain: Callable[[], None]) -> None:
        self._open = partial(Client.with_options, replace(options, retry=RetryPolicy(unavailable=0)))
        self._client = self._open()
        self._timeout = options.timeout
        self._worker_id = worker_id
        self._on_drain = on_drain
        self._lock = threading.Lock()
        self._leases: dict[str, TrackedLease] = {}
        self._backoff = Pauses()
        self._rests = Pauses()  # after rounds with too many refusals
        self._not_before = 0.0
        self._failing = False
        self._beats = Ticker("leasebeat-beats", self._send_due, on_mend=self._give_up_call)
        self._deadlines = Ticker("leasebeat-deadlines", self._check_deadlines)
        reset_in_child(self)

    def track(self, lease: TrackedLease) -> None:
        """Watch a lease from now on."""
        with self._lock:
            self._leases[lease.receipt] = lease
        self._deadlines.wake()

    def forget(self, lease: TrackedLease) -> None:
        """Stop watching a lease. What is unsent stays so: a `flush` that waits for it returns."""
        with self._lock:
            self._leases.pop(lease.receipt, None)
        lease.drop_report()

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
        """Stop the threads, and close the connections, also that of a call that hangs."""
        self._deadlines.close()
        self._beats.close()
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
        self._beats.mend()
        leases = self._watched()
        for lease in leases:
            lease.check_deadline()
        return min(self._next_watch(), min((lease.ends_at for lease in leases), default=math.inf))

    def _next_watch(self) -> float:
        """When one thread is to look after the other: never, if there is nothing to do for either."""
        return time.monotonic() + WATCH_INTERVAL_S if self._leases else math.inf

    def _give_up_call(self) -> None:
        """Send anew what a call that hangs has taken along, over other connections: whatever comes of it, it comes too late."""
        hanging, self._client = self._client, self._open()
        self._put_back_all()
        hanging.close()

    def _put_back_all(self) -> None:
        for lease in self._watched():
            lease.put_back_in_flight()

    def _send_due(self) -> float:
        self._deadlines.mend()
        now = time.monotonic()
        due = [lease for lease in self._watched() if lease.next_beat_at <= now]
        if due and now >= self._not_before:
            try:
                self._send_all(due)
            except BaseException:
                if self._beats.is_current:
                    self._put_back_all()
                    self._not_before = time.monotonic() + self._backoff.pause()
                raise
        next_beat_at = min((lease.next_beat_at for lease in self._watched()), default=math.inf)
        return min(self._next_watch(), max(self._not_before, next_beat_at))

    def _send_all(self, due: Sequence[TrackedLease]) -> None:
        """Send in one call, and what is refused together in halves: one bad report costs no other lease anything, its own only its detail.

        What was refused alone is sent alone, last, and a round ends after some refusals. So a proxy that refuses everything is not
        called the more often the more leases there are.
        """
        calls = [[lease] for lease in due if lease.is_refused]
        calls.append([lease for lease in due if not lease.is_refused])
        refusals = 0
        while calls and self._beats.is_current:
            leases = calls.pop()
            error = self._send(leases) if leases else None
            if error is None:
                continue
            if self._beats.is_current:  # else another thread has sent them since
                calls += self._parts(leases, error)
            refusals += 1
            if refusals == MOST_REFUSALS:
                self._rest(calls, error)
                return
        self._rests.reset()

    def _send(self, leases: Sequence[TrackedLease]) -> InvalidRequestError | None:
        """Make one call. Returns the error if all of it is refused."""
        beats = [lease.take() for lease in leases]
        try:
            results = self._call(beats)
        except InvalidRequestError as error:
            return error
        except LeasebeatError as error:
            self._put_back(leases, beats, error)
        else:
            self._take_in(leases, beats, results)
        return None

    def _parts(self, leases: list[TrackedLease], error: InvalidRequestError) -> list[list[TrackedLease]]:
        """What to send in place of a call that was refused, the last first."""
        middle = len(leases) // 2
        if middle:
            return [leases[middle:], leases[:middle]]
        (lease,) = leases
        if lease.refuse_detail():
            _log.warning("The detail of message %s is refused, and its beat repeated without: %s", lease.message_id, error)
            return [leases]
        lease.refuse()
        self._log_failure(error)
        return []

    def _rest(self, calls: Iterable[Iterable[TrackedLease]], error: InvalidRequestError) -> None:
        """Leave the rest to a later round."""
        for lease in chain.from_iterable(calls):
            lease.put_back_in_flight()
        self._not_before = time.monotonic() + self._rests.pause()
        self._log_failure(error)

    def _put_back(self, leases: Sequence[TrackedLease], beats: Sequence[Beat], error: LeasebeatError) -> None:
        for lease, beat in zip(leases, beats, strict=True):
            lease.put_back(beat)
        if self._beats.is_current:  # else another thread sends by now, over other connections
            self._not_before = time.monotonic() + self._backoff.pause(error.retry_after)
            self._log_failure(error)

    def _take_in(self, leases: Sequence[TrackedLease], beats: Sequence[Beat], results: BeatResults) -> None:
        self._backoff.reset()
        failure: LeasebeatError | None = None
        for lease, beat, result in zip(leases, beats, results, strict=True):
            lease.apply(beat, result)
            if result.refused and lease.lost.is_set():
                _log.warning("Lease of message %s is over: %s", lease.message_id, result.status)
            elif not (result.succeeded or result.refused):
                failure = verdict_error(result.status, lease.message_id)
        if failure is None:
            self._log_success()
        else:
            self._log_failure(failure)
        if results.drain:
            self._on_drain()

    def _log_failure(self, error: LeasebeatError) -> None:
        """Once per outage, not once per try."""
        level = logging.DEBUG if self._failing else logging.WARNING
        self._failing = True
        _log.log(level, "Beats fail and will be repeated: %s", error)

    def _log_success(self) -> None:
        if self._failing:
            self._failing = False
            _log.info("Beats are answered again")

    def _call(self, beats: Sequence[Beat]) -> BeatResults:
        """Call within the time of any lease that needs beats, in this call or the next, as a call that hangs delays both."""
        timeout = time_to_answer(self._timeout, min((lease.beaten_until for lease in self._watched()), default=math.inf))
        self._beats.allow(2 * timeout + STALL_MARGIN_S)  # sooner than a lease ends, though not all that may hang heeds time-outs
        return self._client.beat_many(beats, worker_id=self._worker_id, timeout=timeout)


def _leave_to_parent() -> None:
    """What is drained is the worker, which runs in the parent and hears so in its next claim."""
