"""A real HTTP server that speaks OpenAI's chat completions, and says what a test tells it to."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from harness.loopback import LoopbackServer, QuietHandler, break_off

Json = Any
PATH = "/v1/chat/completions"


@dataclass(frozen=True)
class Says:
    """The model answers: with text, with calls of tools, or both. `between` is called before each part of a stream."""

    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    finish: str | None = None
    refusal: str | None = None
    tokens: tuple[int, int] = (10, 5)
    between: Callable[[], object] = lambda: None
    breaks_after: int | None = None


@dataclass(frozen=True)
class Refuses:
    """The endpoint answers with an error."""

    status: int
    message: str = "the reason"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Sends:
    """The endpoint sends these bytes, one part after the other, as an event stream or as what is said."""

    parts: tuple[bytes, ...]
    content_type: str = "text/event-stream; charset=utf-8"
    between: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class Asked:
    """One request as it arrived."""

    body: Json
    headers: Mapping[str, str]

    @property
    def said(self) -> list[Json]:
        return list(self.body["messages"])

    @property
    def results(self) -> list[str]:
        """What the tools have handed back so far."""
        return [message["content"] for message in self.said if message["role"] == "tool"]


Step = Says | Refuses | Sends
Script = Step | Callable[[Asked], Step]


class ChatServer(LoopbackServer):
    """Answers requests with its steps in order; the last one stays."""

    def __init__(self, *script: Script, api_key: str | None = None) -> None:
        self.asked: list[Asked] = []
        self.script = list(script)
        self._api_key = api_key
        self._lock = threading.Lock()
        super().__init__(partial(_Handler, self))

    @property
    def url(self) -> str:
        return f"{super().url}/v1"

    def step(self, path: str, asked: Asked) -> Step:
        if path != PATH:
            return Refuses(404, f"there is nothing at {path}")
        if self._api_key is not None and asked.headers.get("authorization") != f"Bearer {self._api_key}":
            return Refuses(401, f"Incorrect API key provided: {asked.headers.get('authorization')}")
        if wrong := _mistake(asked.body):
            return Refuses(400, wrong)
        with self._lock:
            self.asked.append(asked)
            step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        return step(asked) if callable(step) else step


class _Handler(QuietHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(self, chat: ChatServer, *args: Any) -> None:
        self._chat = chat
        super().__init__(*args)

    def do_POST(self) -> None:  # noqa: N802 - named by http.server
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        asked = Asked(body, {name.lower(): value for name, value in self.headers.items()})
        match self._chat.step(self.path, asked):
            case Refuses(status, message, headers):
                self._answer(status, {"error": {"message": message, "type": "error", "code": None}}, headers)
            case Sends(parts, content_type, between):
                self._stream(iter(parts), content_type, between)
            case Says() as said if body.get("stream"):
                events = _events(said, include_usage=(body.get("stream_options") or {}).get("include_usage", False))
                self._stream(events, "text/event-stream", said.between, said.breaks_after)
            case Says() as said:
                said.between()
                self._answer(200, _whole(said), {})

    def _answer(self, status: int, payload: Json, headers: Mapping[str, str]) -> None:
        content = json.dumps(payload).encode()
        self.send_response(status)
        for name, value in {"content-type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, parts: Iterator[bytes], content_type: str, between: Callable[[], object], breaks_after: int | None = None) -> None:
        self.send_response(200)
        self.send_header("content-type", content_type)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for number, part in enumerate(parts):
            if number == breaks_after:
                self.close_connection = True
                break_off(self.connection)
                return
            between()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        self.wfile.write(b"0\r\n\r\n")


def _mistake(body: Json) -> str | None:
    """What the real endpoints refuse: calls without an answer each, answers without a call, and arguments that are no JSON."""
    open_calls: set[str] = set()
    for message in body["messages"]:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                return "a tool message answers no call"
            open_calls.discard(message["tool_call_id"])
            continue
        if open_calls:
            return "a call has no tool message"
        for call in message.get("tool_calls", ()):
            json.loads(call["function"]["arguments"])
            open_calls.add(call["id"])
    return "a call has no tool message" if open_calls else None


def _calls(said: Says) -> list[Json]:
    moment = time.monotonic_ns()
    return [
        {"id": f"call_{moment}_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(said.calls)
    ]


def _finish(said: Says) -> str:
    return said.finish or ("tool_calls" if said.calls else "stop")


def _usage(said: Says) -> Json:
    read, written = said.tokens
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _whole(said: Says) -> Json:
    message = {"role": "assistant", "content": said.text or None, "refusal": said.refusal}
    if said.calls:
        message["tool_calls"] = _calls(said)  # type: ignore[assignment]
    choice = {"index": 0, "message": message, "finish_reason": _finish(said), "logprobs": None}
    return {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": _usage(said)}


def _events(said: Says, *, include_usage: bool) -> Iterator[bytes]:
    """Yield the parts of a stream as the real endpoint cuts them: the role, a few characters at a time, the end, the usage."""
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    rest = {"usage": None} if include_usage else {}

    def event(delta: Json, finish: str | None = None) -> bytes:
        return data({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}], **rest})

    yield event({"role": "assistant", "content": "" if said.text else None, "refusal": None})
    for start in range(0, len(said.text), 4):
        yield event({"content": said.text[start : start + 4]})
    if said.refusal:
        yield event({"refusal": said.refusal})
    for index, call in enumerate(_calls(said)):
        function = call["function"]
        yield event({"tool_calls": [{"index": index, **call, "function": {"name": function["name"], "arguments": ""}}]})
        for start in range(0, len(function["arguments"]), 5):
            yield event({"tool_calls": [{"index": index, "function": {"arguments": function["arguments"][start : start + 5]}}]})
    yield event({}, _finish(said))
    if include_usage:
        yield data({**head, "choices": [], "usage": _usage(said)})
    yield b"data: [DONE]\n\n"


def data(document: Json) -> bytes:
    """Make one event. Characters beyond ASCII are left as they are, as real endpoints do."""
    return b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n"
