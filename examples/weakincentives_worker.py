"""A loop of the package `weakincentives` on Leasebeat: counts the definitions in the Python files that it is sent, and replies.

Needs Python 3.12 or newer, and the extra `weakincentives` of the SDK. Ends on SIGTERM, once the file at hand is done.

python weakincentives_worker.py http://127.0.0.1:8080 files
"""

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

from weakincentives.runtime import LeaseExtenderConfig, LoopGroup, MailboxWorker, ShutdownCoordinator
from weakincentives.runtime.mailbox import Message

from leasebeat import Client
from leasebeat.bridges.weakincentives import LeasebeatMailbox


@dataclass(frozen=True, slots=True)
class File:
    """A file to look at."""

    path: str


@dataclass(frozen=True, slots=True)
class Study:
    """What is in it."""

    path: str
    definitions: int


class StudyLoop(MailboxWorker[File, Study]):  # type: ignore[misc] # the package is not there where types are checked
    """Each definition found is a beat, and a beat extends the message's lease once the interval has passed."""

    def _process_message(self, message: "Message[File, Study]") -> None:
        definitions = 0
        for node in ast.walk(ast.parse(Path(message.body.path).read_bytes())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                definitions += 1
                self._heartbeat.beat()
        message.reply(Study(message.body.path, definitions))
        message.acknowledge()


def main(url: str, queue: str) -> None:
    with Client(url) as client:
        requests: LeasebeatMailbox[File, Study] = LeasebeatMailbox(queue, client, body_type=File, extension=60)
        loop = StudyLoop(requests=requests, lease_extender_config=LeaseExtenderConfig(interval=10, extension=60))
        ShutdownCoordinator.install().register(requests.close)  # ends the wait for the next message
        LoopGroup([loop]).run(visibility_timeout=60)


if __name__ == "__main__":
    main(*sys.argv[1:])
