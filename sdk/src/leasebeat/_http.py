"""The network: the only module that knows the HTTP library, so that a successor of it is a change of two lines."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from leasebeat._call import Call, Outcome, Reply, is_header_value
from leasebeat._errors import ServiceUnreachableError
from leasebeat._fork import reset_in_child
from leasebeat._once_used import OnceUsed, asyncio
from leasebeat._retry import RetryPolicy, time_to_answer
from leasebeat._tracing import trace_headers
from leasebeat._version import __version__

__all__ = ["AsyncTransport", "Limit", "Options", "Transport", "http"]


if TYPE_CHECKING:
    import ssl

    import httpx as http
else:
    http = OnceUsed("httpx")

KEEPALIVE_EXPIRY_S = 15.0  # well below the service's 75 s, so that the client closes an idle connection first
WAIT_MARGIN_S = 5.0  # on top of a parked call's own wait
SHORTEST_STEP_S = 0.001  # no time at all would be no time-out
STEP_FIRST_S = 0.1  # a step that times out says which it was, so it is given the chance

_STEPS = ("pool", "connect", "write", "read")
_HEADER_NAME = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to reach the service.

    Attributes:
        base_url: Where it is, for example `http://127.0.0.1:8080`. May hold a name and a password, which show in no `repr`, log or error.
        timeout: Seconds that one attempt of a call may take, from connecting to the end of the answer. A parked call has its wait on top.
        headers: Sent with every call, for example for a proxy that asks for them.
        retry: How often a call is repeated.
        tls: The TLS settings. None verifies against the usual authorities.
    """

    base_url: str = field(repr=False)
    timeout: float = 10.0
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise ValueError("base_url must start with http:// or https://")
        try:
            http.URL(self.base_url)
        except http.InvalidURL:
            raise ValueError("base_url is no address") from None  # the reason may quote a part of a password
        _check_headers(self.headers)
        if self.tls is None and self.base_url.startswith("https://"):
            object.__setattr__(self, "tls", http.create_ssl_context())  # made once: each takes tens of milliseconds

    @property
    def for_pool(self) -> dict[str, Any]:
        """What every connection pool is made with. The HTTP library logs addresses, so it is given the password apart."""
        url = http.URL(self.base_url)
        return {
            "base_url": url.copy_with(userinfo=b""),
            "auth": (url.username, url.password) if url.userinfo else None,
            "headers": {"user-agent": f"leasebeat-python/{__version__}", "accept": "application/json", **self.headers},
            "limits": http.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=KEEPALIVE_EXPIRY_S),
            "verify": self.tls or False,
        }

    def limit(self, call: Call[Any]) -> Limit:
        """The time that one attempt of a call may take, from now on."""
        seconds = time_to_answer(self.timeout if call.timeout is None else call.timeout, call.lease_until)
        return Limit(seconds, wait=call.wait + (WAIT_MARGIN_S if call.wait else 0.0))

    def for_request(self, call: Call[Any]) -> dict[str, Any]:
        """The request of one call. Made before its time counts, as the first in a process may import much for its trace."""
        content_type = {} if call.content is None else {"content-type": "application/json"}
        return {
            "method": call.method,
            "url": call.path,
            "params": call.query or None,
            "content": call.content,
            "headers": {**trace_headers(), **content_type, **call.headers},
        }


def _check_headers(headers: Mapping[str, str]) -> None:
    """Refuse what cannot be sent, here and without quoting it: it may be a secret, and the error of each call would be logged.

    Raises:
        ValueError: If a name or a value cannot be in an HTTP header.
    """
    if not all(map(_HEADER_NAME.fullmatch, headers)):
        raise ValueError("the name of a header must be letters, digits and any of !#$%&'*+-.^_`|~")
    for name, value in headers.items():
        if not is_header_value(value):
            raise ValueError(f"the value of the header {name} must be printable ASCII, without spaces around it")


class Limit(Mapping[str, float]):
    """How long one exchange may take in all: the time-outs of its steps, each no longer than what is left when the step begins.

    Of reads there are several to a step: see `Left`.
    """

    def __init__(self, seconds: float, *, wait: float = 0.0) -> None:
        """Start to count.

        Args:
            seconds: For the exchange. Connecting and writing may not take longer either way.
            wait: Seconds that the service may think about its answer, on top.
        """
        self.total = seconds + wait
        self._seconds = seconds
        self._until = time.monotonic() + self.total

    def __getitem__(self, step: str) -> float:
        return Left(self) if step == "read" else min(self.left(), self._seconds)

    def __iter__(self) -> Iterator[str]:
        return iter(_STEPS)

    def __len__(self) -> int:
        return len(_STEPS)

    def left(self) -> float:
        """Seconds until it is over, never none at all."""
        return max(self._until - time.monotonic(), SHORTEST_STEP_S)

    def in_time(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        """Pass on the parts of an answer, unless they go on when the time is over. What has come in whole by then is taken, however late.

        Raises:
            ReadTimeout: If they do.
        """
        late = False
        for part in parts:
            if late:
                raise http.ReadTimeout(f"the answer did not end within {self.total:.1f} s")
            yield part
            late = time.monotonic() >= self._until


class Left(float):
    """Seconds that were left of a limit, which a connection of ours has counted again at each read (`_count_at_each_read`)."""

    limit: Limit

    def __new__(cls, limit: Limit) -> Self:
        left = super().__new__(cls, limit.left())
        left.limit = limit
        return left


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
        request = self._options.for_request(call)
        sent_at = time.monotonic()
        limit = self._options.limit(call)
        try:
            with pool.stream(**request, extensions={"timeout": limit, "trace": _count_at_each_read}) as response:
                body = b"".join(limit.in_time(response.iter_bytes()))
        except http.RequestError as error:
            return _no_answer(call, error)
        return _reply(response, body, sent_at)

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
        request = self._options.for_request(call)
        sent_at = time.monotonic()
        limit = self._options.limit(call)
        try:
            async with asyncio.timeout(limit.total + STEP_FIRST_S):
                response = await pool.request(**request, extensions={"timeout": limit})
        except TimeoutError:
            return _no_answer(call, http.ReadTimeout(f"the answer did not end within {limit.total:.1f} s"))
        except http.RequestError as error:
            return _no_answer(call, error)
        return _reply(response, response.content, sent_at)

    async def close(self) -> None:
        """Close the connections."""
        await self._pool.aclose()

    def after_fork(self) -> None:
        """Leave the parent's connections alone."""
        self._inherited.append(self._pool)
        self._pool = self._open()


def _count_at_each_read(event: str, facts: Mapping[str, Any]) -> None:
    """Have a new connection ask at each read how much time is left.

    The HTTP library asks once for all reads of an answer's head, which could trickle in without an end: each byte would be in time.
    """
    if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
        connection = facts["return_value"]
        connection.read = partial(_read, connection.read)


def _read(read: Callable[[int, float | None], bytes], most: int, timeout: float | None = None) -> bytes:
    return read(most, timeout.limit.left() if isinstance(timeout, Left) else timeout)


def _reply(response: http.Response, body: bytes, sent_at: float) -> Reply:
    return Reply(
        status=response.status_code,
        body=body,
        retry_after=_seconds(response.headers.get("retry-after")),
        sent_at=sent_at,
        answered_at=time.monotonic(),
    )


def _no_answer(call: Call[Any], error: http.RequestError) -> ServiceUnreachableError:
    unsent = (http.ConnectError, http.ConnectTimeout, http.PoolTimeout, http.ProxyError)
    failure = ServiceUnreachableError(
        f"no answer to {call.method} {call.path}: {error or type(error).__name__}",
        maybe_processed=not isinstance(error, unsent),
        broken=not isinstance(error, http.TimeoutException),
    )
    failure.__cause__ = error
    return failure


def _seconds(retry_after: str | None) -> float | None:
    """Read Retry-After in its form of seconds, the only one that the service sends."""
    is_number = retry_after is not None and retry_after.isascii() and retry_after.isdigit()
    return float(retry_after) if is_number and retry_after else None
