"""The OpenAPI document: complete, true to itself, and what the running server serves."""

from collections.abc import Iterator

import jsonschema  # type: ignore[import-untyped]  # ships no types
import pytest
from harness.api import Api
from harness.spec import METHODS, Json, Operation, document, operations, unwrap, with_body

OPERATIONS = """
DELETE /queues/{queue}
DELETE /workers/{worker_id}
GET    /healthz
GET    /leases
GET    /messages/{message_id}
GET    /messages/{message_id}/checkpoints
GET    /metrics
GET    /queues
GET    /queues/{queue}
GET    /queues/{queue}/messages
GET    /readyz
GET    /recovery
GET    /stats
GET    /workers
GET    /workers/{worker_id}
POST   /ack
POST   /beat
POST   /messages/{message_id}/cancel
POST   /nack
POST   /queues/{queue}/leases
POST   /queues/{queue}/messages
POST   /queues/{queue}/pause
POST   /queues/{queue}/purge
POST   /queues/{queue}/redrive
POST   /queues/{queue}/resume
POST   /recovery/sweep
POST   /release
POST   /workers/{worker_id}/drain
PUT    /queues/{queue}
"""

SCHEMAS = document()["components"]["schemas"]
FIELDS = [(name, field) for name, schema in SCHEMAS.items() for field in schema.get("properties", ())]


def validator(schema: Json) -> Json:
    return jsonschema.Draft202012Validator({**schema, "components": document()["components"]})


def test_the_operations_are_these() -> None:
    listed = sorted(f"{operation.method:6} {operation.path}" for operation in operations())
    assert listed == OPERATIONS.strip().splitlines()
    assert all(set(methods) <= set(METHODS) for methods in document()["paths"].values())


def test_no_two_operations_have_one_id() -> None:
    ids = [operation.spec["operationId"] for operation in operations()]
    assert len(ids) == len(set(ids))


def test_the_running_server_serves_this_document(api: Api) -> None:
    assert api.call("GET", "/openapi.json") == document()


def test_the_document_is_valid_openapi_in_its_schemas() -> None:
    for schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    tags = {tag["name"] for tag in document()["tags"]}
    assert {tag for operation in operations() for tag in operation.spec["tags"]} == tags


@pytest.mark.parametrize("operation", operations(), ids=str)
def test_an_operation_says_what_it_does_and_how_it_refuses(operation: Operation) -> None:
    assert 5 < len(operation.spec["summary"]) < 80
    assert len(operation.spec["description"]) > len(operation.spec["summary"])
    assert "\n\n\n" not in operation.spec["description"]
    expected = set()
    if operation.path not in ("/healthz", "/metrics"):
        expected.add("503")
    if operation.spec.get("parameters") or operation.body_schema:
        expected.add("422")
    if operation.body_schema:
        expected |= {"413", "415"} | ({"403"} if operation.body_may_be_left_out else set())
    if "{" in operation.path and operation.method != "PUT":
        expected.add("404")
    documented = {status for status in operation.spec["responses"] if status >= "400"}
    assert expected <= documented
    for status, response in operation.spec["responses"].items():
        assert response["description"]
        if status >= "400" and operation.path != "/readyz":
            assert response["content"] == {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}


@pytest.mark.parametrize("operation", operations(), ids=str)
def test_every_parameter_has_a_description_and_a_fitting_example(operation: Operation) -> None:
    for parameter in operation.spec.get("parameters", ()):
        assert parameter["description"], parameter["name"]
        shown = parameter["schema"].get("examples") or [parameter["example"]]
        for each in shown:
            validator(parameter["schema"]).validate(each)


@pytest.mark.parametrize("name", SCHEMAS)
def test_no_schema_is_left_over(name: str) -> None:
    reference = f"'$ref': '#/components/schemas/{name}'"
    assert reference in str(document()["paths"]) or reference in str({each: SCHEMAS[each] for each in SCHEMAS if each != name})


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_every_field_has_a_description_and_a_leaf_has_a_fitting_example(name: str, field: str) -> None:
    schema = SCHEMAS[name]["properties"][field]
    assert schema["description"]
    assert schema["description"][-1] in ".!"
    inner, _ = unwrap(schema)
    holds_fields = "properties" in inner or "properties" in unwrap(inner.get("items", {}))[0]
    examples = schema.get("examples", [])
    assert examples or holds_fields, "a leaf needs an example"
    for each in examples:
        validator(schema).validate(each)


@pytest.mark.parametrize("operation", with_body(), ids=str)
def test_a_body_refuses_unknown_fields_all_the_way_down(operation: Operation) -> None:
    def walk(schema: Json) -> Iterator[Json]:
        inner, _ = unwrap(schema)
        if "properties" in inner:
            yield inner
            for each in inner["properties"].values():
                yield from walk(each)
        if "items" in inner:
            yield from walk(inner["items"])

    objects = list(walk(operation.body_schema))
    assert objects
    assert all(each["additionalProperties"] is False for each in objects)
