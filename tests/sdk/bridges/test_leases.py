"""What every bridge does for a lease of a real service."""

import uuid
from collections.abc import Callable, Iterator
from datetime import datetime

import pytest
from harness.server import Server
from harness.wait import until
from langchain_core.runnables import RunnableLambda
from sdk.bridges.agents import AGENTS, RunAgent, langchain_config
from sdk.running import Running

import leasebeat
from leasebeat import Client, Context, Heartbeat, HeldMessage, LeasedMessage, LeaseExtender, LeaseExtenderConfig, Worker

LEASE_S = 60.0
ENDLESS = 50

Start = Callable[[leasebeat.Handler], None]


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture
def queue(client: Client) -> str:
    """A queue of its own, where a beat extends only if it reports progress."""
    name = f"bridges-{uuid.uuid4().hex[:8]}"
    client.put_queue(name, visibility_timeout=LEASE_S, extension=LEASE_S, beat_interval=0.2, progress_required=True)
    return name


@pytest.fixture
def start(client: Client, queue: str) -> Iterator[Start]:
    """Start a worker; it ends with the test."""
    started: list[Running] = []
    yield lambda handler: started.append(Running(Worker(client, queue, handler, wait=5.0, drain_timeout=60.0)))
    for running in started:
        running.worker.stop()
        running.join()


def finished(client: Client, message_id: str) -> leasebeat.Message:
    until(lambda: client.get_message(message_id).status in {"completed", "failed", "cancelled"}, pause=0.05)
    return client.get_message(message_id)


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_at_work_extends_its_lease_from_tool_to_tool(agent: RunAgent, client: Client, queue: str, start: Start) -> None:
    ends: list[datetime] = []

    def see_it_extended() -> str:
        ends.extend(until(lambda: [end for end in lease_ends(client, queue) if end > ends[-1]]))
        return "worked"

    def handle(_message: LeasedMessage, context: Context) -> str:
        ends.extend(lease_ends(client, queue))
        return agent(see_it_extended, 3, context)

    sent = client.send(queue, 1)
    start(handle)
    message = finished(client, sent.id)
    assert (message.status, message.output, len(ends)) == ("completed", "done", 4)
    assert message.progress is not None
    assert message.progress >= 3


def lease_ends(client: Client, queue: str) -> list[datetime]:
    return [lease.expires_at for lease in client.list_leases(queue=queue).items]


@pytest.mark.parametrize("agent", AGENTS)
def test_a_cancelled_message_ends_the_run_before_its_next_step(agent: RunAgent, client: Client, queue: str, start: Start) -> None:
    calls: list[str] = []
    heard: list[leasebeat.LeaseLostError] = []

    def handle(message: LeasedMessage, context: Context) -> None:
        def cancel() -> str:
            calls.append(message.id)
            client.cancel_message(message.id)
            context.heartbeat.beat()
            assert context.lost.wait(60)
            return "cancelled"

        try:
            agent(cancel, ENDLESS, context)
        except leasebeat.LeaseLostError as error:
            heard.append(error)
            raise

    client.send(queue, 1)
    start(handle)
    until(lambda: heard)
    assert isinstance(heard[0], leasebeat.LeaseCancelledError)
    assert len(calls) == 1


@pytest.mark.parametrize("agent", AGENTS)
def test_a_heartbeat_extends_a_lease_and_its_loss_ends_the_run(agent: RunAgent, client: Client, queue: str) -> None:
    client.send(queue, 1)
    (lease,) = client.claim(queue, worker_id="bridge", visibility_timeout=60)
    heartbeat, extender = Heartbeat(), LeaseExtender(LeaseExtenderConfig(interval=0))
    calls: list[str] = []

    def cancel_at_last() -> str:
        calls.append(client.get_message(lease.message.id).status)
        if len(calls) == 2:
            client.cancel_message(lease.message.id)
        return "worked"

    with extender.attach(HeldMessage(client, lease), heartbeat), pytest.raises(leasebeat.LeaseLostError, match="the lease is over"):
        agent(cancel_at_last, ENDLESS, heartbeat, extender.lost)
    assert calls == ["in_progress", "in_progress"]


@pytest.mark.parametrize("agent", AGENTS)
def test_a_heartbeat_alone_beats_before_and_after_each_tool(agent: RunAgent) -> None:
    heartbeat = Heartbeat()
    events: list[str] = []
    heartbeat.add_callback(lambda: events.append("beat"))

    def work() -> str:
        events.append("tool")
        return "worked"

    assert agent(work, 2, heartbeat) == "done"
    first, second = (number for number, event in enumerate(events) if event == "tool")
    assert "beat" in events[:first]
    assert "beat" in events[first + 1 : second]
    assert "beat" in events[second + 1 :]


@pytest.mark.parametrize("agent", AGENTS)
def test_a_handler_may_report_progress_of_its_own(agent: RunAgent, client: Client, queue: str, start: Start) -> None:
    def handle(_message: LeasedMessage, context: Context) -> None:
        def work() -> str:
            context.beat(progress=700, detail={"page": 7})
            return "worked"

        agent(work, 2, context.heartbeat, context.lost)
        raise leasebeat.GiveUp("enough")

    sent = client.send(queue, 1)
    start(handle)
    message = finished(client, sent.id)
    assert (message.status, message.progress, message.detail) == ("failed", 700, {"page": 7})


def test_progress_counts_the_events_of_all_threads(client: Client, queue: str, start: Start) -> None:
    """Each run of a step begins and ends, and the last report goes out before the nack."""

    def handle(_message: LeasedMessage, context: Context) -> None:
        RunnableLambda(str).batch(list(range(200)), {**langchain_config(context), "max_concurrency": 8})
        raise leasebeat.GiveUp("enough")

    sent = client.send(queue, 1)
    start(handle)
    assert finished(client, sent.id).progress == 400
