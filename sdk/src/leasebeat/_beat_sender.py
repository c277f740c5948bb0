"""`BeatSender`: one thread that turns the reports of all leases into as few `POST /beat` as the service asks for."""

import itertools
import logging
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from leasebeat._client import Client
from leasebeat._errors import InvalidRequestError, LeasebeatError
from leasebeat._fork import reset_in_child
from leasebeat._http import Options
from leasebeat._leases import Beat, BeatResult
from leasebeat._retry import Backoff, RetryPolicy
from leasebeat._tracked_lease import TrackedLease

_log = logging.getLogger(__name__)

MAX_BATCH = 1000
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
SHORTEST_TIMEOUT_S = 0.25


class BeatSender:
    """Sends what has moved when it is due, and nothing for a lease that did not move.

    It has connections of its own, so no other call holds a beat up. A beat that fails leaves its lease as it is until the
    local deadline; then the lease counts as lost, before the service gives it to somebody else.
    """

    def __init__(self, options: Options, worker_id: str) -> None:
        self._client = Client.with_options(replace(options, retry=RetryPolicy(unavailable=0)))
        self._timeout = options.timeout
        self._worker_id = worker_id
        self._lock = threading.Lock()
        self._leases: dict[str, TrackedLease] = {}
        self._wake_up = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._not_before = 0.0
        self._failing = False
        reset_in_child(self)

    def track(self, lease: TrackedLease) -> None:
        """Watch a lease from now on."""
        with self._lock:
            self._leases[lease.receipt] = lease
        self.wake()

    def forget(self, lease: TrackedLease) -> None:
        """Stop watching a lease."""
        with self._lock:
            self._leases.pop(lease.receipt, None)

    def wake(self) -> None:
        """Look at the leases now. Starts the thread if this process has none yet, as after a fork."""
        if self._thread is None:
            self._start()
        self._wake_up.set()

    def flush(self, leases: Sequence[TrackedLease], timeout: float) -> None:
        """Try once to send the unsent reports of these leases, for at most `timeout` seconds."""
        unsent = [lease for lease in leases if lease.hurry()]
        if unsent:
            self.wake()
        until = time.monotonic() + timeout
        for lease in unsent:
            lease.wait_until_sent(until - time.monotonic())

    def close(self) -> None:
        """Stop the thread, and close its connections."""
        self._closed = True
        self._wake_up.set()
        if self._thread is not None:
            self._thread.join()
        self._client.close()

    def after_fork(self) -> None:
        """In a child: no thread, and nothing to send until a handler reports there."""
        self._lock = threading.Lock()
        self._wake_up = threading.Event()
        self._thread = None
        for lease in self._leases.values():
            lease.after_fork()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="leasebeat-beats", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while not self._closed:
            self._wake_up.wait(self._idle_seconds())
            self._wake_up.clear()
            try:
                self._send_due()
            except Exception:  # noqa: BLE001 - the thread must outlive whatever goes wrong
                _log.exception("Sending beats failed")
                self._not_before = time.monotonic() + self._backoff.pause()

    def _idle_seconds(self) -> float | None:
        """Seconds until a lease needs attention, or None if none does."""
        leases = self._watched()
        beat_at = min((lease.next_beat_at for lease in leases), default=math.inf)
        end_at = min((lease.ends_at for lease in leases), default=math.inf)
        moment = min(max(beat_at, self._not_before), end_at)
        return None if moment == math.inf else max(0.0, moment - time.monotonic())

    def _watched(self) -> list[TrackedLease]:
        with self._lock:
            return list(self._leases.values())

    def _send_due(self) -> None:
        leases = self._watched()
        now = time.monotonic()
        if now >= self._not_before:
            due = iter([lease for lease in leases if lease.next_beat_at <= now])
            while batch := list(itertools.islice(due, MAX_BATCH)):
                self._send(batch)
        for lease in leases:
            lease.check_deadline()

    def _send(self, batch: Sequence[TrackedLease]) -> None:
        beats = [lease.take() for lease in batch]
        try:
            results = self._beat(beats, self._time_for(batch))
        except Exception as error:
            for lease in batch:
                lease.put_back()
            self._not_before = time.monotonic() + self._backoff.pause(getattr(error, "retry_after", None))
            if not isinstance(error, LeasebeatError):
                raise
            self._log_failure(error)
            return
        self._log_success()
        self._backoff.reset()
        for lease, result in zip(batch, results, strict=True):
            lease.apply(result)
            if result.refused and lease.lost.is_set():
                _log.warning("Lease of message %s is over: %s", lease.message_id, result.status)

    def _log_failure(self, error: LeasebeatError) -> None:
        """Once per outage, not once per try."""
        level = logging.DEBUG if self._failing else logging.WARNING
        self._failing = True
        _log.log(level, "Beats are not answered and will be repeated: %s", error)

    def _log_success(self) -> None:
        if self._failing:
            self._failing = False
            _log.info("Beats are answered again")

    def _beat(self, beats: Sequence[Beat], timeout: float) -> Sequence[BeatResult]:
        try:
            return self._client.beat_many(beats, worker_id=self._worker_id, timeout=timeout)
        except InvalidRequestError as error:
            # A detail that the service cannot store must not cost the other leases, or its own, their beats.
            _log.warning("Beats are repeated without their details: %s", error)
            bare = [replace(beat, detail=None) for beat in beats]
            return self._client.beat_many(bare, worker_id=self._worker_id, timeout=timeout)

    def _time_for(self, batch: Sequence[TrackedLease]) -> float:
        """A third of the shortest time left, so that a hanging call leaves time for another."""
        left = min(lease.valid_until for lease in batch) - time.monotonic()
        return min(self._timeout, max(left / 3, SHORTEST_TIMEOUT_S))
