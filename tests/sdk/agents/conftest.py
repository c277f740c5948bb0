"""Fixtures: a chat server, and mailboxes on the shared service."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from harness.server import Server
from sdk.agents.chat_server import ChatServer
from sdk.agents.loops import EAGER, MakeLoop, Replies, Requests, ToolHeavyLoop, tool_loop

from leasebeat import Client
from leasebeat.agents import Mailbox, MainLoopRequest, MainLoopResult, OpenAIAdapter, ToolHandler

LEASE_S = 30.0

StartChat = Callable[..., ChatServer]
AdapterFor = Callable[..., OpenAIAdapter[str]]


@pytest.fixture
def start_chat() -> Iterator[StartChat]:
    """Start chat servers; they end with the test."""
    with ExitStack() as stack:
        yield lambda *script, **options: stack.enter_context(ChatServer(*script, **options))


@pytest.fixture
def adapter_for() -> Iterator[AdapterFor]:
    """Make adapters for chat servers; they are closed with the test."""
    with ExitStack() as stack:

        def make(chat: ChatServer, **options: Any) -> OpenAIAdapter[str]:
            adapter = OpenAIAdapter[str](chat.url, model="m", **options)
            stack.callback(adapter.close)
            return adapter

        yield make


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture
def new_queue(client: Client) -> Iterator[Callable[..., str]]:
    """Create queues with leases that no test lasts, and that beats extend every 0.2 seconds."""
    made: list[str] = []

    def create(**config: object) -> str:
        made.append(f"agents-{uuid.uuid4().hex[:8]}")
        settings: dict[str, object] = {"visibility_timeout": LEASE_S, "extension": LEASE_S, "beat_interval": 0.2, **config}
        client.put_queue(made[-1], **settings)  # type: ignore[arg-type]
        return made[-1]

    yield create
    for name in made:
        client.delete_queue(name, force=True)


@pytest.fixture
def requests(client: Client, new_queue: Callable[..., str]) -> Requests:
    return Mailbox(client, new_queue(), read=MainLoopRequest.reader(str), worker_id=f"agent-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def replies(client: Client, new_queue: Callable[..., str]) -> Replies:
    return Mailbox(client, new_queue(), read=MainLoopResult.reader(str))


@pytest.fixture
def make_loop(requests: Requests, adapter_for: AdapterFor) -> MakeLoop:
    """Make loops on the mailbox of requests that extend every 0.1 seconds, and ask the model once for each turn."""

    def make(
        chat: ChatServer, handler: ToolHandler | None = None, kind: type[ToolHeavyLoop] = ToolHeavyLoop, **config: Any
    ) -> ToolHeavyLoop:
        return tool_loop(adapter_for(chat, retries=0), requests, handler, kind, **{"lease_extender": EAGER, **config})

    return make
