"""Design rule 13: bad input is a clear 4xx before any effect, on every operation that takes a body, and in every parameter.

The cases are made from the OpenAPI document, so an operation that is added is tested with the rest.
"""

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from api.bad_bodies import BadBody, bad_bodies
from harness.api import Api, Json, without_figures
from harness.problems import assert_problem
from harness.server import Server
from harness.spec import Operation, example, operations, with_body
from harness.wait import until

pytestmark = pytest.mark.rule(13)

CASES = [
    (operation, case)
    for operation in with_body()
    for case in bad_bodies(operation.body_schema)
    if case.content or not operation.body_may_be_left_out
]


@dataclass(frozen=True)
class Target:
    """What a call may change: a queue with a message that is ready, and one in the hands of a worker with the queue's name."""

    queue: str
    ready_message: str


@dataclass(frozen=True)
class SharedTarget(Target):
    """One target for all that must change nothing, and what it was like before any of them."""

    before: list[Json]


@pytest.fixture(scope="module")
def shared_target(server: Server) -> Iterator[SharedTarget]:
    name = f"bad-input-{uuid.uuid4().hex}"
    server.api.put_queue(name, visibility_timeout=3600)  # it must not change by itself either
    target = fill(server.api, name)
    yield SharedTarget(target.queue, target.ready_message, state(server.api, name))
    server.api.call("DELETE", f"/queues/{name}", params={"force": True}, expect=204)


@pytest.fixture
def target(queue: str, api: Api) -> Target:
    return fill(api, queue)


def fill(api: Api, queue: str) -> Target:
    api.put_queue("dead-letters")  # the document's example of a queue's configuration names it
    _, ready_message = api.send(queue, 1, 2)
    api.claim(queue, worker_id=queue)
    until(lambda: api.client.get(f"/workers/{queue}").status_code == 200)
    return Target(queue, ready_message)


def path_of(operation: Operation, target: Target) -> str:
    return operation.path.format(queue=target.queue, message_id=target.ready_message, worker_id=target.queue)


def state(api: Api, queue: str) -> list[Json]:
    """Return everything that a call could have changed."""
    leases = api.call("GET", "/leases", params={"queue": queue})["items"]
    return [
        without_figures(api.call("GET", f"/queues/{queue}")),
        api.call("GET", f"/queues/{queue}/messages"),
        [{name: value for name, value in lease.items() if name not in ("expires_in", "since_beat")} for lease in leases],
        api.call("GET", f"/workers/{queue}")["draining"],
    ]


@pytest.mark.parametrize("operation", with_body(), ids=str)
def test_every_operation_has_a_good_number_of_bad_bodies_and_none_twice(operation: Operation) -> None:
    cases = [case.what for of, case in CASES if of is operation]
    assert len(cases) > 15
    assert len(cases) == len(set(cases))


@pytest.mark.parametrize("operation", with_body(), ids=str)
def test_what_the_bad_bodies_are_made_from_is_good(api: Api, target: Target, operation: Operation) -> None:
    answer = api.client.request(operation.method, path_of(operation, target), json=example(operation.body_schema))
    assert answer.status_code < 300, answer.text


@pytest.mark.parametrize("operation", with_body(), ids=str)
def test_a_key_that_is_given_twice_does_no_harm(api: Api, target: Target, operation: Operation) -> None:
    text = json.dumps(example(operation.body_schema))
    doubled = text[:-1] + ", " + text[1:] if text != "{}" else text
    answer = api.client.request(
        operation.method, path_of(operation, target), content=doubled.encode(), headers={"content-type": "application/json"}
    )
    assert answer.status_code < 300, answer.text


@pytest.mark.scar(36)
@pytest.mark.parametrize(("operation", "case"), CASES, ids=[f"{operation} {case.what[:60]}" for operation, case in CASES])
def test_a_bad_body_is_refused_by_name_and_changes_nothing(
    api: Api, shared_target: SharedTarget, operation: Operation, case: BadBody
) -> None:
    answer = api.client.request(
        operation.method, path_of(operation, shared_target), content=case.content, headers={"content-type": "application/json"}
    )
    problem = assert_problem(answer, 422, "invalid-request")
    fields = [error["field"] for error in problem["errors"]]
    assert [field for field in fields if field == case.field or field.startswith(case.field + ".")], fields
    assert fields[0] in problem["detail"]
    assert len(answer.content) < 20_000, "a refusal does not repeat what was sent"
    assert state(api, shared_target.queue) == shared_target.before


@pytest.mark.parametrize("operation", [each for each in operations() if "platform" not in each.spec["tags"]], ids=str)
def test_a_query_parameter_that_there_is_not_is_refused_by_name_and_changes_nothing(
    api: Api, shared_target: SharedTarget, operation: Operation
) -> None:
    known = {parameter["name"]: str(parameter["schema"]["examples"][0]) for parameter in operation.query_parameters}
    body = {"json": example(operation.body_schema)} if operation.body_schema else {}
    answer = api.client.request(operation.method, path_of(operation, shared_target), params={"limt": "1", "Force": "1"} | known, **body)
    assert [error["field"] for error in assert_problem(answer, 422, "invalid-request")["errors"]] == ["query.limt", "query.Force"]
    assert state(api, shared_target.queue) == shared_target.before


@pytest.mark.parametrize("name", ["a%00b", "%00", "%ff", "%ED%A0%80", "a%0A", "%20", "x" * 129, "'; drop table queue --", "%F0%9F%8E%A7"])
@pytest.mark.parametrize(("verb", "body"), [("messages", {"messages": [{"body": 1}]}), ("leases", {"worker_id": "worker"})])
def test_a_name_that_no_queue_can_have_is_not_found(api: Api, name: str, verb: str, body: Json) -> None:
    assert_problem(api.client.post(f"/queues/{name}/{verb}", json=body), 404, "queue-not-found")


@pytest.mark.parametrize("receipt", ["\0", "é", "x", "x" * 100, "A" * 44, "=" * 44])
@pytest.mark.parametrize("verb", ["beat", "ack", "nack", "release"])
def test_a_receipt_that_names_no_lease_is_unknown_and_its_neighbour_is_served(api: Api, queue: str, verb: str, receipt: str) -> None:
    api.send(queue, 1)
    good = api.claim_one(queue)["receipt"]
    results = api.call("POST", f"/{verb}", {"leases": [{"receipt": receipt}, {"receipt": good}, {"receipt": receipt}]})["results"]
    assert [result["receipt"] for result in results] == [receipt, good, receipt]
    assert [result["status"] == "unknown" for result in results] == [True, False, True]


@pytest.mark.scar(36)
def test_a_result_that_cannot_be_stored_is_refused_and_the_lease_can_still_be_settled(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, 1)
    receipt = api.claim_one(queue)["receipt"]
    answer = api.client.post("/ack", json={"leases": [{"receipt": receipt, "output": {"text": "a\0b"}}]})
    assert [error["field"] for error in assert_problem(answer, 422, "invalid-request")["errors"]] == ["leases.0.output"]
    answer = api.client.post("/nack", json={"leases": [{"receipt": receipt, "error": "a\0b"}]})
    assert [error["field"] for error in assert_problem(answer, 422, "invalid-request")["errors"]] == ["leases.0.error"]
    assert [result["status"] for result in api.ack(receipt, output="ab")] == ["acked"]
    assert api.message(message_id)["output"] == "ab"
