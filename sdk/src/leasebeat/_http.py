"""The network: the only module that knows the HTTP library, so that a successor of it is a change of one line."""

import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx as http

from leasebeat._call import Call, Outcome, Reply
from leasebeat._errors import ServiceUnreachableError
from leasebeat._fork import reset_in_child
from leasebeat._retry import RetryPolicy, time_to_answer
from leasebeat._tracing import trace_headers
from leasebeat._version import __version__

__all__ = ["AsyncTransport", "Options", "Transport", "http"]

KEEPALIVE_EXPIRY_S = 15.0  # well below the service's 75 s, so that the client closes an idle connection first
WAIT_MARGIN_S = 5.0  # on top of a parked call's own wait

_CONNECT_ERRORS = (http.ConnectError, http.ConnectTimeout, http.PoolTimeout, http.ProxyError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to reach the service.

    Attributes:
        base_url: Where it is, for example `http://127.0.0.1:8080`.
        timeout: Seconds to connect, to write and to read. A parked call reads for its wait on top.
        headers: Sent with every call, for example for a proxy that asks for them.
        retry: How often a call is repeated.
        tls: The TLS settings. None verifies against the usual authorities.
    """

    base_url: str
    timeout: float = 10.0
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise ValueError(f"base_url must start with http:// or https://, not {self.base_url!r}")
        if self.tls is None and self.base_url.startswith("https://"):
            object.__setattr__(self, "tls", http.create_ssl_context())  # made once: each takes tens of milliseconds

    @property
    def for_pool(self) -> dict[str, Any]:
        """What every connection pool is made with."""
        return {
            "base_url": self.base_url,
            "headers": {"user-agent": f"leasebeat-python/{__version__}", "accept": "application/json", **self.headers},
            "limits": http.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=KEEPALIVE_EXPIRY_S),
            "verify": self.tls or False,
        }

    def for_request(self, call: Call[Any]) -> dict[str, Any]:
        """The request of one call."""
        seconds = time_to_answer(self.timeout if call.timeout is None else call.timeout, call.lease_until)
        read = seconds + call.wait + (WAIT_MARGIN_S if call.wait else 0.0)
        content_type = {} if call.content is None else {"content-type": "application/json"}
        return {
            "method": call.method,
            "url": call.path,
            "params": call.query or None,
            "content": call.content,
            "headers": {**trace_headers(), **content_type, **call.headers},
            "timeout": http.Timeout(seconds, read=read),
        }


class Transport:
    """Exchanges one call for one outcome over kept connections. Safe across threads and forks."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._open = partial(http.Client, **options.for_pool)
        self._pool = self._open()
        self._inherited: list[http.Client] = []
        reset_in_child(self)

    def exchange(self, call: Call[Any], *, fresh: bool = False) -> Outcome:
        """Send a call once. A fresh exchange uses a connection of its own."""
        if not fresh:
            return self._exchange(self._pool, call)
        with self._open() as pool:
            return self._exchange(pool, call)

    def _exchange(self, pool: http.Client, call: Call[Any]) -> Outcome:
        sent_at = time.monotonic()
        try:
            response = pool.request(**self._options.for_request(call))
        except http.RequestError as error:
            return _no_answer(call, error)
        return _reply(response, sent_at)

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    def after_fork(self) -> None:
        """Leave the parent's connections alone, not even closing them, as TLS would say goodbye in the parent's name."""
        self._inherited.append(self._pool)
        self._pool = self._open()


class AsyncTransport:
    """The same for asyncio."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._open = partial(http.AsyncClient, **options.for_pool)
        self._pool = self._open()
        self._inherited: list[http.AsyncClient] = []
        reset_in_child(self)

    async def exchange(self, call: Call[Any], *, fresh: bool = False) -> Outcome:
        """Send a call once. A fresh exchange uses a connection of its own."""
        if not fresh:
            return await self._exchange(self._pool, call)
        async with self._open() as pool:
            return await self._exchange(pool, call)

    async def _exchange(self, pool: http.AsyncClient, call: Call[Any]) -> Outcome:
        sent_at = time.monotonic()
        try:
            response = await pool.request(**self._options.for_request(call))
        except http.RequestError as error:
            return _no_answer(call, error)
        return _reply(response, sent_at)

    async def close(self) -> None:
        """Close the connections."""
        await self._pool.aclose()

    def after_fork(self) -> None:
        """Leave the parent's connections alone."""
        self._inherited.append(self._pool)
        self._pool = self._open()


def _reply(response: http.Response, sent_at: float) -> Reply:
    return Reply(
        status=response.status_code,
        body=response.content,
        retry_after=_seconds(response.headers.get("retry-after")),
        sent_at=sent_at,
        answered_at=time.monotonic(),
    )


def _no_answer(call: Call[Any], error: http.RequestError) -> ServiceUnreachableError:
    failure = ServiceUnreachableError(
        f"no answer to {call.method} {call.path}: {error or type(error).__name__}",
        maybe_processed=not isinstance(error, _CONNECT_ERRORS),
        broken=not isinstance(error, http.TimeoutException),
    )
    failure.__cause__ = error
    return failure


def _seconds(retry_after: str | None) -> float | None:
    """Read Retry-After in its form of seconds, the only one that the service sends."""
    is_number = retry_after is not None and retry_after.isascii() and retry_after.isdigit()
    return float(retry_after) if is_number and retry_after else None
