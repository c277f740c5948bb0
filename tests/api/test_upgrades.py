"""Requests that ask for another protocol are served as they are (RFC 9110, 7.8)."""

import socket
from http.client import HTTPResponse
from typing import Any

import orjson
import pytest
from harness.api import Api
from harness.problems import assert_problem
from harness.server import Server

H2C = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
WEBSOCKET = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"


def request(method: str, path: str, headers: str, body: bytes = b"") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


def answer(connection: socket.socket) -> tuple[int, Any]:
    response = HTTPResponse(connection)
    response.begin()
    return response.status, orjson.loads(response.read())


@pytest.mark.parametrize("asked", [H2C, WEBSOCKET, "Connection: upgrade\r\nUpgrade: other/1\r\n"])
@pytest.mark.parametrize("cut", [0, 10, 150, -5], ids=lambda cut: f"cut at {cut}")
def test_a_call_that_asks_for_another_protocol_keeps_its_body(server: Server, api: Api, queue: str, asked: str, cut: int) -> None:
    """In one piece or in two; and so do those that follow on its connection."""
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for body in ("first", "second"):
            sent = request("POST", f"/queues/{queue}/messages", asked, orjson.dumps({"messages": [{"body": body}]}))
            for piece in (sent[:cut], sent[cut:]):
                connection.sendall(piece)
            assert answer(connection)[0] == 201
    assert [lease["message"]["body"] for lease in api.claim(queue, max_messages=3)] == ["first", "second"]


def test_so_do_calls_that_are_sent_before_the_first_is_answered(server: Server, api: Api, queue: str) -> None:
    sends = [request("POST", f"/queues/{queue}/messages", H2C, orjson.dumps({"messages": [{"body": n}]})) for n in range(1000)]
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(b"".join(sends))
        answered = b""
        while answered.count(b"HTTP/1.1 201 ") < len(sends):
            received = connection.recv(65536)
            assert received, "the connection was closed"
            answered += received
    assert [lease["message"]["body"] for lease in api.claim(queue, max_messages=1000)] == list(range(1000))


def test_what_follows_the_last_call_of_a_connection_is_nothing_to_it(server: Server, queue: str) -> None:
    body = orjson.dumps({"messages": [{"body": 0}]})
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(request("POST", f"/queues/{queue}/messages", "Connection: close, Upgrade\r\nUpgrade: h2c\r\n", body) + b"x")
        assert answer(connection)[0] == 201


def test_a_page_is_read_all_the_same(api: Api) -> None:
    assert api.client.get("/healthz", headers={"connection": "upgrade", "upgrade": "websocket"}).status_code == 200


def test_a_tunnel_is_refused(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"CONNECT /healthz HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n")
        assert answer(connection)[0] == 405


def test_what_is_wrong_in_its_body_is_said(api: Api, queue: str) -> None:
    headers = {"connection": "upgrade", "upgrade": "h2c"}
    assert_problem(api.client.post(f"/queues/{queue}/messages", headers=headers, json={"messages": 1}), 422, "invalid-request")
