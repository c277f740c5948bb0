"""A local server in place of Anthropic's Messages API, for the real Claude Code program that the Claude Agent SDK runs."""

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any

from harness.loopback import LoopbackServer, QuietHandler

Tool = Callable[[], str]
Block = dict[str, Any]
PING = ""
EMPTY: dict[str, Block] = {"text": {"text": ""}, "tool_use": {"input": {}}}
"""What a block begins with, before its deltas."""


class AnthropicApi(LoopbackServer):
    """A model that calls Bash `calls` times and then answers "done". What Bash does then is to call `tool`, in this process, and to
    fail if that raises a `RuntimeError`.

    `turns` counts the model's turns so far; `before_turn` is called with that number before each. The answer is streamed in the pieces
    that `answer` gives, and as slowly; for a `PING`, the API only says that the connection lives. First, `overloaded` requests are
    turned away.
    """

    def __init__(
        self,
        tool: Tool,
        calls: int,
        before_turn: Callable[[int], object] = lambda _turn: None,
        *,
        answer: Callable[[], Iterable[str]] = lambda: ["done"],
        overloaded: int = 0,
    ) -> None:
        self.turns = 0
        self._tool = tool
        self._calls = calls
        self._before_turn = before_turn
        self._pieces = answer
        self._overloaded = overloaded
        super().__init__(self._handler_class())

    def _answer(self, request: dict[str, Any]) -> tuple[Block, Iterable[Block | None]]:
        """The block that answers a request, and its deltas. The agent's requests have tools; the program makes others beside them."""
        if not request.get("tools"):
            return _text("ok", ["ok"])
        self.turns += 1
        turn = self.turns
        self._before_turn(turn)
        if turn > self._calls:
            return _text("done", self._pieces())
        program = f"import urllib.request; urllib.request.urlopen('{self.url}/tool').close()"
        command = shlex.join([sys.executable, "-I", "-c", program])
        given = {"command": command}
        block = {"type": "tool_use", "id": f"toolu_{turn}", "name": "Bash", "input": given}
        return block, [{"type": "input_json_delta", "partial_json": json.dumps(given)}]

    def _is_overloaded(self) -> bool:
        self._overloaded -= 1
        return self._overloaded >= 0

    def _handler_class(self) -> type[BaseHTTPRequestHandler]:  # noqa: C901 - each method is short
        api = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:  # noqa: N802 - named by http.server
                try:
                    self._write("text/plain", api._tool().encode())
                except RuntimeError:
                    self.send_error(500)

            def do_HEAD(self) -> None:  # noqa: N802 - named by http.server
                self._write("text/plain", b"")

            def do_POST(self) -> None:  # noqa: N802 - named by http.server
                request = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if self.path.partition("?")[0] != "/v1/messages":
                    self.send_error(404)
                elif api._is_overloaded():
                    self.send_error(529)
                else:
                    self._answer(request)

            def _answer(self, request: dict[str, Any]) -> None:
                block, deltas = api._answer(request)
                if request.get("stream"):
                    self._stream(_events(block, deltas))
                else:
                    self._write("application/json", json.dumps(_message([block])).encode())

            def _stream(self, events: Iterable[Block]) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.end_headers()
                with suppress(ConnectionError):  # the program has been interrupted
                    for event in events:
                        self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())

            def _write(self, kind: str, body: bytes) -> None:
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        return Handler


def _text(text: str, pieces: Iterable[str]) -> tuple[Block, Iterable[Block | None]]:
    return {"type": "text", "text": text}, (None if piece is PING else {"type": "text_delta", "text": piece} for piece in pieces)


def _events(block: Block, deltas: Iterable[Block | None]) -> Iterator[Block]:
    """One answer as the stream of events that the API makes of it."""
    whole = _message([block])
    yield {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}}
    yield {"type": "content_block_start", "index": 0, "content_block": {**block, **EMPTY[block["type"]]}}
    for delta in deltas:
        yield {"type": "ping"} if delta is None else {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    yield {"type": "message_delta", "delta": {"stop_reason": whole["stop_reason"], "stop_sequence": None}, "usage": {"output_tokens": 1}}
    yield {"type": "message_stop"}


def _message(content: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": content,
        "stop_reason": "tool_use" if content[0]["type"] == "tool_use" else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
