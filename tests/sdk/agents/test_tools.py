"""Tools: their beats, their counts, and that nothing in them ends the agent."""

# ruff: noqa: ARG001 - what handlers and loops take is given

import json
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from sdk.conftest import Clock

from leasebeat import GiveUp, Heartbeat, LeaseExpiredError, LeaseExtender, LeaseExtenderConfig
from leasebeat.agents import (
    Deadline,
    DeadlineExceededError,
    Prompt,
    Resources,
    Session,
    Tool,
    ToolCall,
    ToolContext,
    ToolCounters,
    ToolCounts,
    ToolExecutor,
    ToolHandler,
    ToolResult,
    WorkInterruptedError,
)

PROMPT = Prompt("What is 6 times 7?", parse=str)


@dataclass(frozen=True)
class Product:
    left: int
    right: int


def multiply(params: Product, *, context: ToolContext) -> ToolResult[int]:
    return ToolResult.ok(params.left * params.right)


def heard_beats(heartbeat: Heartbeat) -> list[str]:
    heard: list[str] = []
    heartbeat.add_callback(lambda: heard.append("beat"))
    return heard


def run(handler: ToolHandler, arguments: str = "{}", *, name: str = "tool", **options: Any) -> ToolResult[Any]:
    context = ToolContext(PROMPT, Session(), **options)
    return ToolExecutor([Tool("tool", "", handler, params=Product)]).execute(ToolCall("1", name, arguments), context=context)


def test_tool_context_beat(clock: Clock) -> None:
    heartbeat = Heartbeat()
    heard = heard_beats(heartbeat)
    context = ToolContext(prompt=PROMPT, session=Session(), heartbeat=heartbeat)
    clock.now += 5.0
    context.beat()
    clock.now += 2.0
    assert heartbeat.elapsed() == 2.0
    assert heard == ["beat"]


def test_a_context_without_a_heartbeat_beats_for_nobody() -> None:
    ToolContext(PROMPT, Session()).beat()


@pytest.mark.scar(9)
def test_a_beat_that_finds_the_lease_lost_stops_the_tool() -> None:
    heartbeat, deadline, begun = Heartbeat(), Deadline(), list[str]()

    def handle(_params: dict[str, Any], *, context: ToolContext) -> ToolResult[None]:
        begun.append("begun")
        heartbeat.add_callback(lambda: deadline.cut(WorkInterruptedError("the lease is lost")))
        context.beat()
        begun.append("still at it")
        return ToolResult.ok(None)

    executor, context = ToolExecutor([Tool("tool", "", handle)]), ToolContext(PROMPT, Session(), deadline, heartbeat)
    for _ in range(2):  # the second time it does not even begin
        with pytest.raises(WorkInterruptedError, match="the lease is lost"):
            executor.execute(ToolCall("1", "tool", "{}"), context=context)
    assert begun == ["begun"]


def test_a_tool_may_take_longer_than_the_request_but_none_begins_then() -> None:
    deadline = Deadline(0.0)
    ToolContext(PROMPT, Session(), deadline).beat()
    with pytest.raises(DeadlineExceededError):
        run(multiply, '{"left": 6, "right": 7}', deadline=deadline)


def test_the_executor_beats_before_and_after_each_tool() -> None:
    heartbeat = Heartbeat()
    heard = heard_beats(heartbeat)

    def handle(_params: Product, *, context: ToolContext) -> ToolResult[int]:
        heard.append("tool")
        return ToolResult.ok(1)

    run(handle, '{"left": 6, "right": 7}', heartbeat=heartbeat)
    assert heard == ["beat", "tool", "beat"]


def test_it_beats_after_a_tool_that_fails_too() -> None:
    heartbeat = Heartbeat()
    heard = heard_beats(heartbeat)

    def handle(_params: Product, *, context: ToolContext) -> ToolResult[int]:
        raise OSError("disk full")

    assert run(handle, '{"left": 6, "right": 7}', heartbeat=heartbeat) == ToolResult.error("OSError: disk full")
    assert heard == ["beat", "beat"]


@pytest.mark.scar(12)
@pytest.mark.parametrize("raises", [False, True])
def test_who_a_tool_leaves_behind_does_not_beat_for_what_comes_next(raises: bool) -> None:
    heartbeat, left = Heartbeat(), list[ToolContext]()
    heard = heard_beats(heartbeat)

    def handle(_params: Product, *, context: ToolContext) -> ToolResult[int]:
        left.append(context)
        context.beat()
        if raises:
            raise GiveUp("enough")
        return ToolResult.ok(1)

    with suppress(GiveUp):
        run(handle, '{"left": 6, "right": 7}', heartbeat=heartbeat)
    before = len(heard)
    left[0].beat()
    assert (before, len(heard)) == (2 + (not raises), before)


def test_a_tool_gets_its_parameters_and_its_context() -> None:
    deadline, resources, seen = Deadline(60), Resources({int: 5}), []

    def handle(params: Product, *, context: ToolContext) -> ToolResult[int]:
        seen.append((params, context.prompt, context.deadline, context.resources.get(int)))
        return ToolResult.ok(params.left * params.right)

    result = run(handle, '{"left": 6, "right": 7}', deadline=deadline, resources=resources)
    assert result == ToolResult.ok(42)
    assert seen == [(Product(6, 7), PROMPT, deadline, 5)]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ('{"left": 6, "right"', "not valid JSON"),
        ("[6, 7]", "must be a JSON object, not [6, 7]"),
        ("", "missing 2 required positional arguments"),
        ('{"left": 6, "right": 7, "over": 1}', "unexpected keyword argument 'over'"),
    ],
)
def test_wrong_arguments_are_a_result_for_the_model(arguments: str, says: str) -> None:
    result = run(multiply, arguments)
    assert not result.success
    assert says in result.message


def test_a_tool_without_arguments_may_be_called_with_nothing() -> None:
    def echo(params: dict[str, Any], *, context: ToolContext) -> ToolResult[dict[str, Any]]:
        return ToolResult.ok(params)

    executor = ToolExecutor([Tool("now", "", echo)])
    assert executor.execute(ToolCall("1", "now", " "), context=ToolContext(PROMPT, Session())) == ToolResult.ok({})


def test_a_tool_that_does_not_exist_is_a_result_that_names_those_that_do() -> None:
    result = run(multiply, name="divide")
    assert result == ToolResult.error("there is no tool 'divide', but there are: tool")


def test_a_tool_that_exits_does_not_end_the_agent() -> None:
    def handle(_params: Product, *, context: ToolContext) -> ToolResult[int]:
        sys.exit("usage: tool")

    assert run(handle, '{"left": 6, "right": 7}') == ToolResult.error("SystemExit: usage: tool")


@pytest.mark.parametrize(("interval", "passed_on"), [(60.0, 2), (0.0, 102)])
def test_a_tools_beats_are_passed_on_at_most_once_per_interval(interval: float, passed_on: int) -> None:
    def handle(_params: dict[str, Any], *, context: ToolContext) -> ToolResult[None]:
        for _ in range(100):
            context.beat()
        return ToolResult.ok(None)

    heartbeat, counters = Heartbeat(), ToolCounters()
    heard = heard_beats(heartbeat)
    executor = ToolExecutor([Tool("chatty", "", handle, beat_interval=interval)], counters=counters)
    executor.execute(ToolCall("1", "chatty", "{}"), context=ToolContext(PROMPT, Session(), heartbeat=heartbeat))
    assert len(heard) == passed_on
    assert counters.snapshot() == {"chatty": ToolCounts(calls=1, beats=102)}


def test_twenty_threads_of_a_tool_pass_on_one_beat_per_interval(clock: Clock) -> None:
    def handle(_params: dict[str, Any], *, context: ToolContext) -> ToolResult[None]:
        together = threading.Barrier(20)

        def beat() -> None:
            together.wait()
            context.beat()

        threads = [threading.Thread(target=beat) for _ in range(20)]
        clock.now += 0.3  # longer than the interval, so that one beat is due
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return ToolResult.ok(None)

    heartbeat = Heartbeat()
    heard = heard_beats(heartbeat)
    executor = ToolExecutor([Tool("busy", "", handle, beat_interval=0.25)])
    executor.execute(ToolCall("1", "busy", "{}"), context=ToolContext(PROMPT, Session(), heartbeat=heartbeat))
    assert len(heard) == 3, "before, by the twenty, and after"


def test_calls_and_failures_are_counted_per_tool() -> None:
    def fail(_params: dict[str, Any], *, context: ToolContext) -> ToolResult[None]:
        return ToolResult.error("not today")

    counters = ToolCounters()
    executor = ToolExecutor([Tool("good", "", multiply, params=Product), Tool("bad", "", fail)], counters=counters)
    context = ToolContext(PROMPT, Session())
    arguments = json.dumps({"left": 1, "right": 2})
    for name in ("good", "bad", "good", "bad", "bad"):
        executor.execute(ToolCall("1", name, arguments), context=context)
    before = counters.snapshot()
    assert before == {"good": ToolCounts(calls=2, beats=4), "bad": ToolCounts(calls=3, failures=3, beats=6)}
    executor.execute(ToolCall("1", "good", arguments), context=context)
    assert before["good"].calls == 2, "a snapshot stays as it was"


@pytest.mark.parametrize("failure", [None, ConnectionError("down"), LeaseExpiredError("expired")])
def test_what_the_beats_of_a_tool_do_to_any_message_is_counted(failure: Exception | None) -> None:
    class Message:
        id = "42"

        def extend_visibility(self, _seconds: int, /) -> None:
            if failure is not None:
                raise failure

    heartbeat, counters = Heartbeat(), ToolCounters()
    executor = ToolExecutor([Tool("tool", "", multiply, params=Product)], counters=counters)
    context = ToolContext(PROMPT, Session(), heartbeat=heartbeat)
    with LeaseExtender(LeaseExtenderConfig(interval=60)).attach(Message(), heartbeat):
        executor.execute(ToolCall("1", "tool", '{"left": 6, "right": 7}'), context=context)
        heartbeat.beat()
    counted = counters.snapshot()["tool"]
    assert (counted.beats, counted.extensions, counted.failed_extensions) == (2, int(failure is None), int(failure is not None))


def test_an_interval_that_is_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="beat_interval must be 0 or more seconds, not -1"):
        Tool("tool", "", multiply, beat_interval=-1)


def test_resources_are_found_by_their_type() -> None:
    resources = Resources({int: 5, bytes: "text"})
    assert resources.get(int) == 5
    with pytest.raises(LookupError, match="there is no str among the resources"):
        resources.get(str)
    with pytest.raises(TypeError, match="the resource for bytes is a str"):
        resources.get(bytes)
