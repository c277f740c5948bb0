"""What every refusal looks like (RFC 9457)."""

from typing import Any

import httpx

SHAPE = {"type", "title", "status", "detail", "code", "request_id"}


def assert_problem(answer: httpx.Response, status: int, code: str) -> Any:
    """Check that the answer is a problem of this kind in every respect, and return its body."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert set(body) - {"errors"} == SHAPE
    assert body["code"] == code, body
    assert body["status"] == status
    assert body["type"] == f"urn:leasebeat:problem:{code}"
    assert body["title"]
    assert body["detail"]
    assert body["request_id"] == answer.headers["x-request-id"]
    for error in body.get("errors", ()):
        assert set(error) == {"field", "message"}
        assert error["field"]
        assert error["message"]
    return body
