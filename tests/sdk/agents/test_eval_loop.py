"""Eval loops on the real service."""

from collections.abc import Callable
from typing import Any

import pytest
from sdk.agents.chat_server import Says
from sdk.agents.conftest import LEASE_S, AdapterFor, StartChat
from sdk.agents.loops import USES_TOOL, ToolHeavyLoop
from sdk.running import until_extended

from leasebeat import Client, LeaseExtenderConfig
from leasebeat.agents import (
    EvalLoop,
    EvalLoopConfig,
    EvalRequest,
    EvalResult,
    Mailbox,
    Sample,
    Score,
    Tool,
    ToolContext,
    ToolResult,
)

Samples = Mailbox[EvalRequest[str, str], EvalResult]
Results = Mailbox[EvalResult, None]
CONFIG = EvalLoopConfig(lease_extender=LeaseExtenderConfig(interval=0.1))


def exact(output: str, expected: str) -> Score:
    return Score(float(output == expected), output == expected, f"{output!r} for {expected!r}")


@pytest.fixture
def samples(client: Client, new_queue: Callable[..., str]) -> Samples:
    return Samples(client, new_queue(), read=EvalRequest.reader(str, str))


@pytest.fixture
def results(client: Client, new_queue: Callable[..., str]) -> Results:
    return Results(client, new_queue(), read=EvalResult.read)


def test_the_beats_of_the_agent_extend_the_leases_of_the_eval_loop(
    client: Client, samples: Samples, results: Results, start_chat: StartChat, adapter_for: AdapterFor
) -> None:
    def work(_params: dict[str, Any], *, context: ToolContext) -> ToolResult[None]:
        until_extended(client, samples.queue, beat=context.beat)
        return ToolResult.ok(None)

    agent = ToolHeavyLoop(adapter=adapter_for(start_chat(USES_TOOL, Says("42"))))
    agent.tool = Tool("tool", "", work)
    sent = samples.send(request := EvalRequest(Sample("s-1", "What is 6 times 7?", "42")), reply_to=results.queue)
    EvalLoop(loop=agent, evaluator=exact, requests=samples, config=CONFIG).run(1, LEASE_S)
    (reply,) = results.receive()
    assert (reply.body.request_id, reply.body.sample_id) == (request.request_id, "s-1")
    assert reply.body.score == Score(1.0, passed=True, reason="'42' for '42'")
    assert (reply.body.seconds or 0) > 0.2, "the least time between two extensions"
    message = client.get_message(sent.id)
    assert (message.status, message.generation) == ("completed", 1)


def test_a_bare_model_is_scored_by_its_adapter(samples: Samples, results: Results, start_chat: StartChat, adapter_for: AdapterFor) -> None:
    chat = start_chat(Says("42"), Says("41"))
    for name in ("s-1", "s-2"):
        samples.send(EvalRequest(Sample(name, "What is 6 times 7?", "42")), reply_to=results.queue)
    EvalLoop(adapter=adapter_for(chat), evaluator=exact, requests=samples, config=CONFIG).run(2)
    scores = {reply.body.sample_id: reply.body.score for reply in results.receive(max_messages=10)}
    assert {name: score.passed for name, score in scores.items() if score} == {"s-1": True, "s-2": False}
    assert [message["content"] for message in chat.asked[0].said] == ["What is 6 times 7?"]


def fails(_output: str, _expected: str) -> Score:
    raise ZeroDivisionError("no expectation")


def test_errors_become_results(samples: Samples, results: Results, start_chat: StartChat, adapter_for: AdapterFor) -> None:
    samples.send(EvalRequest(Sample("s-1", "?", "42")), reply_to=results.queue)
    EvalLoop(adapter=adapter_for(start_chat(Says("42"))), evaluator=fails, requests=samples).run(1)
    (reply,) = results.receive()
    assert (reply.body.sample_id, reply.body.score, reply.body.error) == ("s-1", None, "no expectation")


def test_it_needs_either_a_loop_or_an_adapter(samples: Samples, start_chat: StartChat, adapter_for: AdapterFor) -> None:
    adapter = adapter_for(start_chat(Says("42")))
    with pytest.raises(ValueError, match="either a loop or an adapter"):
        EvalLoop[str, str, str](evaluator=exact, requests=samples)
    with pytest.raises(ValueError, match="either a loop or an adapter"):
        EvalLoop(loop=ToolHeavyLoop(adapter=adapter), adapter=adapter, evaluator=exact, requests=samples)
