"""`Program`: a program in any language as the handler of a worker."""

import json
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from leasebeat._context import Context
from leasebeat._handlers import GiveBack
from leasebeat._messages import LeasedMessage
from leasebeat._tracked_lease import TrackedLease
from leasebeat.cli._children import Children
from leasebeat.cli._given import RECEIPT_VARIABLE
from leasebeat.cli._outlet import Outlet
from leasebeat.cli._printed import Errors, Output
from leasebeat.cli._pump import Pump

PREFIX = "LEASEBEAT_"
LAST_OUTPUT_TIMEOUT_S = 1.0


class ProgramError(Exception):
    """The program did not do its work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Runs a command for each message: its body is the standard input, what it prints are beats, exit 0 is the ack.

    Attributes:
        command: The command and its arguments.
        children: Runs it.
        url: Where the service is, for the program.
        stdout: Where its output is passed on to. None: nowhere.
        stderr: Where its errors are passed on to.
        raw: Whether a body that is a string is given as it is, and not as JSON.
        pass_receipt: Whether the program may have the receipt.
    """

    command: Sequence[str]
    children: Children
    url: str = field(repr=False)  # it may have a password in it
    stdout: Outlet | None
    stderr: Outlet
    raw: bool = False
    pass_receipt: bool = False

    def __call__(self, message: LeasedMessage, context: Context) -> Any:
        """Do the work of one message.

        Raises:
            ProgramError: If the program could not be started, or ended with another status than 0.
            LeaseLostError: If it was told to end, as its lease is over.
            GiveBack: If it was told to end, as the worker stops.
        """
        output = Output(context, (lambda _data: None) if self.stdout is None else self.stdout.write)
        errors = Errors(self.stderr.write)
        try:
            with self.children.start(self.command, self._environment(message, context), context) as child:
                pump = Pump(child.process, self._input(message), output=output.take, errors=errors.take)
                status = child.wait()
                pump.finish(LAST_OUTPUT_TIMEOUT_S if child.told_to_end else None)
        except OSError as error:
            raise ProgramError(f"cannot be started: {error.strerror}") from error
        if child.told_to_end:
            context.beat()  # raises if that was for a lost lease
            raise GiveBack
        output.close()
        if status != 0:
            raise ProgramError(f"{_describe(status)}\n{errors.tail}".strip())
        return output.result

    def _input(self, message: LeasedMessage) -> bytes:
        if self.raw and isinstance(message.body, str):
            return message.body.encode()
        return json.dumps(message.body).encode() + b"\n"

    def _environment(self, message: LeasedMessage, context: Context) -> dict[str, str]:
        """Our own, with the facts of the message. A fact that there is not is empty, so that none is inherited from a worker around us."""
        facts = {
            "URL": self.url,
            "WORKER_ID": context.worker_id,
            "QUEUE": message.queue,
            "MESSAGE_ID": message.id,
            "GENERATION": context.generation,
            "ATTEMPT": context.attempt,
            "MAX_ATTEMPTS": message.max_attempts,
            "PROGRESS": message.progress,
            "DETAIL": None if message.detail is None else json.dumps(message.detail),
            "HEADERS": json.dumps(dict(message.headers), ensure_ascii=False),
            "PRIORITY": message.priority,
            "FAIRNESS_KEY": message.fairness_key,
            "WORK_TYPE": message.work_type,
            "TASK_ID": message.task_id,
            "CREATED_AT": message.created_at.isoformat(),
            "SOURCE_QUEUE": message.source_queue,
        }
        environment = os.environ | {PREFIX + name: "" if fact is None else str(fact) for name, fact in facts.items()}
        environment.pop(RECEIPT_VARIABLE, None)
        if self.pass_receipt:
            environment[RECEIPT_VARIABLE] = _receipt(context)
        return environment


def _receipt(context: Context) -> str:
    """The lease's receipt. A context does not offer it, as other handlers have no use for it; that of one in a thread holds it."""
    return cast("TrackedLease", context._hold).receipt  # noqa: SLF001


def _describe(status: int) -> str:
    """What a status says, in the words of a shell's user."""
    if status > 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
