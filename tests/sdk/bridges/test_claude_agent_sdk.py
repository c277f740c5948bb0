"""What is particular to the Claude Agent SDK. Its own program runs, with a scripted model."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from claude_agent_sdk import (
    AssistantMessage,
    ClaudeSDKClient,
    HookContext,
    HookInput,
    HookMatcher,
    Message,
    ResultMessage,
    StreamEvent,
    query,
)
from claude_agent_sdk.types import HookEvent, SyncHookJSONOutput
from harness.wait import until
from sdk.bridges.agents import claude_options
from sdk.bridges.anthropic_api import PING, AnthropicApi

from leasebeat import Heartbeat, LeaseLostError
from leasebeat.bridges.claude_agent_sdk import EVENTS, LeaseHooks

TIMEOUT_S = 40.0  # less than the package waits for the answer to an interruption


async def run(lease: LeaseHooks, api: AnthropicApi, folder: Path, **options: Any) -> list[Message]:
    """Run an agent to its end by its hooks alone."""
    options = {"hooks": lease.hooks(), **options}
    return [message async for message in query(prompt="work", options=claude_options(api, str(folder), **options))]


async def test_a_loss_during_a_turn_denies_its_tool_and_is_the_last_of_the_run(tmp_path: Path) -> None:
    lost = threading.Event()
    calls: list[str] = []

    def work() -> str:
        calls.append("work")
        return "worked"

    def lose_in_second(turn: int) -> None:
        if turn == 2:
            lost.set()

    with AnthropicApi(work, 50, lose_in_second) as api:
        messages = await run(LeaseHooks(Heartbeat(), lost=lost), api, tmp_path)
    assert isinstance(messages[-1], ResultMessage)
    assert (len(calls), api.turns) == (1, 2)


async def test_a_loss_during_a_tool_ends_the_run_after_it(tmp_path: Path) -> None:
    lost = threading.Event()

    def lose() -> str:
        lost.set()
        return "worked"

    with AnthropicApi(lose, 50) as api:
        await run(LeaseHooks(Heartbeat(), lost=lost), api, tmp_path)
    assert api.turns == 1


async def test_a_tool_that_fails_beats_and_a_loss_during_it_ends_the_run_before_the_next(tmp_path: Path) -> None:
    """The program itself makes one more turn: after a tool that failed, no hook can stop it."""
    lost, heartbeat = threading.Event(), Heartbeat()
    events: list[str] = []
    heartbeat.add_callback(lambda: events.append("beat"))

    def lose() -> str:
        events.append("tool")
        lost.set()
        raise RuntimeError("disk full")

    with AnthropicApi(lose, 50, lambda turn: events.append(f"turn {turn}")) as api:
        await run(LeaseHooks(heartbeat, lost=lost), api, tmp_path)
    assert events.count("tool") == 1
    assert "beat" in events[events.index("tool") : events.index("turn 2")]


async def test_a_loss_between_tools_interrupts_the_agent_that_is_followed(tmp_path: Path) -> None:
    lost = threading.Event()
    lease = LeaseHooks(Heartbeat(), lost=lost)
    seen: list[Message] = []

    async def follow(client: ClaudeSDKClient) -> None:
        async for message in lease.follow(client):
            seen.append(message)
            if isinstance(message, AssistantMessage):
                lost.set()

    with AnthropicApi(lambda: "worked", 50) as api:
        async with ClaudeSDKClient(claude_options(api, str(tmp_path))) as client:
            await client.query("work")
            with pytest.raises(LeaseLostError):
                await follow(client)
    assert isinstance(seen[-1], AssistantMessage)
    assert api.turns <= 2


async def test_each_token_is_a_beat_and_the_pings_of_a_model_that_hangs_are_none(tmp_path: Path) -> None:
    heartbeat = Heartbeat()
    beats: list[float] = []
    heartbeat.add_callback(lambda: beats.append(heartbeat.elapsed()))
    lease = LeaseHooks(heartbeat)
    beats_by_token: dict[str, int] = {}
    tokens = [*"abcdefgh", *[PING] * 20, *"ijkl"]

    with AnthropicApi(lambda: "worked", 0, answer=lambda: tokens) as api:
        async with ClaudeSDKClient(claude_options(api, str(tmp_path), include_partial_messages=True)) as client:
            await client.query("work")
            async for message in lease.follow(client):
                if isinstance(message, StreamEvent) and message.event["type"] == "content_block_delta":
                    beats_by_token[message.event["delta"]["text"]] = len(beats)
    first = beats_by_token["a"]
    assert beats_by_token == {token: first + number for number, token in enumerate("abcdefghijkl")}


async def test_an_agent_whose_model_hangs_is_interrupted_when_the_lease_is_lost(tmp_path: Path) -> None:
    lost, hangs = threading.Event(), threading.Event()
    lease = LeaseHooks(Heartbeat(), lost=lost)
    released = threading.Event()

    def hang() -> Iterator[str]:
        hangs.set()
        released.wait(TIMEOUT_S)
        yield "too late"

    async def lose_when_it_hangs() -> None:
        await anyio.to_thread.run_sync(hangs.wait, TIMEOUT_S)
        lost.set()

    async def follow(client: ClaudeSDKClient) -> None:
        async for _ in lease.follow(client):
            pass

    with AnthropicApi(lambda: "worked", 0, answer=hang) as api:
        async with ClaudeSDKClient(claude_options(api, str(tmp_path))) as client, anyio.create_task_group() as tasks:
            await client.query("work")
            tasks.start_soon(lose_when_it_hangs)
            with anyio.fail_after(TIMEOUT_S), pytest.raises(LeaseLostError):
                await follow(client)
        released.set()


async def test_an_agent_whose_messages_are_not_read_is_interrupted_at_once(tmp_path: Path) -> None:
    """The answer to an interruption comes behind the messages that wait to be read, of which the package holds 100."""
    lost = threading.Event()
    lease = LeaseHooks(Heartbeat(), lost=lost)
    ended = threading.Event()

    def much() -> Iterator[str]:
        yield from ["token "] * 300
        ended.wait(TIMEOUT_S)

    async def lose_when_many_wait(client: ClaudeSDKClient) -> None:
        async for _ in lease.follow(client):
            await anyio.to_thread.run_sync(until, lambda: waiting(client) == 100, TIMEOUT_S)
            lost.set()

    def waiting(client: ClaudeSDKClient) -> int:
        query: Any = client._query  # noqa: SLF001 - nothing else tells
        return int(query._message_receive.statistics().current_buffer_used)  # noqa: SLF001

    with AnthropicApi(lambda: "worked", 0, answer=much) as api:
        async with ClaudeSDKClient(claude_options(api, str(tmp_path), include_partial_messages=True)) as client:
            await client.query("work")
            with anyio.fail_after(TIMEOUT_S), pytest.raises(LeaseLostError):
                await lose_when_many_wait(client)
        ended.set()


async def test_the_hooks_stand_before_those_of_the_user(tmp_path: Path) -> None:
    heard: list[str] = []

    async def hear(event: HookInput, _tool_use_id: str | None, _context: HookContext) -> SyncHookJSONOutput:
        heard.append(event["hook_event_name"])
        return {}

    mine = HookMatcher(hooks=[hear])
    others: dict[HookEvent, list[HookMatcher]] = {"PreToolUse": [mine], "Stop": [mine]}
    hooks = LeaseHooks(Heartbeat()).hooks(others)
    assert hooks["PreToolUse"][1:] == hooks["Stop"] == [mine]
    assert set(hooks) == {*EVENTS, "Stop"}
    assert others == {"PreToolUse": [mine], "Stop": [mine]}
    with AnthropicApi(lambda: "worked", 1) as api:
        await run(LeaseHooks(Heartbeat()), api, tmp_path, hooks=hooks)
    assert heard == ["PreToolUse", "Stop"]
