"""The service's OpenAPI document, and what can be made from it: every operation, and an example of every body."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from app.main import create_app
from app.settings import Settings

Json = Any
METHODS = ("get", "put", "post", "delete", "patch")


@dataclass(frozen=True)
class Operation:
    """One method on one path."""

    method: str
    path: str
    spec: Json

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def body_schema(self) -> Json | None:
        """The schema of its JSON body, if it takes one."""
        body = self.spec.get("requestBody")
        return body and resolve(body["content"]["application/json"]["schema"])

    @property
    def body_may_be_left_out(self) -> bool:
        return not self.spec.get("requestBody", {}).get("required", False)

    @property
    def query_parameters(self) -> list[Json]:
        return [parameter for parameter in self.spec.get("parameters", []) if parameter["in"] == "query"]

    def response_schema(self, status: int, media_type: str) -> Json:
        return self.spec["responses"][str(status)]["content"][media_type]["schema"]


@cache
def document() -> Json:
    return create_app(Settings(), "postgresql://nowhere").app.openapi()


@cache
def operations() -> tuple[Operation, ...]:
    return tuple(
        Operation(method.upper(), path, spec)
        for path, methods in document()["paths"].items()
        for method, spec in methods.items()
        if method in METHODS
    )


def with_body() -> tuple[Operation, ...]:
    return tuple(operation for operation in operations() if operation.body_schema)


def resolve(schema: Json) -> Json:
    """Follow a reference to one of the document's components."""
    if "$ref" in schema:
        return document()["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def unwrap(schema: Json) -> tuple[Json, bool]:
    """Return what a schema allows beside null, and whether it allows null."""
    schema = resolve(schema)
    if "anyOf" not in schema:
        return schema, False
    others = [resolve(each) for each in schema["anyOf"] if each != {"type": "null"}]
    if len(others) != 1:
        return {}, True
    return others[0], len(others) < len(schema["anyOf"])


def example(schema: Json) -> Json:
    """Make the body that the document's examples show, every field of it given."""
    if "examples" in schema:
        return schema["examples"][0]
    inner, _ = unwrap(schema)
    if "properties" in inner:
        return {name: example(each) for name, each in inner["properties"].items()}
    return [example(inner["items"])]


def leaves(schema: Json, where: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Json, Json]]:
    """Walk every field of a body, and return where it is in the example, its schema as found, and its schema without null."""
    for name, each in schema["properties"].items():
        inner, _ = unwrap(each)
        yield (*where, name), each, inner
        if inner.get("type") == "array" and "properties" in resolve(inner["items"]):
            yield from leaves(resolve(inner["items"]), (*where, name, 0))
        elif "properties" in inner:
            yield from leaves(inner, (*where, name))
