"""The adapter for chat completions, against a server that speaks them."""

# ruff: noqa: ARG001 - what handlers and loops take is given

import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest
from harness.wait import until
from openai.types.chat.completion_create_params import CompletionCreateParams
from pydantic import TypeAdapter
from sdk.agents.chat_server import Asked, ChatServer, Refuses, Says, Sends, data
from sdk.agents.conftest import AdapterFor, StartChat

from leasebeat import Heartbeat
from leasebeat.agents import (
    AnswerError,
    Budget,
    BudgetExceededError,
    BudgetTracker,
    Deadline,
    DeadlineExceededError,
    EndpointError,
    OpenAIAdapter,
    Prompt,
    Session,
    TokenUsage,
    Tool,
    ToolContext,
    ToolResult,
    TurnLimitError,
    WorkInterruptedError,
)

KEY = "sk-very-secret-9f8e7d6c"
NUMBERS = {"type": "object", "properties": {"left": {"type": "number"}, "right": {"type": "number"}}, "required": ["left", "right"]}


def multiply(params: dict[str, float], *, context: ToolContext) -> ToolResult[dict[str, float]]:
    return ToolResult.ok({"product": params["left"] * params["right"]})


MULTIPLY = Tool("multiply", "Multiply two numbers.", multiply, parameters=NUMBERS)
CALL = ("multiply", '{"left": 6, "right": 7}')


def ask(adapter: OpenAIAdapter[str], text: str = "What is 6 times 7?", *, session: Session | None = None, **options: Any) -> str:
    prompt = Prompt(text, parse=str, instructions="Be brief.", tools=(MULTIPLY,))
    return adapter.evaluate(prompt, session=session or Session(), **options).output


def counting() -> tuple[Heartbeat, list[float]]:
    heartbeat, beats = Heartbeat(), list[float]()
    heartbeat.add_callback(lambda: beats.append(time.monotonic()))
    return heartbeat, beats


@contextmanager
def quick_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr("leasebeat.agents._openai.FIRST_PAUSE_S", 0.01)
        yield


@pytest.fixture(params=[True, False], ids=["streamed", "whole"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_an_answer(start_chat: StartChat, adapter_for: AdapterFor, stream: bool) -> None:
    chat = start_chat(Says("It is forty-two.", tokens=(12, 7)))
    response = adapter_for(chat, stream=stream).evaluate(
        Prompt("What is 6 times 7?", parse=str.upper, instructions="Be brief."), session=Session()
    )
    assert (response.text, response.output, response.usage) == ("It is forty-two.", "IT IS FORTY-TWO.", TokenUsage(12, 7))
    (asked,) = chat.asked
    assert asked.said == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 6 times 7?"}]
    assert (asked.body["model"], asked.body["stream"]) == ("m", stream)
    assert "tools" not in asked.body


def test_tools_are_run_and_their_results_go_back(start_chat: StartChat, adapter_for: AdapterFor, stream: bool) -> None:
    chat = start_chat(Says("Let me see.", (CALL, ("multiply", '{"left": 2, "right": 3}'))), Says("42, and 6."))
    session = Session()
    assert ask(adapter_for(chat, stream=stream), session=session) == "42, and 6."
    _, second = chat.asked
    assert second.results == ['{"product": 42}', '{"product": 6}']
    assistant = second.said[2]
    assert assistant["content"] == "Let me see."
    assert [call["function"] for call in assistant["tool_calls"]] == [
        {"name": "multiply", "arguments": '{"left": 6, "right": 7}'},
        {"name": "multiply", "arguments": '{"left": 2, "right": 3}'},
    ]
    assert [type(entry).__name__ for entry in session.entries] == ["Question", "Completion", "ToolOutcome", "ToolOutcome", "Completion"]


def test_a_session_goes_on(start_chat: StartChat, adapter_for: AdapterFor) -> None:
    chat = start_chat(Says("42."), Says("84."))
    adapter, session = adapter_for(chat), Session()
    ask(adapter, session=session)
    ask(adapter, "And twice that?", session=session)
    assert [(message["role"], message["content"]) for message in chat.asked[1].said] == [
        ("system", "Be brief."),
        ("user", "What is 6 times 7?"),
        ("assistant", "42."),
        ("user", "And twice that?"),
    ]


@pytest.mark.parametrize("arguments", ['{"left": 6, "rig', "6 and 7", '["left"]'])
def test_malformed_arguments_are_told_to_the_model_which_may_mend_them(
    start_chat: StartChat, adapter_for: AdapterFor, stream: bool, arguments: str
) -> None:
    chat = start_chat(Says(calls=(("multiply", arguments),)), Says(calls=(CALL,)), Says("42."))
    assert ask(adapter_for(chat, stream=stream)) == "42."
    wrong, right = chat.asked[2].results
    assert arguments in json.loads(wrong)["error"]
    assert right == '{"product": 42}'


def test_what_is_asked_is_what_the_protocol_says(start_chat: StartChat, adapter_for: AdapterFor, stream: bool) -> None:
    chat = start_chat(Says(calls=(CALL, ("multiply", "{"))), Says("42."))
    ask(adapter_for(chat, stream=stream, options={"temperature": 0}))
    for asked in chat.asked:
        TypeAdapter(CompletionCreateParams).validate_python(asked.body)
        assert asked.body["temperature"] == 0


def test_the_chat_server_of_these_tests_is_understood_by_the_protocols_own_client(start_chat: StartChat) -> None:
    chat = start_chat(Says("Let me see.", (CALL,)))
    client = openai.OpenAI(base_url=chat.url, api_key="none", max_retries=0)
    messages: list[Any] = [{"role": "user", "content": "What is 6 times 7?"}]
    with client:
        whole = client.chat.completions.create(model="m", messages=messages)
        with client.chat.completions.stream(model="m", messages=messages) as stream:
            streamed = stream.get_final_completion()
    for choice in (whole.choices[0], streamed.choices[0]):
        assert choice.message.content == "Let me see."
        assert choice.finish_reason == "tool_calls"
        calls = choice.message.tool_calls or []
        assert [(call.function.name, call.function.arguments) for call in calls if call.type == "function"] == [CALL]


# --- beats


def test_it_beats_at_each_turn_and_around_each_tool(start_chat: StartChat, adapter_for: AdapterFor) -> None:
    heartbeat, beats = counting()
    ask(adapter_for(start_chat(Says(calls=(CALL,)), Says("")), stream=False), heartbeat=heartbeat)
    assert len(beats) == 2 + 2 + 1, "two turns, one tool, and the one whole answer that says something"


def test_each_part_of_a_stream_is_a_beat(start_chat: StartChat, adapter_for: AdapterFor) -> None:
    heartbeat, beats = counting()
    ask(adapter_for(start_chat(Says("x" * 40))), heartbeat=heartbeat)
    assert len(beats) == 1 + 10


@pytest.mark.scar(12)
def test_what_only_keeps_the_connection_open_is_no_beat_and_ends(start_chat: StartChat, adapter_for: AdapterFor) -> None:
    comments = Sends((b": still here\n\n",) * 1000, between=lambda: time.sleep(0.02))
    heartbeat, beats = counting()
    with pytest.raises(EndpointError, match=r"no part of the answer came for 0.3 s|ReadTimeout"):  # if the comments come late, too
        ask(adapter_for(start_chat(comments), timeout=0.3, retries=0), heartbeat=heartbeat)
    assert len(beats) == 1


@pytest.mark.scar(12)
def test_an_endpoint_that_hangs_is_left(start_chat: StartChat, adapter_for: AdapterFor, stream: bool) -> None:
    release = threading.Event()
    chat = start_chat(Says("late", between=lambda: release.wait(90)))
    with pytest.raises(EndpointError, match="ReadTimeout") as caught:
        ask(adapter_for(chat, timeout=0.2, retries=0, stream=stream))
    release.set()
    assert caught.value.passing


@pytest.mark.scar(12)
def test_an_endpoint_that_hangs_is_asked_again_but_not_beaten_for(
    start_chat: StartChat, adapter_for: AdapterFor, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    release = threading.Event()
    chat = start_chat(Says("late", between=lambda: release.wait(90)))
    heartbeat, beats = counting()
    with quick_pauses(monkeypatch), pytest.raises(EndpointError, match="ReadTimeout"):
        ask(adapter_for(chat, timeout=0.1, retries=3, stream=stream), heartbeat=heartbeat)
    until(lambda: len(chat.asked) == 4)
    release.set()
    assert len(beats) == 1, "that of the turn"


# --- faults


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_what_passes_is_asked_again(start_chat: StartChat, adapter_for: AdapterFor, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    chat = start_chat(Refuses(status), Refuses(status), Says("42."))
    with quick_pauses(monkeypatch):
        assert ask(adapter_for(chat)) == "42."
    assert len(chat.asked) == 3


@pytest.mark.timed
def test_a_rate_limit_is_waited_out_as_it_asks_and_beaten_for(
    start_chat: StartChat, adapter_for: AdapterFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = start_chat(Refuses(429, headers={"retry-after": "1.2"}), Says("42."))
    heartbeat, beats = counting()
    started = time.monotonic()
    with quick_pauses(monkeypatch):
        ask(adapter_for(chat), heartbeat=heartbeat)
    assert time.monotonic() - started >= 1.2
    assert len(beats) >= 1 + 2 + 1


@pytest.mark.parametrize("retry_after", ["3600", "Fri, 01 Jan 2100 00:00:00 GMT"])
def test_a_wait_that_is_too_long_is_a_failure(start_chat: StartChat, adapter_for: AdapterFor, retry_after: str) -> None:
    chat = start_chat(Refuses(429, "slow down", {"retry-after": retry_after}))
    with pytest.raises(EndpointError, match="the endpoint answered 429: slow down") as caught:
        ask(adapter_for(chat))
    assert caught.value.status == 429
    assert caught.value.retry_after is not None
    assert caught.value.retry_after >= 3600
    assert len(chat.asked) == 1


def test_retries_end(start_chat: StartChat, adapter_for: AdapterFor, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = start_chat(Refuses(503))
    with quick_pauses(monkeypatch), pytest.raises(EndpointError, match="503"):
        ask(adapter_for(chat, retries=2))
    assert len(chat.asked) == 3


def test_what_stays_wrong_is_not_asked_again(start_chat: StartChat, adapter_for: AdapterFor) -> None:
    chat = start_chat(Refuses(400, "context length exceeded"))
    with pytest.raises(EndpointError, match="the endpoint answered 400: context length exceeded"):
        ask(adapter_for(chat))
    assert len(chat.asked) == 1


@pytest.mark.parametrize("breaks_after", [0, 1, 3])
def test_a_stream_that_breaks_is_asked_for_again(
    start_chat: StartChat, adapter_for: AdapterFor, monkeypatch: pytest.MonkeyPatch, breaks_after: int
) -> None:
    chat = start_chat(Says("It is forty-two.", breaks_after=breaks_after), Says("It is forty-two."))
    with quick_pauses(monkeypatch):
        assert ask(adapter_for(chat)) == "It is forty-two."
    assert len(chat.asked) == 2


def test_a_stream_that_ends_early_is_no_answer(start_chat: StartChat, adapter_for: AdapterFor) -> None:
    half = data({"choices": [{"index": 0, "delta": {"content": "It is"}, "finish_reason": None}]})
    with pytest.raises(EndpointError, match="the answer broke off"):
        ask(adapter_for(start_chat(Sends((half,))), retries=0))


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (Sends((b"data: {oops\n\n",)), "is no JSON"),
        (Sends((b"<html>",), "text/html"), "is no JSON"),
        (Sends((b"[1]",), "application/json"), "the answer is no chat completion"),
        (Sends((data({"choices": [1]}),)), "the answer is no chat completion"),
        (Sends((data({"error": {"message": "overloaded"}}),)), "the endpoint failed while it answered"),
    ],
)
def test_what_is_no_answer_is_an_error(start_chat: StartChat, adapter_for: AdapterFor, sent: Sends, says: str) -> None:
    with pytest.raises(EndpointError, match=says):
        ask(adapter_for(start_chat(sent), retries=0))


def test_nobody_listens(adapter_for: AdapterFor) -> None:
    with ChatServer(Says("")) as chat:
        adapter = adapter_for(chat, retries=0)
    with pytest.raises(EndpointError, match="ConnectError"):
        ask(adapter)


@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_an_answer_that_is_cut_is_none(start_chat: StartChat, adapter_for: AdapterFor, stream: bool, finish: str) -> None:
    with pytest.raises(AnswerError, match=f"the answer was cut: {finish}"):
        ask(adapter_for(start_chat(Says("It is fo", finish=finish)), stream=stream))


def test_a_refusal_is_no_answer(start_chat: StartChat, adapter_for: AdapterFor, stream: bool) -> None:
    with pytest.raises(AnswerError, match="the model refused: I will not"):
        ask(adapter_for(start_chat(Says(refusal="I will not")), stream=stream))


# --- forms that other endpoints use


def test_text_beyond_ascii_comes_whole(start_chat: StartChat, adapter_for: AdapterFor) -> None:
    text = "a\u2028b\u2029c\u0085d \N{GRINNING FACE} é"
    event = data({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}]})
    cut = tuple(event[at : at + 1] for at in range(len(event)))  # in the middle of characters too
    assert ask(adapter_for(start_chat(Sends(cut)))) == text


def test_events_may_end_with_carriage_returns_and_bear_names(start_chat: StartChat, adapter_for: AdapterFor) -> None:
    event = data({"choices": [{"index": 0, "delta": {"content": "42."}, "finish_reason": "stop"}]})
    sent = b"event: message\r\n" + event.replace(b"\n", b"\r\n") + b"data: [DONE]\r\n\r\ndata: never read\r\n\r\n"
    assert ask(adapter_for(start_chat(Sends((sent,))))) == "42."


def test_an_endpoint_may_answer_whole_when_asked_for_a_stream(start_chat: StartChat, adapter_for: AdapterFor) -> None:
    whole = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "42."}, "finish_reason": "stop"}]}
    assert ask(adapter_for(start_chat(Sends((json.dumps(whole).encode(),), "application/json")))) == "42."


def test_calls_may_share_an_index_lack_ids_and_bear_objects(start_chat: StartChat, adapter_for: AdapterFor) -> None:
    def call(left: int, **more: Any) -> bytes:
        fragment = {"index": 0, "function": {"name": "multiply", "arguments": {"left": left, "right": 7}}, **more}
        return data({"choices": [{"index": 0, "delta": {"tool_calls": [fragment]}, "finish_reason": None}]})

    end = data({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    chat = start_chat(Sends((call(6, id="a"), call(8, id="b"), end)), Sends((call(1), end)), Says("done"))
    assert ask(adapter_for(chat)) == "done"
    assert chat.asked[-1].results == ['{"product": 42}', '{"product": 56}', '{"product": 7}']


def test_a_field_may_be_left_out(start_chat: StartChat, adapter_for: AdapterFor) -> None:
    chat = start_chat(Says("42."))
    ask(adapter_for(chat, options={"stream_options": None}))
    assert "stream_options" not in chat.asked[0].body


# --- limits


def test_the_turns_of_a_model_end(start_chat: StartChat, adapter_for: AdapterFor) -> None:
    chat = start_chat(Says(calls=(CALL,)))
    with pytest.raises(TurnLimitError, match="has had 3 turns"):
        ask(adapter_for(chat, max_turns=3))
    assert len(chat.asked) == 3


def test_a_budget_ends_the_work_before_the_next_turn(start_chat: StartChat, adapter_for: AdapterFor) -> None:
    chat = start_chat(Says(calls=(CALL,), tokens=(10, 5)))
    tracker = BudgetTracker(Budget(max_total_tokens=30))
    with pytest.raises(BudgetExceededError, match="30 total tokens are used, 30 are allowed"):
        ask(adapter_for(chat), budget_tracker=tracker)
    assert (len(chat.asked), tracker.used) == (2, TokenUsage(20, 10))


def test_a_deadline_ends_a_stream_that_goes_on_and_on(start_chat: StartChat, adapter_for: AdapterFor) -> None:
    chat = start_chat(Says("x" * 40_000, between=lambda: time.sleep(0.02)))
    with pytest.raises(DeadlineExceededError, match=r"took longer than 0.3 s"):
        ask(adapter_for(chat), deadline=Deadline(0.3))


def test_a_deadline_ends_the_wait_for_an_endpoint_that_hangs(start_chat: StartChat, adapter_for: AdapterFor) -> None:
    release = threading.Event()
    chat = start_chat(Says("late", between=lambda: release.wait(90)))
    with pytest.raises(DeadlineExceededError):
        ask(adapter_for(chat), deadline=Deadline(0.3))
    release.set()


def test_a_deadline_that_is_cut_ends_a_stream(start_chat: StartChat, adapter_for: AdapterFor) -> None:
    deadline = Deadline()
    parts: list[int] = []

    def between() -> None:
        parts.append(1)
        if len(parts) == 5:
            deadline.cut(WorkInterruptedError("the lease is lost"))

    with pytest.raises(WorkInterruptedError, match="the lease is lost"):
        ask(adapter_for(start_chat(Says("x" * 4_000, between=between))), deadline=deadline)


def test_a_deadline_that_is_cut_lets_no_further_tool_begin(start_chat: StartChat, adapter_for: AdapterFor) -> None:
    deadline, begun = Deadline(), list[int]()

    def handle(_params: dict[str, Any], *, context: ToolContext) -> ToolResult[None]:
        begun.append(1)
        deadline.cut(WorkInterruptedError("the lease is lost"))
        return ToolResult.ok(None)

    chat = start_chat(Says(calls=(("tool", "{}"), ("tool", "{}"))))
    prompt = Prompt("Go", parse=str, tools=(Tool("tool", "", handle),))
    with pytest.raises(WorkInterruptedError):
        adapter_for(chat).evaluate(prompt, session=Session(), deadline=deadline)
    assert (begun, len(chat.asked)) == ([1], 1)


# --- the key


def test_the_key_is_shown_to_the_endpoint_and_to_nobody_else(
    start_chat: StartChat, adapter_for: AdapterFor, caplog: pytest.LogCaptureFixture
) -> None:
    def quote(asked: Asked) -> Refuses:
        return Refuses(400, f"what is this: {asked.headers['authorization']}")

    chat = start_chat(Says("42."), quote, api_key=KEY)
    adapter = adapter_for(chat, api_key=KEY)
    with caplog.at_level(logging.DEBUG):
        assert ask(adapter) == "42."
        with pytest.raises(EndpointError, match=r"the endpoint answered 400: what is this: Bearer \*\*\*") as quoted:
            ask(adapter)
        with pytest.raises(EndpointError, match=r"^the endpoint answered 401$") as refused:
            ask(adapter_for(chat, api_key=f"{KEY}-old"))
    shown = [caplog.text, repr(adapter), str(vars(adapter)), repr(quoted.value), repr(refused.value)]
    assert [text for text in shown if KEY in text] == []


@pytest.mark.parametrize("key", [f"{KEY}\n", f" {KEY}", f"{KEY}é"])
def test_a_key_that_cannot_be_sent_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII") as caught:
        OpenAIAdapter("http://127.0.0.1:1/v1", model="m", api_key=key)
    assert KEY not in str(caught.value)
