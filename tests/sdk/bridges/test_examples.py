"""The examples of the bridges, as programs, against the real service. Their models are scripted."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from harness.server import Server
from harness.wait import until
from sdk.bridges.agents import claude_environment
from sdk.bridges.anthropic_api import AnthropicApi
from sdk.scripted_service import Answer, ScriptedService

import leasebeat
from leasebeat import Client

ROOT = Path(__file__).parents[3]
SOURCES = Path(leasebeat.__file__).parents[1]
PARROT = """
from langchain_core.language_models import FakeListChatModel

def Parrot():
    return FakeListChatModel(responses=["done"])
"""


Models = Callable[[Path], AbstractContextManager[Mapping[str, str]]]


@contextmanager
def claude(folder: Path) -> Iterator[Mapping[str, str]]:
    with AnthropicApi(lambda: "unused", 0) as api:
        yield claude_environment(api, str(folder))


@contextmanager
def openai(_folder: Path) -> Iterator[Mapping[str, str]]:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "done"}}
    completion = {"id": "c-1", "object": "chat.completion", "created": 0, "model": "scripted", "choices": [choice]}
    with ScriptedService() as api:
        api.on("POST", "/chat/completions", Answer(completion))
        yield {"OPENAI_BASE_URL": api.url, "OPENAI_API_KEY": "none"}


@contextmanager
def langchain(folder: Path) -> Iterator[Mapping[str, str]]:
    (folder / "parrot.py").write_text(PARROT)
    yield {"CHAT_MODEL": "parrot:Parrot", "PYTHONPATH": os.pathsep.join([str(SOURCES), str(folder)])}


def example(name: str, argument: str, environment: Mapping[str, str]) -> "subprocess.Popen[str]":
    kept = {variable: value for variable, value in os.environ.items() if not variable.startswith(("ANTHROPIC_", "OPENAI_", "CHAT_"))}
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), argument]
    return subprocess.Popen(command, env={**kept, "PYTHONPATH": str(SOURCES), **environment}, stderr=subprocess.PIPE, text=True)


def outputs(client: Client, queue: str) -> list[object]:
    """What the finished messages of a queue gave, once the example has made the queue."""
    try:
        return [message.output for message in client.list_messages(queue).items if message.status == "completed"]
    except leasebeat.NotFoundError:
        return []


@pytest.mark.parametrize(
    ("name", "queue", "models"),
    [
        ("claude_agent", "claude-agent", claude),
        ("openai_agents_worker", "openai-agents", openai),
        ("langchain_worker", "langchain", langchain),
    ],
)
def test_an_example_works_on_what_it_is_given(name: str, queue: str, models: Models, server: Server, tmp_path: Path) -> None:
    with Client(server.url) as client, models(tmp_path) as environment:
        with example(name, str(ROOT / "LICENSE"), {"LEASEBEAT_URL": server.url, **environment}) as process:
            try:
                until(lambda: process.poll() is not None or outputs(client, queue) == ["done"], timeout=80, pause=0.1)
                process.send_signal(signal.SIGINT)
                assert process.wait(60) == 0
            finally:
                process.kill()
        assert outputs(client, queue) == ["done"]


@pytest.mark.parametrize(
    ("name", "missing"),
    [("claude_agent", "ANTHROPIC_API_KEY"), ("openai_agents_worker", "OPENAI_API_KEY"), ("langchain_worker", "CHAT_MODEL")],
)
def test_an_example_says_what_is_missing(name: str, missing: str) -> None:
    with example(name, "anything", {}) as process:
        _, said = process.communicate(timeout=100)
        assert (process.returncode, said.split()[:3]) == (1, [missing, "is", "missing:"])
