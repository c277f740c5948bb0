"""What is particular to the OpenAI Agents SDK."""

import asyncio
import threading
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest
from agents import Agent, AgentsException, Runner, RunResultStreaming, StreamEvent
from agents.items import TResponseStreamEvent
from agents.testing import ModelCall, ModelStep, ScriptedModel, assistant_message, function_call
from openai.types.responses import ResponseTextDeltaEvent
from sdk.bridges.agents import RUN_CONFIG, openai_tool

from leasebeat import Heartbeat, LeaseLostError
from leasebeat.bridges.openai_agents import LeaseHooks


async def test_a_loss_during_a_turn_is_raised_before_its_tools_and_as_it_is() -> None:
    """What a hook raises before a function tool would else become a `UserError`."""
    lost = threading.Event()
    calls: list[str] = []

    def work() -> str:
        calls.append("work")
        return "worked"

    def lose(_call: ModelCall) -> Any:
        lost.set()
        return [function_call("work", {}, call_id=f"call-{n}") for n in range(3)]

    model = ScriptedModel([ModelStep.respond(lose), [assistant_message("done")]])
    agent = Agent("worker", model=model, tools=[openai_tool(work)])
    with pytest.raises(LeaseLostError) as caught:
        await Runner.run(agent, "work", hooks=LeaseHooks(Heartbeat(), lost=lost), run_config=RUN_CONFIG)
    assert isinstance(caught.value, AgentsException)
    assert (calls, len(model.calls)) == ([], 1)


async def test_a_run_that_has_ended_keeps_its_result() -> None:
    lost = threading.Event()

    def lose(_call: ModelCall) -> Any:
        lost.set()
        return [assistant_message("done")]

    agent = Agent("worker", model=ScriptedModel([ModelStep.respond(lose)]))
    result = await Runner.run(agent, "work", hooks=LeaseHooks(Heartbeat(), lost=lost), run_config=RUN_CONFIG)
    assert result.final_output == "done"


async def test_a_loss_is_raised_at_a_handoff() -> None:
    lost = threading.Event()

    def lose(_call: ModelCall) -> Any:
        lost.set()
        return [function_call("transfer_to_second", {}, call_id="call-1")]

    idle = ScriptedModel([[assistant_message("done")]])
    first = Agent("first", model=ScriptedModel([ModelStep.respond(lose)]), handoffs=[Agent("second", model=idle)])
    with pytest.raises(LeaseLostError):
        await Runner.run(first, "work", hooks=LeaseHooks(Heartbeat(), lost=lost), run_config=RUN_CONFIG)
    assert idle.calls == ()


async def test_each_token_of_a_streamed_run_is_a_beat_and_a_loss_cancels_it() -> None:
    lost, heartbeat = threading.Event(), Heartbeat()
    beats: list[float] = []
    events: list[StreamEvent] = []
    heartbeat.add_callback(lambda: beats.append(heartbeat.elapsed()))
    hooks = LeaseHooks(heartbeat, lost=lost)

    async def read(run: RunResultStreaming) -> None:
        async for event in hooks.follow(run):
            events.append(event)
            if len(events) == 20:
                lost.set()

    run = Runner.run_streamed(
        Agent("worker", model=ScriptedModel([ModelStep.stream(endless_tokens)])), "work", hooks=hooks, run_config=RUN_CONFIG
    )
    with pytest.raises(LeaseLostError):
        await read(run)
    assert len(events) == 20
    assert len(beats) > 20
    assert run.run_loop_task is not None
    assert run.run_loop_task.done()


async def endless_tokens(_call: ModelCall) -> AsyncIterator[TResponseStreamEvent]:
    for number in count():
        yield ResponseTextDeltaEvent(
            type="response.output_text.delta", content_index=0, delta="x", item_id="m", logprobs=[], output_index=0, sequence_number=number
        )
        await asyncio.sleep(0.001)


async def test_a_streamed_run_that_keeps_its_lease_passes_every_event_on() -> None:
    agent = Agent("worker", model=ScriptedModel([[assistant_message("done")]]))
    hooks = LeaseHooks(Heartbeat(), lost=threading.Event())
    run = Runner.run_streamed(agent, "work", hooks=hooks, run_config=RUN_CONFIG)
    kinds = [event.type async for event in hooks.follow(run)]
    assert run.final_output == "done"
    assert {"raw_response_event", "run_item_stream_event"} <= set(kinds)


async def test_hooks_of_ones_own_call_those_that_they_override() -> None:
    lost = threading.Event()

    class MyHooks(LeaseHooks):
        async def on_llm_start(self, *args: Any, **kwargs: Any) -> None:
            lost.set()
            await super().on_llm_start(*args, **kwargs)

    model = ScriptedModel([[assistant_message("done")]])
    with pytest.raises(LeaseLostError):
        await Runner.run(Agent("worker", model=model), "work", hooks=MyHooks(Heartbeat(), lost=lost), run_config=RUN_CONFIG)
    assert model.calls == ()
