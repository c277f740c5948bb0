"""Calls whose body may be left out: from a terminal without ado, but never from a page of another origin."""

import subprocess

import pytest
from harness.api import Api
from harness.problems import assert_problem
from harness.server import Server
from harness.spec import Operation, example, with_body

OPTIONAL = [operation for operation in with_body() if operation.body_may_be_left_out]
JSON = {"content-type": "application/json"}


def paused(api: Api, queue: str) -> bool:
    return bool(api.call("GET", f"/queues/{queue}")["paused"])


@pytest.mark.parametrize("operation", with_body(), ids=str)
def test_a_post_without_required_fields_needs_no_body_and_no_other_call_does(operation: Operation) -> None:
    optional = operation.method == "POST" and not operation.body_schema.get("required") if operation.body_schema else False
    assert operation.body_may_be_left_out == optional


def test_pausing_by_curl_takes_nothing_but_the_path(server: Server, api: Api, queue: str) -> None:
    printed = subprocess.run(
        ["curl", "-sS", "-X", "POST", "-w", "%{http_code}", "-o", "/dev/null", f"{server.url}/queues/{queue}/pause"],
        capture_output=True,
        check=True,
        text=True,
    )
    assert printed.stdout == "200"
    assert paused(api, queue)


@pytest.mark.parametrize(
    "headers", [{}, JSON, {"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"}, {"sec-fetch-site": "none"}]
)
def test_an_empty_body_counts_as_an_empty_object_whatever_type_it_claims(api: Api, queue: str, headers: dict[str, str]) -> None:
    assert api.client.post(f"/queues/{queue}/pause", content=b"", headers=headers).status_code == 200
    assert paused(api, queue)


def test_a_page_of_the_service_itself_may_leave_the_body_out(server: Server, api: Api, queue: str) -> None:
    headers = {"origin": server.url, "sec-fetch-site": "same-origin"}
    assert api.client.post(f"/queues/{queue}/pause", headers=headers).status_code == 200
    assert paused(api, queue)


@pytest.mark.rule(13)
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://elsewhere.example"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "http://127.0.0.1"},
        {"origin": "null"},
        {"origin": "http://["},
        {"sec-fetch-site": "cross-site"},
        {"origin": "http://elsewhere.example", "content-type": "text/plain"},
    ],
)
@pytest.mark.parametrize("operation", OPTIONAL, ids=str)
def test_a_page_from_elsewhere_is_refused_and_changes_nothing(api: Api, queue: str, operation: Operation, headers: dict[str, str]) -> None:
    (message_id,) = api.send(queue, "work")
    path = operation.path.format(queue=queue, message_id=message_id, worker_id="worker")
    assert_problem(api.client.request(operation.method, path, headers=headers), 403, "foreign-origin")
    assert not paused(api, queue)
    assert api.message(message_id)["status"] == "pending"


@pytest.mark.parametrize("operation", OPTIONAL, ids=str)
@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_a_body_that_is_there_must_say_that_it_is_json(api: Api, queue: str, operation: Operation, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    path = operation.path.format(queue=queue, message_id="1", worker_id="worker")
    for content in (b"{}", b" ", b"draining=false"):
        answer = api.client.request(operation.method, path, content=content, headers=headers)
        assert_problem(answer, 415, "unsupported-media-type")
    assert not paused(api, queue)


def test_a_page_from_elsewhere_whose_browser_has_asked_is_served(api: Api, queue: str) -> None:
    """JSON is what it must ask about first; it learns there that it may not. Whoever sends it all the same is no browser."""
    assert api.client.post(f"/queues/{queue}/pause", json={}, headers={"origin": "http://elsewhere.example"}).status_code == 200
    asked = api.client.options(
        f"/queues/{queue}/pause",
        headers={"origin": "http://elsewhere.example", "access-control-request-method": "POST"},
    )
    assert asked.status_code == 405
    assert "access-control-allow-origin" not in asked.headers


@pytest.mark.parametrize("operation", OPTIONAL, ids=str)
def test_a_body_is_read_if_it_is_there(api: Api, operation: Operation) -> None:
    assert operation.body_schema
    path = operation.path.format(queue="default", message_id="1", worker_id="worker")
    body = example(operation.body_schema) | {"unknown_field": 1}
    problem = assert_problem(api.client.request(operation.method, path, json=body), 422, "invalid-request")
    assert [error["field"] for error in problem["errors"]] == ["unknown_field"]
