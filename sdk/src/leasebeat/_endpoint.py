"""`JsonEndpoint`: another service that takes JSON, and answers with one JSON document or a stream of them."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Generator, Iterable
from datetime import datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

from leasebeat._call import is_header_value
from leasebeat._errors import PASSING, LeasebeatError
from leasebeat._http import Options, Transport, http
from leasebeat._wire import encode

END_OF_STREAM = "[DONE]"
LONGEST_REASON_CHARS = 1000

_PASSING = PASSING | {HTTPStatus.CONFLICT}
_ABOUT_THE_KEY = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}


class EndpointError(LeasebeatError):
    """The endpoint refused a request, or gave no answer that can be used.

    Attributes:
        status: The HTTP status. None if no answer came, or one that broke off.
        retry_after: Seconds that the endpoint asks to wait, if it does.
    """

    def __init__(self, reason: str, *, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.retry_after = retry_after

    @property
    def passing(self) -> bool:
        """Whether the same request may well succeed later."""
        return self.status is None or self.status in _PASSING or self.status >= HTTPStatus.INTERNAL_SERVER_ERROR


class JsonEndpoint(Transport):
    """Posts JSON over kept connections. Safe across threads and forks."""

    def __init__(self, base_url: str, *, bearer: str | None = None) -> None:
        """Describe the endpoint. It connects with the first request.

        Args:
            base_url: What every path is relative to.
            bearer: The secret to show, if it asks for one.

        Raises:
            ValueError: If `base_url` is no address, or `bearer` cannot be in an HTTP header.
        """
        if bearer is not None and not is_header_value(bearer):
            raise ValueError("the bearer must be printable ASCII, without spaces around it")
        authorization = {} if bearer is None else {"authorization": f"Bearer {bearer}"}
        super().__init__(Options(base_url=base_url, headers={"accept": "application/json, text/event-stream", **authorization}))
        self._bearer = bearer

    def post(self, path: str, body: object, *, timeout: float) -> Generator[Any, None, None]:
        """Send JSON, and yield each document of the answer as it comes: one, or one per event of an event stream.

        Args:
            path: Relative to the base address.
            body: Any JSON value.
            timeout: Seconds to connect, to write, and to wait for each part of the answer.

        Raises:
            EndpointError: If the endpoint refused it, or its answer did not come, broke off, or is no JSON.
        """
        content, headers = encode(body), {"content-type": "application/json"}
        try:
            with self._pool.stream("POST", path, content=content, headers=headers, timeout=timeout) as response:
                if not response.is_success:
                    raise self._refusal(response)
                for text in _documents(response, timeout):
                    yield json.loads(text)
        except http.RequestError as error:
            raise EndpointError(f"no whole answer to POST {path}: {type(error).__name__}") from error
        except (RecursionError, ValueError) as error:
            raise EndpointError(f"the answer to POST {path} is no JSON") from error

    def _refusal(self, response: http.Response) -> EndpointError:
        response.read()
        status = response.status_code
        reason = "" if status in _ABOUT_THE_KEY else _reason(response.content)  # those may quote the key, or a part of it
        if self._bearer:
            reason = reason.replace(self._bearer, "***")
        text = f"the endpoint answered {status}: {reason}" if reason else f"the endpoint answered {status}"
        return EndpointError(text, status=status, retry_after=_retry_after(response.headers.get("retry-after")))


def _documents(response: http.Response, timeout: float) -> Generator[str | bytes, None, None]:
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        yield response.read()
        return
    for data in _events(_while_it_speaks(_lines(response.iter_bytes()), timeout)):
        if data == END_OF_STREAM:
            return
        yield data


def _events(lines: Iterable[bytes]) -> Generator[str, None, None]:
    """Yield the data of each event. Comments, which keep the connection open, are none."""
    data: list[bytes] = []
    for line in lines:
        if line.startswith(b"data:"):
            data.append(line.removeprefix(b"data:").removeprefix(b" "))
        elif not line and data:
            yield b"\n".join(data).decode()
            data = []
    if data:
        yield b"\n".join(data).decode()


def _while_it_speaks(lines: Iterable[bytes], timeout: float) -> Generator[bytes, None, None]:
    """Give up an endpoint that only keeps the connection open, as it may do so for ever."""
    spoke_at = time.monotonic()
    for line in lines:
        if line.startswith(b"data:"):
            spoke_at = time.monotonic()
        elif time.monotonic() - spoke_at > timeout:
            raise EndpointError(f"no part of the answer came for {timeout:g} s")
        yield line


def _lines(parts: Iterable[bytes]) -> Generator[bytes, None, None]:
    """Split at line feeds alone: JSON may hold other characters, such as U+2028, that end a line for `str.splitlines`."""
    rest = b""
    for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")
    yield rest


def _reason(body: bytes) -> str:
    """What an error's body says, in the forms that are in use. Something in front of the endpoint may answer in another."""
    try:
        problem = json.loads(body)
    except (RecursionError, ValueError):
        return ""
    error = problem.get("error") or problem.get("detail") or problem.get("message") if isinstance(problem, dict) else None
    said = error.get("message") if isinstance(error, dict) else error
    return said[:LONGEST_REASON_CHARS] if isinstance(said, str) else ""


def _retry_after(value: str | None) -> float | None:
    """Read Retry-After in either form: seconds, or a moment."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        return _seconds_until(value)
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _seconds_until(moment: str) -> float | None:
    try:
        until = parsedate_to_datetime(moment)
    except ValueError:
        return None
    return max(0.0, (until - datetime.now(until.tzinfo)).total_seconds())
