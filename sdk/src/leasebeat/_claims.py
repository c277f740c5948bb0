"""`Claims`: long polls that another thread can end at once."""

import concurrent.futures
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

from leasebeat._client import AsyncClient
from leasebeat._http import Options
from leasebeat._identity import HOST
from leasebeat._leases import Lease, Leases, ReleaseResult
from leasebeat._loop_thread import LoopThread
from leasebeat._unanswered import Unanswered, release_late
from leasebeat._version import __version__


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
        self._unanswered = Unanswered()  # by queue

    def claim(self, queue: str, *, max_messages: int, wait: float, visibility_timeout: float | None) -> Leases:
        """Wait for leases. Nothing once stopped.

        Raises:
            ApiError: If the service refused the claim.
            ServiceUnreachableError: If no answer came.
        """
        if self._stopped:
            return Leases()
        try:
            with self._unanswered.name_for(queue) as claim_id:
                leases = self._ask(queue, max_messages=max_messages, visibility_timeout=visibility_timeout, wait=wait, claim_id=claim_id)
        except concurrent.futures.CancelledError:
            self._give_back(queue, self._ask_to_the_end)
            return Leases()
        if self._stopped:
            release_late(leases, self._release)
            return Leases()
        release_late(leases[max_messages:], self._release)  # granted when there was more room, and told only now
        return Leases(leases[:max_messages], drain=leases.drain)

    @property
    def has_unanswered(self) -> bool:
        """Whether there is a claim that may have been granted what nobody holds."""
        return bool(self._unanswered.wanted)

    def give_back_unanswered(self) -> None:
        """Release what claims without an answer were granted. Those that fail again stay, as do all once stopped, until the end."""
        with suppress(concurrent.futures.CancelledError):
            for queue in self._unanswered.wanted:
                self._give_back(queue, self._ask)

    def soon(self, work: Callable[[], object]) -> None:
        """Have something done in the thread of the claims. Signal handlers may call it: it takes no lock."""
        self._loop.soon(work)

    def stop(self) -> None:
        """End the claim that is parked, and let no other start."""
        with self._lock:
            self._stopped = True
            if self._parked is not None:
                self._parked.cancel()

    def _ask(self, queue: str, **terms: Any) -> Leases:
        """Claim, until stopped.

        Raises:
            CancelledError: If that is so.
            LeasebeatError: As `Client.claim` says.
        """
        with self._lock:
            if self._stopped:
                raise concurrent.futures.CancelledError
            self._parked = self._loop.submit(self._claim(queue, **terms))
        return self._parked.result()

    def _ask_to_the_end(self, queue: str, **terms: Any) -> Leases:
        """Claim, also once stopped."""
        return self._loop.submit(self._claim(queue, **terms)).result()

    def _give_back(self, queue: str, ask: Callable[..., Leases]) -> None:
        self._unanswered.give_back(queue, partial(ask, queue), self._release)

    def _release(self, leases: Sequence[Lease]) -> Sequence[ReleaseResult]:
        return self._loop.submit(self._client.release_many(leases)).result()

    def __enter__(self) -> Self:
        self._loop.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for queue in self._unanswered.wanted:
            self._give_back(queue, self._ask_to_the_end)
        self._loop.submit(self._client.close()).result()
        self._loop.__exit__(kind, error, trace)
