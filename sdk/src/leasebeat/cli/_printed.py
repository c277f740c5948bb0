"""What a program prints, and what it means: lines of output are beats, the last one that is JSON is the result."""

import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Any

from leasebeat._context import Context
from leasebeat._errors import LeaseLostError
from leasebeat.cli._json_text import parse

_log = logging.getLogger(__name__)

MAX_LINE_BYTES = 1024 * 1024  # longer ones are beats, but not read as JSON
TAIL_BYTES = 4096

_REPORT = frozenset({"progress", "detail"})
_STARTS_OF_JSON = frozenset(b'{["-0123456789tfn \t')


class Output:
    """A program's standard output. Each line is a beat.

    The count of lines is the progress, until a line says otherwise: an object with no other members than `progress` and `detail` is a
    report; from the first `progress` on, only reports change it. The last line that is any other JSON is the result.

    Attributes:
        result: The result so far. None if there is none.
    """

    def __init__(self, context: Context, pass_on: Callable[[bytes], None]) -> None:
        self.result: Any = None
        self._context = context
        self._pass_on = pass_on
        self._lines = 0
        self._counting = True
        self._begun = b""  # of a line whose end has not come
        self._too_long = False  # whether more of that line has been passed on already

    def take(self, data: bytes) -> None:
        """Take a piece, which may end anywhere in a line."""
        whole, end, self._begun = (self._begun + data).rpartition(b"\n")
        if end:
            self._take_lines(whole.split(b"\n"))
            self._pass_on(whole + end)
        if len(self._begun) > MAX_LINE_BYTES:
            self._pass_on(self._begun)
            self._begun, self._too_long = b"", True

    def close(self) -> None:
        """Take what has no end of line as the last line."""
        if self._begun or self._too_long:
            self._take_lines([self._begun])
            self._pass_on(self._begun)
            self._begun = b""

    def _take_lines(self, lines: list[bytes]) -> None:
        self._lines += len(lines)
        reports: dict[str, Any] = {}
        for value in self._values(lines[1:] if self._too_long else lines):
            if isinstance(value, dict) and value and value.keys() <= _REPORT:
                reports |= value
            else:
                self.result = value
        self._too_long = False
        self._counting = self._counting and "progress" not in reports
        if self._counting:
            reports["progress"] = self._lines
        self._beat(reports)

    def _values(self, lines: Iterable[bytes]) -> Iterable[Any]:
        for line in lines:
            if line and line[0] in _STARTS_OF_JSON:
                with contextlib.suppress(ValueError):
                    yield parse(line)

    def _beat(self, report: dict[str, Any]) -> None:
        with contextlib.suppress(LeaseLostError):  # who minds the children ends the program then
            try:
                self._context.beat(**report)
            except (TypeError, ValueError, RecursionError) as error:
                _log.warning("A report on message %s is left out: %s", self._context.message.id, error)
                self._context.beat()


class Errors:
    """A program's standard error: passed on, and its tail kept."""

    def __init__(self, pass_on: Callable[[bytes], None]) -> None:
        self._pass_on = pass_on
        self._tail = b""

    def take(self, data: bytes) -> None:
        """Take a piece."""
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        self._pass_on(data)

    @property
    def tail(self) -> str:
        """The last 4 KiB."""
        return self._tail.decode(errors="replace").strip()
