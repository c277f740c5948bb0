"""A pytest plugin that runs the package's own tests on Leasebeat: where they make one of its mailboxes, they get one of ours.

It writes how each test ended, and which of them made a mailbox, to the file that `--leasebeat-outcomes` names.
"""

import json
import os
import sys
import uuid
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import hypothesis
import pytest
import weakincentives.contrib.mailbox
import weakincentives.runtime.mailbox
from weakincentives.evals import EvalRequest
from weakincentives.runtime import AgentLoopRequest, AgentLoopResult, DeadLetter
from weakincentives.runtime.mailbox import Mailbox, Message, RegistryResolver

from leasebeat import Client, NotFoundError
from leasebeat.bridges.weakincentives import LeasebeatMailbox, LeasebeatMailboxFactory

CLIENT = Client(os.environ["LEASEBEAT_URL"])
OUTCOMES: dict[str, str] = {}
ON_LEASEBEAT: set[str] = set()
REPLIES: dict[str, Mailbox[Any, None]] = {}
"""The mailboxes for replies by name: the suite's mailboxes in memory hand on the very object."""


T = TypeVar("T")
R = TypeVar("R")


def note_mailbox() -> None:
    ON_LEASEBEAT.add(os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0])


def type_of(body: Any) -> Any:
    """Say as what a body is to be read. The suite's mailboxes in memory need not know, as they hand on the object itself."""
    match body:
        case AgentLoopRequest():
            return AgentLoopRequest[type_of(body.request)]
        case AgentLoopResult():
            return AgentLoopResult[type_of(body.output)]
        case EvalRequest():
            return EvalRequest[type_of(body.sample.input), type_of(body.sample.expected)]
        case DeadLetter():
            return DeadLetter[type_of(body.body)]
        case _:
            return type(body)


class MailboxInMemory(LeasebeatMailbox[T, R]):
    """What the suite makes as an `InMemoryMailbox`: each has messages of its own, whatever its name."""

    def __init__(self, name: str = "default", max_size: int | None = None) -> None:
        super().__init__(f"{name}-{uuid.uuid4().hex}", CLIENT, max_size=max_size, reply_resolver=RegistryResolver(REPLIES))
        self._given_name = name
        note_mailbox()

    @property
    def name(self) -> str:
        return self._given_name

    def send(self, body: Any, *, reply_to: Mailbox[Any, None] | None = None) -> str:
        self._body_type = type_of(body)
        if reply_to is not None:
            REPLIES[reply_to.name] = reply_to
        return super().send(body, reply_to=reply_to)


class Redis:
    """What the suite connects to: a service whose queues are gone when it is flushed or its test ends."""

    def __init__(self, **_options: object) -> None:
        self.queues: set[str] = set()

    def ping(self) -> bool:
        return CLIENT.healthz().status == "ok"

    def flushdb(self) -> None:
        for queue in self.queues:
            with suppress(NotFoundError):
                CLIENT.delete_queue(queue, force=True)

    def close(self) -> None:
        pass


class MailboxInRedis(LeasebeatMailbox[T, R]):
    """What the suite makes as a `RedisMailbox`. Its tests settle deliveries by message id and handle, too."""

    def __init__(self, name: str, client: Redis, *, reaper_interval: float = 1.0, **options: Any) -> None:
        assert reaper_interval > 0  # ours has no such thing: the service looks after that
        super().__init__(name, CLIENT, **options)
        client.queues |= {name, "responses"}
        self._delivered: dict[str, Message[Any, Any]] = {}
        note_mailbox()

    def receive(self, **options: Any) -> Sequence[Message[Any, Any]]:
        messages = super().receive(**options)
        self._delivered |= {message.receipt_handle: message for message in messages}
        return messages

    def _acknowledge(self, message_id: str, suffix: str) -> None:
        self._delivered[f"{message_id}:{suffix}"].acknowledge()


class MailboxInRedisFactory(LeasebeatMailboxFactory[Any]):
    def __init__(self, client: Redis) -> None:
        super().__init__(CLIENT)
        client.queues.add("reply-queue")


@contextmanager
def redis_for_one_test() -> Generator[Redis, None, None]:
    client = Redis()
    yield client
    client.flushdb()


def put_in_place() -> None:
    """Put ours where the suite looks for the package's."""
    original = weakincentives.runtime.mailbox.InMemoryMailbox
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "weakincentives" and getattr(module, "InMemoryMailbox", None) is original:
            module.InMemoryMailbox = MailboxInMemory  # type: ignore[attr-defined]
    weakincentives.contrib.mailbox.RedisMailbox = MailboxInRedis
    weakincentives.contrib.mailbox.RedisMailboxFactory = MailboxInRedisFactory
    forgotten = ModuleType("digests")  # the suite's conftest imports a subpackage that the distributions leave out
    forgotten.WorkspaceDigest = type("WorkspaceDigest", (), {})  # type: ignore[attr-defined]
    provide("weakincentives.contrib.tools", digests=forgotten)
    provide("redis", Redis=Redis)
    provide(
        "redis_utils",
        REDIS_CLUSTER_TESTS_ENABLED=True,
        is_redis_available=lambda: True,
        skip_if_no_redis=lambda: "",
        redis_standalone=redis_for_one_test,
        redis_cluster=redis_for_one_test,
    )


def provide(module: str, **names: object) -> None:
    sys.modules[module] = ModuleType(module)
    vars(sys.modules[module]).update(names)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.outcome in {"passed", "failed", "skipped"} and (report.when == "call" or report.outcome != "passed"):
        OUTCOMES[report.nodeid] = report.outcome


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--leasebeat-outcomes", type=Path, required=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    outcomes: Path = session.config.getoption("--leasebeat-outcomes")
    outcomes.write_text(json.dumps({"outcomes": OUTCOMES, "on_leasebeat": sorted(ON_LEASEBEAT)}))


put_in_place()
hypothesis.settings.register_profile("same-every-time", derandomize=True)
hypothesis.settings.load_profile("same-every-time")
