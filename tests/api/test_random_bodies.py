"""Whatever a body holds, it is answered, and never with a fault of the service."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from harness.server import Server
from harness.spec import Operation, example, with_body
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.rule(13)

# Text with every code point, also those that UTF-8 has no bytes for: they go out as \u escapes.
texts = st.text(st.characters(), max_size=20) | st.text(st.characters(categories=["Cs", "Cc"]), max_size=3)
numbers = st.integers() | st.floats() | st.sampled_from([2**15, 2**31, 2**63, 2**64, 10**400, -1, 0, 0.01, 1e-320])
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
many = settings(
    max_examples=50, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def places(value: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Walk every place in a JSON value below its top."""
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, each in steps:
        yield (*where, step)
        yield from places(each, (*where, step))


@pytest.fixture
def target(server: Server, queue: str) -> str:
    """A queue, and a worker of the same name."""
    server.api.claim(queue, worker_id=queue)
    return queue


def answer(server: Server, target: str, operation: Operation, body: Any) -> int:
    # A claim that waits is right to wait, and would only make the test wait with it.
    assume(not (isinstance(body, dict) and isinstance(body.get("wait"), int | float) and 0 < body["wait"] <= 50))
    message_id = server.api.send(target, "work")[0] if "{message_id}" in operation.path else None
    path = operation.path.format(queue=target, message_id=message_id, worker_id=target)
    headers = {"content-type": "application/json"}
    return server.api.client.request(operation.method, path, content=json.dumps(body).encode(), headers=headers).status_code


@pytest.mark.parametrize("operation", with_body(), ids=str)
@many
@given(body=values)
def test_any_json_is_answered(server: Server, target: str, operation: Operation, body: Any) -> None:
    assert answer(server, target, operation, body) < 500


@pytest.mark.parametrize("operation", [each for each in with_body() if example(each.body_schema)], ids=str)
@many
@given(data=st.data())
def test_a_good_body_with_anything_in_any_place_is_answered(server: Server, target: str, operation: Operation, data: st.DataObject) -> None:
    body = copy.deepcopy(example(operation.body_schema))
    if "wait" in body:
        body["wait"] = 0
    for _ in range(data.draw(st.integers(1, 2))):
        *inside, last = data.draw(st.sampled_from(list(places(body))))
        holder = body
        for step in inside:
            holder = holder[step]
        holder[last] = data.draw(values)
    assert answer(server, target, operation, body) < 500


def test_after_all_that_the_service_is_well(server: Server, queue: str) -> None:
    server.api.send(queue, "work")
    lease = server.api.claim_one(queue)
    assert [result["status"] for result in server.api.ack(lease["receipt"])] == ["acked"]
    assert "Traceback" not in server.log
