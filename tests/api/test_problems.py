"""Every kind of error is a problem of one shape, and every answer bears a request id."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from harness.api import Api
from harness.postgres import execute
from harness.problems import assert_problem
from harness.server import Server

TOO_LARGE = 8 * 1024 * 1024 + 1


@pytest.mark.parametrize("path", ["/nope", "/queues/a/b", "/docs/assets/nope.js", "/docs/assets/..%2f..%2fmain.py", "/messages", "/"])
def test_an_unknown_path_is_a_problem(api: Api, path: str) -> None:
    assert_problem(api.client.get(path), 404, "not-found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", "/beat", "POST"), ("POST", "/healthz", "GET"), ("DELETE", "/openapi.json", "GET"), ("PATCH", "/leases", "GET")],
)
def test_a_wrong_method_is_a_problem_that_names_the_right_one(api: Api, method: str, path: str, allowed: str) -> None:
    answer = api.client.request(method, path)
    assert_problem(answer, 405, "method-not-allowed")
    assert allowed in answer.headers["allow"]


@pytest.mark.parametrize(("method", "path"), [("PUT", "/queues/default"), ("POST", "/queues/default/messages"), ("POST", "/beat")])
@pytest.mark.parametrize("content_type", [None, "", "text/plain", "application/x-www-form-urlencoded", "application/jsonx", "text/json"])
def test_a_body_of_another_type_is_a_problem(api: Api, method: str, path: str, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    assert_problem(api.client.request(method, path, content=b"{}", headers=headers), 415, "unsupported-media-type")


@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8", "Application/JSON ; charset=utf-8"])
def test_json_is_known_in_each_of_its_spellings(api: Api, queue: str, content_type: str) -> None:
    body = b'{"messages":[{"body":1}]}'
    assert api.client.post(f"/queues/{queue}/messages", content=body, headers={"content-type": content_type}).status_code == 201
    assert api.client.put(f"/queues/{queue}", content=b"{}", headers={"content-type": content_type}).status_code == 200


@pytest.mark.rule(13)
@pytest.mark.parametrize(("method", "path"), [("PUT", "/queues/default"), ("POST", "/queues/default/messages"), ("POST", "/beat")])
@pytest.mark.parametrize("announced", [True, False])
def test_a_body_that_is_too_large_is_a_problem_announced_or_not(api: Api, method: str, path: str, announced: bool) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"x" * (TOO_LARGE - 1)
        yield b"x"

    content = b"x" * TOO_LARGE if announced else chunks()
    answer = api.client.request(method, path, content=content, headers={"content-type": "application/json"})
    assert "8388608" in assert_problem(answer, 413, "body-too-large")["detail"]


def test_the_largest_body_that_is_allowed_is_read(api: Api, queue: str) -> None:
    body = b'{"messages":[{"body":1}]' + b" " * (TOO_LARGE - 26) + b"}"
    assert len(body) == TOO_LARGE - 1
    answer = api.client.post(f"/queues/{queue}/messages", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 201


@pytest.mark.rule(10)
@pytest.mark.scar(35)
def test_a_message_that_postgres_refuses_fails_alone_among_concurrent_sends(start_server: Callable[..., Server], database_url: str) -> None:
    server = start_server()
    execute(database_url, "alter table message add constraint no_poison check (body::text <> '\"poison\"')")
    bodies = [*range(19), "poison", *range(19)]
    with ThreadPoolExecutor(len(bodies)) as pool:
        sent = list(pool.map(lambda body: send(server.api, body), bodies))
    for body, answer in zip(bodies, sent, strict=True):
        if body == "poison":
            assert_problem(answer, 500, "row-refused")
        else:
            assert answer.status_code == 201
    stored = [item["body"] for item in server.api.call("GET", "/queues/default/messages")["items"]]
    assert sorted(stored) == sorted([*range(19), *range(19)])
    assert "row set aside" in server.log
    assert "poison" not in server.log, "a body may be a secret, and is never logged"


def send(api: Api, body: object) -> httpx.Response:
    return api.client.post("/queues/default/messages", json={"messages": [{"body": body}]})


def test_full_lines_are_a_problem_to_try_again(start_server: Callable[..., Server], database_url: str) -> None:
    server = start_server(queue_limit=1)
    execute(database_url, "create function slow() returns trigger as 'begin perform pg_sleep(1); return new; end' language plpgsql")
    execute(database_url, "create trigger slow before insert on message for each row execute function slow()")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda body: send(server.api, body), range(8)))
    refused = [answer for answer in answers if answer.status_code != 201]
    assert 0 < len(refused) < 8
    for answer in refused:
        assert_problem(answer, 503, "overloaded")
        assert answer.headers["retry-after"] == "1"
    assert len(server.api.call("GET", "/queues/default/messages")["items"]) == 8 - len(refused)


@pytest.mark.parametrize("path", ["/healthz", "/queues", "/messages/0", "/nope", "/docs", "/openapi.json", "/metrics"])
def test_every_answer_bears_a_request_id_of_its_own(api: Api, path: str) -> None:
    ids = {api.client.get(path).headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3
    assert all(len(each) == 32 for each in ids)


@pytest.mark.parametrize("given", ["a", "x" * 64, "0f8fad5b-d9cb.469f_A"])
def test_the_clients_own_request_id_is_kept(api: Api, given: str) -> None:
    answer = api.client.get("/messages/0", headers={"x-request-id": given})
    assert assert_problem(answer, 404, "message-not-found")["request_id"] == given


@pytest.mark.parametrize("given", [b"", b"x" * 65, b"a b", b"a\xff", b"<script>", b"a,b"])
def test_a_request_id_that_could_spoil_a_log_is_replaced(api: Api, given: bytes) -> None:
    answer = api.client.get("/messages/0", headers={b"x-request-id": given})
    assert len(assert_problem(answer, 404, "message-not-found")["request_id"]) == 32


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/beat", 405, "method-not-allowed"),
        ("PUT", "/queues/default/messages", 405, "method-not-allowed"),
        ("POST", "/beat/", 404, "not-found"),
        ("POST", "//beat", 404, "not-found"),
        ("POST", "/nowhere/leases", 404, "not-found"),
        ("POST", "/queues/a/b/messages", 404, "not-found"),
        ("POST", "/queues//messages", 404, "not-found"),
        ("POST", "/queues/no%20such/leases", 404, "queue-not-found"),
    ],
)
def test_what_is_near_a_hot_call_is_a_problem_too(api: Api, method: str, path: str, status: int, code: str) -> None:
    answer = api.client.request(method, path, json={"messages": [{"body": 1}]} if path.endswith("messages") else {"worker_id": "w"})
    assert_problem(answer, status, code)
