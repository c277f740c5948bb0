"""Agents in processes of their own: the example, real signals, and real deaths."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness.server import Server
from harness.wait import until
from sdk.agents.chat_server import Asked, ChatServer, Says
from sdk.agents.conftest import StartChat

import leasebeat
from leasebeat import Client
from leasebeat.agents import Mailbox, MainLoopRequest, MainLoopResult

SOURCES = Path(leasebeat.__file__).parents[1]
EXAMPLE = Path(__file__).parents[3] / "examples" / "agent.py"
QUESTIONS, ANSWERS = "questions", "answers"


@contextmanager
def agent(server: Server, chat: ChatServer, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """The example in a process of its own, which does not outlive the block."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(SOURCES),
        "LEASEBEAT_URL": server.url,
        "OPENAI_BASE_URL": chat.url,
        "OPENAI_MODEL": "m",
        "OPENAI_API_KEY": "sk-secret",
    }
    command = [sys.executable, str(EXAMPLE), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def answer_from_a_search(asked: Asked) -> Says:
    """Search first, then answer with what was found."""
    if not asked.results:
        return Says(calls=(("search", '{"words": "visibility"}'), ("read_file", '{"path": "../secret.txt"}')))
    return Says(f"I found {asked.results[0]}, and {asked.results[1]}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_text("do not look here: visibility")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "leases.txt").write_text("one\nThe visibility timeout is 30 s.\n")
    return tmp_path / "docs"


def test_the_example_answers_a_question_and_stops_on_sigterm(server: Server, start_chat: StartChat, folder: Path) -> None:
    chat = start_chat(answer_from_a_search, api_key="sk-secret")
    with agent(server, chat, "work", str(folder)) as worker, agent(server, chat, "ask", "What is the timeout?") as caller:
        said, complaints = caller.communicate(timeout=60)
        assert caller.returncode == 0, complaints
        assert "leases.txt:2: The visibility timeout is 30 s." in said
        assert "outside of the folder" in said
        assert "do not look here" not in said
        worker.send_signal(signal.SIGTERM)
        printed, complaints = worker.communicate(timeout=60)
    assert worker.returncode == 0, complaints
    assert "search: ToolCounts(calls=1, failures=0" in printed
    assert "sk-secret" not in printed + complaints


def test_the_example_says_what_is_missing(server: Server) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    environment |= {"PYTHONPATH": str(SOURCES), "LEASEBEAT_URL": server.url}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "work", "."], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "Set OPENAI_BASE_URL" in done.stderr


@pytest.mark.scar(32)
def test_on_sigterm_the_request_in_hand_is_finished_and_no_other_begun(server: Server, start_chat: StartChat, folder: Path) -> None:
    terminated = folder / "terminated"

    def slow(_asked: Asked) -> Says:
        return Says("done", between=lambda: until(terminated.exists, timeout=60))

    chat = start_chat(slow)
    with agent(server, chat, "work", str(folder)) as worker, Client(server.url) as client:
        until(lambda: any(queue.name == QUESTIONS for queue in client.list_queues(limit=1000).items), timeout=60)
        requests = Mailbox[MainLoopRequest[str], MainLoopResult[str]](client, QUESTIONS, read=MainLoopRequest.reader(str))
        first = requests.send(MainLoopRequest("one"))
        until(lambda: chat.asked, timeout=60)
        second = requests.send(MainLoopRequest("two"))
        worker.send_signal(signal.SIGTERM)
        assert worker.stderr is not None
        assert any("Stopping" in line for line in worker.stderr)
        terminated.touch()
        _, complaints = worker.communicate(timeout=60)
        assert worker.returncode == 0, complaints
        assert client.get_message(first.id).output["output"] == "done"
        assert client.get_message(second.id).status == "pending"
        client.cancel_message(second.id)


@pytest.mark.scar(30)
def test_an_agent_that_is_killed_is_followed_by_another_and_there_is_one_reply(server: Server, start_chat: StartChat, folder: Path) -> None:
    hanging = start_chat(Says("never", between=lambda: time.sleep(60)))
    answering = start_chat(Says("done"))
    with Client(server.url) as client:
        for name in (QUESTIONS, ANSWERS):
            client.put_queue(name, visibility_timeout=60, extension=60, beat_interval=5)
        requests = Mailbox[MainLoopRequest[str], MainLoopResult[str]](client, QUESTIONS, read=MainLoopRequest.reader(str))
        replies = Mailbox[MainLoopResult[str], None](client, ANSWERS, read=MainLoopResult.reader(str))
        sent = requests.send(request := MainLoopRequest("go"), reply_to=ANSWERS)
        with agent(server, hanging, "work", str(folder)) as worker:
            until(lambda: hanging.asked, timeout=60)
            worker.kill()
        (lease,) = [lease for lease in client.list_leases(queue=QUESTIONS).items if lease.message_id == sent.id]
        client.delete_worker(lease.worker_id)  # as an operator does who knows that it is dead
        with agent(server, answering, "work", str(folder)):
            (reply,) = replies.receive(wait_time_seconds=50)
            assert reply.body == MainLoopResult(request.request_id, output="done", session_id=reply.body.session_id)
            reply.acknowledge()
            until(lambda: client.get_message(sent.id).status == "completed", timeout=60)
        assert replies.receive() == ()
        assert client.get_message(sent.id).generation == 2
