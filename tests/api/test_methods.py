"""Which methods a path has: HEAD wherever GET is, and a refusal names them all."""

import re

import httpx
import pytest
from harness.api import Api
from harness.problems import assert_problem
from harness.spec import operations
from harness.wait import until

PATHS = sorted({operation.path for operation in operations()})
READ = sorted({operation.path for operation in operations() if operation.method == "GET"})


def concrete(path: str) -> str:
    return path.format(queue="default", message_id="0", worker_id="nobody")


def is_at(path: str, concrete: str) -> bool:
    """Tell whether a path is this one. A worker's id may have slashes."""
    return re.fullmatch(re.sub("{[a-z_]+}", "[^/]+", path.replace("{worker_id}", ".+")), concrete) is not None


@pytest.mark.parametrize("path", PATHS)
def test_a_refused_method_is_answered_with_all_that_the_path_has(api: Api, path: str) -> None:
    has = {operation.method for operation in operations() if is_at(operation.path, concrete(path))}
    answer = api.client.request("PATCH", concrete(path))
    assert_problem(answer, 405, "method-not-allowed")
    assert set(answer.headers["allow"].split(", ")) == (has | {"HEAD"} if "GET" in has else has)


@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/docs/assets/swagger-ui.css"])
def test_so_is_one_of_a_page(api: Api, path: str) -> None:
    assert set(api.client.post(path).headers["allow"].split(", ")) == {"GET", "HEAD"}


@pytest.mark.parametrize("path", [*READ, "/docs", "/openapi.json", "/nowhere"])
def test_head_is_answered_as_get_is_without_the_body(api: Api, path: str) -> None:
    def answered() -> tuple[httpx.Response, httpx.Response] | None:
        pair = api.client.get(concrete(path)), api.client.head(concrete(path))
        return pair if path != "/readyz" or {each.status_code for each in pair} == {200} else None  # it may be late, for a moment

    pair = until(answered)
    assert pair is not None
    got, asked = pair
    assert asked.content == b""
    assert asked.status_code == got.status_code
    assert asked.headers["content-type"] == got.headers["content-type"]
    assert int(asked.headers["content-length"]) > 0
    assert api.call("GET", "/healthz") == {"status": "ok"}, "the connection is in order"


def test_head_is_refused_where_get_is(api: Api) -> None:
    answer = api.client.head("/beat")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
