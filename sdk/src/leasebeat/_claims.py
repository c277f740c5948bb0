"""`Claims`: long polls that another thread can end at once."""

import concurrent.futures
import logging
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self

from leasebeat._client import AsyncClient
from leasebeat._errors import LeasebeatError
from leasebeat._http import Options
from leasebeat._identity import HOST
from leasebeat._leases import Lease, Leases
from leasebeat._loop_thread import LoopThread
from leasebeat._version import __version__

_log = logging.getLogger(__name__)

RECOVERY_TIMEOUT_S = 2.0


class Claims:
    """Claims for one worker, one at a time.

    A blocking call cannot be taken back, so the calls run in an event loop of their own: there, cancelling one closes its
    connection, and the service parks it no longer.

    A claim that fails may have been granted leases all the same. So the next one of its queue goes by the same name, and gets them; if
    there is none in time, they are given back.
    """

    def __init__(self, options: Options, worker_id: str, *, version: str = __version__) -> None:
        self._client = AsyncClient.with_options(options)
        self._claim = partial(self._client.claim, worker_id=worker_id, host=HOST, version=version)
        self._loop = LoopThread("leasebeat-claims")
        self._lock = threading.Lock()
        self._parked: concurrent.futures.Future[Leases] | None = None
        self._stopped = False
        self._names: dict[str, str] = {}  # of claims that are not answered, by queue

    def claim(self, queue: str, *, max_messages: int, wait: float, visibility_timeout: float | None) -> Leases:
        """Wait for leases. Nothing once stopped.

        Raises:
            ApiError: If the service refused the claim.
            ServiceUnreachableError: If no answer came.
        """
        with self._lock:
            if self._stopped:
                return Leases()
            claim_id = self._names.setdefault(queue, uuid.uuid4().hex)
            self._parked = self._loop.submit(
                self._claim(queue, max_messages=max_messages, visibility_timeout=visibility_timeout, wait=wait, claim_id=claim_id)
            )
        try:
            leases = self._parked.result()
        except concurrent.futures.CancelledError:
            self._take_back(queue, self._repeat(queue, max_messages))
            return Leases()
        except LeasebeatError as error:
            self._forget_if_refused(queue, error)
            raise
        del self._names[queue]
        if self._stopped:
            self._release(leases)
            return Leases()
        self._release(leases[max_messages:])  # granted when there was more room, and told only now
        return Leases(leases[:max_messages], drain=leases.drain)

    @property
    def has_unanswered(self) -> bool:
        """Whether there is a claim that may have been granted what nobody holds."""
        return bool(self._names)

    def give_back_unanswered(self) -> None:
        """Release what claims without an answer were granted. Those that fail again stay, as do all once stopped, until the end."""
        for queue in list(self._names):
            with self._lock:
                if self._stopped:
                    return
                self._parked = self._repeat(queue)
            with suppress(concurrent.futures.CancelledError):
                self._take_back(queue, self._parked)

    def soon(self, work: Callable[[], object]) -> None:
        """Have something done in the thread of the claims. Signal handlers may call it: it takes no lock."""
        self._loop.soon(work)

    def stop(self) -> None:
        """End the claim that is parked, and let no other start."""
        with self._lock:
            self._stopped = True
            if self._parked is not None:
                self._parked.cancel()

    def _repeat(self, queue: str, max_messages: int = 1) -> concurrent.futures.Future[Leases]:
        """Ask a claim without an answer again, by its name: it says what it was granted, which may be more than `max_messages`."""
        return self._loop.submit(self._claim(queue, max_messages=max_messages, claim_id=self._names[queue], timeout=RECOVERY_TIMEOUT_S))

    def _take_back(self, queue: str, repeat: concurrent.futures.Future[Leases]) -> None:
        """Release what it was granted."""
        try:
            leases = repeat.result()
        except LeasebeatError as error:
            self._forget_if_refused(queue, error)
            _log.info("A claim without an answer could not be checked; leases it was granted may run out by themselves: %s", error)
        else:
            del self._names[queue]
            self._release(leases)

    def _forget_if_refused(self, queue: str, error: LeasebeatError) -> None:
        """A claim that was refused was granted nothing."""
        if error.turned_away:
            del self._names[queue]

    def _release(self, leases: Sequence[Lease]) -> None:
        """Give back what comes too late to be worked on. A failure costs no more than the time until it runs out."""
        if not leases:
            return
        try:
            results = self._loop.submit(self._client.release_many(leases)).result()
            for lease, result in zip(leases, results, strict=True):
                result.raise_if_refused(lease.message.id)
        except LeasebeatError as error:
            _log.info("What was granted too late could not be released, and runs out by itself: %s", error)

    def __enter__(self) -> Self:
        self._loop.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for queue in list(self._names):
            self._take_back(queue, self._repeat(queue))
        self._loop.submit(self._client.close()).result()
        self._loop.__exit__(kind, error, trace)
