"""`Client` and `AsyncClient`: the calls of `_calls`, sent over a transport."""

import functools
import inspect
import time
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from leasebeat._call import Call, finish
from leasebeat._calls import figures, leases, messages, platform, queues, registry
from leasebeat._http import AsyncTransport, Options, Transport
from leasebeat._once_used import asyncio
from leasebeat._retry import Attempts, RetryPolicy

if TYPE_CHECKING:
    import ssl  # which takes long to import

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_TIMEOUT_S = 10.0


def _method(make: Callable[P, Call[T]]) -> Callable[Concatenate["Client", P], T]:
    """Make a method that sends the call that `make` describes."""

    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(make(*args, **kwargs))

    return _described_by(make, method)


def _async_method(make: Callable[P, Call[T]]) -> Callable[Concatenate["AsyncClient", P], Coroutine[Any, Any, T]]:
    """Make a coroutine method that sends the call that `make` describes."""

    async def method(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(make(*args, **kwargs))

    return _described_by(make, method)


def _described_by(make: Callable[..., Call[Any]], method: Callable[P, T]) -> Callable[P, T]:
    """Give a method the name, the text and, with `self` and the call's result, the signature of its call."""
    described: Any = functools.update_wrapper(method, make)
    signature = inspect.signature(make)
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    (result,) = signature.return_annotation.__args__
    described.__signature__ = signature.replace(parameters=[itself, *signature.parameters.values()], return_annotation=result)
    del described.__wrapped__  # else the signature would be looked for there
    return method


class _Configured:
    """What both clients are made with."""

    def __init__(
        self,
        base_url: str,
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
        headers: Mapping[str, str] | None = None,
        retry: RetryPolicy | None = None,
        tls: "ssl.SSLContext | None" = None,
    ) -> None:
        """Make a client. It connects when the first call is made.

        Args:
            base_url: Where the service is, for example `http://127.0.0.1:8080`. A name and a password in it (`http://name:password@…`) are
                sent as HTTP's basic authentication, and show in no log.
            timeout: Seconds that one attempt of a call may take, from connecting to the end of the answer. A parked claim has its wait
                on top.
            headers: Sent with every call.
            retry: How often a call is repeated.
            tls: The TLS settings. None verifies against the usual authorities.

        Raises:
            ValueError: If `base_url` is no address, or a header cannot be sent.
        """
        self.options = Options(base_url=base_url, timeout=timeout, headers=dict(headers or {}), retry=retry or RetryPolicy(), tls=tls)
        self._open()

    @classmethod
    def with_options(cls, options: Options) -> Self:
        """Make a client that reaches the service as another one does."""
        return cls(options.base_url, timeout=options.timeout, headers=options.headers, retry=options.retry, tls=options.tls)

    def _open(self) -> None:
        raise NotImplementedError


class Client(_Configured):
    """Calls the service. Safe to share between threads, and across forks.

    Example::

        with Client("http://127.0.0.1:8080") as client:
            client.send("default", {"file": "a.wav"})
            for lease in client.claim("default", worker_id="worker-1", wait=20):
                client.ack(lease, output={"seconds": 12.5})
    """

    def _open(self) -> None:
        self._transport = Transport(self.options)

    put_queue = _method(queues.put_queue)
    get_queue = _method(queues.get_queue)
    list_queues = _method(queues.list_queues)
    delete_queue = _method(queues.delete_queue)
    pause_queue = _method(queues.pause_queue)
    resume_queue = _method(queues.resume_queue)
    purge_queue = _method(queues.purge_queue)
    redrive = _method(queues.redrive)

    send = _method(messages.send)
    send_many = _method(messages.send_many)
    get_message = _method(messages.get_message)
    list_messages = _method(messages.list_messages)
    list_checkpoints = _method(messages.list_checkpoints)
    cancel_message = _method(messages.cancel_message)

    claim = _method(leases.claim)
    beat = _method(leases.beat)
    beat_many = _method(leases.beat_many)
    ack = _method(leases.ack)
    ack_many = _method(leases.ack_many)
    nack = _method(leases.nack)
    nack_many = _method(leases.nack_many)
    release = _method(leases.release)
    release_many = _method(leases.release_many)
    list_leases = _method(leases.list_leases)

    list_workers = _method(registry.list_workers)
    get_worker = _method(registry.get_worker)
    drain_worker = _method(registry.drain_worker)
    delete_worker = _method(registry.delete_worker)

    stats = _method(figures.stats)
    sweep = _method(figures.sweep)
    recovery = _method(figures.recovery)

    healthz = _method(platform.healthz)
    readyz = _method(platform.readyz)

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _run(self, call: Call[T]) -> T:
        attempts = Attempts(call, self.options.retry)
        while True:
            outcome = self._transport.exchange(call, fresh=attempts.fresh)
            pause = attempts.pause_after(outcome)
            if pause is None:
                return finish(call, outcome)
            time.sleep(pause)


class AsyncClient(_Configured):
    """Calls the service from asyncio. The methods are those of `Client`, as coroutines."""

    def _open(self) -> None:
        self._transport = AsyncTransport(self.options)

    put_queue = _async_method(queues.put_queue)
    get_queue = _async_method(queues.get_queue)
    list_queues = _async_method(queues.list_queues)
    delete_queue = _async_method(queues.delete_queue)
    pause_queue = _async_method(queues.pause_queue)
    resume_queue = _async_method(queues.resume_queue)
    purge_queue = _async_method(queues.purge_queue)
    redrive = _async_method(queues.redrive)

    send = _async_method(messages.send)
    send_many = _async_method(messages.send_many)
    get_message = _async_method(messages.get_message)
    list_messages = _async_method(messages.list_messages)
    list_checkpoints = _async_method(messages.list_checkpoints)
    cancel_message = _async_method(messages.cancel_message)

    claim = _async_method(leases.claim)
    beat = _async_method(leases.beat)
    beat_many = _async_method(leases.beat_many)
    ack = _async_method(leases.ack)
    ack_many = _async_method(leases.ack_many)
    nack = _async_method(leases.nack)
    nack_many = _async_method(leases.nack_many)
    release = _async_method(leases.release)
    release_many = _async_method(leases.release_many)
    list_leases = _async_method(leases.list_leases)

    list_workers = _async_method(registry.list_workers)
    get_worker = _async_method(registry.get_worker)
    drain_worker = _async_method(registry.drain_worker)
    delete_worker = _async_method(registry.delete_worker)

    stats = _async_method(figures.stats)
    sweep = _async_method(figures.sweep)
    recovery = _async_method(figures.recovery)

    healthz = _async_method(platform.healthz)
    readyz = _async_method(platform.readyz)

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def _run(self, call: Call[T]) -> T:
        attempts = Attempts(call, self.options.retry)
        while True:
            outcome = await self._transport.exchange(call, fresh=attempts.fresh)
            pause = attempts.pause_after(outcome)
            if pause is None:
                return finish(call, outcome)
            await asyncio.sleep(pause)
