"""Bad bodies for every operation, made from its schema: each is its example with one thing wrong."""

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass

from harness.spec import Json, example, leaves, resolve, unwrap

DEEP = 100_000
_RAW = "@raw@"
_BIG = 2**63


@dataclass(frozen=True)
class BadBody:
    """What is wrong, the bytes of the body, and the field that the refusal must name (or one of what stands below it)."""

    what: str
    content: bytes
    field: str


Where = tuple[str | int, ...]


def bad_bodies(schema: Json) -> Iterator[BadBody]:
    whole = example(schema)
    yield from _broken(whole)
    yield _with("an unknown field", whole, ("unknown_field",), 1)
    for where, found, inner in leaves(schema):
        yield from _of_field(whole, where, found, inner)
    for where, owner in [((), schema), *((where, inner) for where, _, inner in leaves(schema))]:
        if inner_items := owner.get("items"):
            yield (
                _with("an unknown field", whole, (*where, 0, "unknown_field"), 1)
                if "properties" in resolve(inner_items)
                else _not_a(whole, where)
            )
        for required in owner.get("required", ()):
            yield _without(whole, (*where, required))


def _broken(whole: Json) -> Iterator[BadBody]:
    text = json.dumps(whole).encode()
    more = text[:-1] + (b"," if whole else b"")
    yield BadBody("nothing", b"", "body")
    yield BadBody("no JSON", b"worker_id=1", "body")
    yield BadBody("JSON cut short", text[:-1], "body")
    yield BadBody("something after the JSON", text + b"{}", "body")
    yield BadBody("invalid UTF-8", more + b'"\xff":1}', "body")
    yield BadBody("UTF-8 of a surrogate", more + b'"\xed\xa0\x80":1}', "body")
    yield BadBody("UTF-16", text.decode().encode("utf-16"), "body")
    yield BadBody("a lone surrogate in a name", more + b'"\\udc00":1}', "body")
    yield BadBody("U+0000 in a name", more + b'"a\\u0000":1}', "a\0")
    yield BadBody("a name with 10,000 digits for a value", more + b'"a":' + b"9" * 10_000 + b"}", "body")
    yield BadBody("far too deep", b'{"a":' * DEEP + b"1" + b"}" * DEEP, "body")
    yield BadBody("a single quote", b"{'a': 1}", "body")
    for name, other in (("null", b"null"), ("an array", b"[" + text + b"]"), ("a string", b'"x"'), ("a number", b"1"), ("NaN", b"NaN")):
        yield BadBody(f"{name} for an object", other, "body")


def _of_field(whole: Json, where: Where, found: Json, inner: Json) -> Iterator[BadBody]:
    _, nullable = unwrap(found)
    kind = inner.get("type")
    if kind is None:
        yield from _any_json(whole, where)
        return
    if not nullable:
        yield _with("null", whole, where, None)
    yield _raw("a lone surrogate", whole, where, b'"\\ud800"', whole_body=True)
    wrong: dict[str, list[Json]] = {
        "string": [1, True, [], {}],
        "integer": ["1", 1.5, True, [], {}],
        "number": ["1", True, [], {}],
        "boolean": ["true", 0, 1, [], {}],
        "array": ["x", 1, {}],
        "object": ["x", 1, []],
    }
    for value in wrong[kind]:
        yield _with(f"{json.dumps(value)} as {kind}", whole, where, value)
    yield from {"string": _string, "integer": _number, "number": _number, "array": _array, "object": _map}.get(kind, _nothing)(
        whole, where, inner
    )


def _nothing(_whole: Json, _where: Where, _inner: Json) -> Iterator[BadBody]:
    yield from ()


def _string(whole: Json, where: Where, inner: Json) -> Iterator[BadBody]:
    if where[-1] != "receipt":  # a receipt that names no lease, whatever it is, is answered `unknown`
        yield _with("U+0000", whole, where, "a\0b")
    yield _with("too long", whole, where, "x" * (inner.get("maxLength", 10_000) + 1))
    if inner.get("minLength"):
        yield _with("too short", whole, where, "")


def _number(whole: Json, where: Where, inner: Json) -> Iterator[BadBody]:
    for text in ("NaN", "Infinity", "-Infinity", "1e400", "-1e400"):
        yield _raw(text, whole, where, text.encode())
    for value in dict.fromkeys((inner["minimum"] - 1, inner["maximum"] + 1, _BIG, -_BIG - 1, 10**30)):
        yield _with(f"{value}, out of range", whole, where, value)
    yield _raw("5000 digits", whole, where, b"9" * 5000, whole_body=True)


def _array(whole: Json, where: Where, inner: Json) -> Iterator[BadBody]:
    item = _at(whole, where)[0]
    if inner.get("minItems"):
        yield _with("empty", whole, where, [])
    yield _with("one too many", whole, where, [item] * (inner["maxItems"] + 1))
    yield _with("null for an item", whole, where, [item, None])


def _map(whole: Json, where: Where, inner: Json) -> Iterator[BadBody]:
    if "properties" in inner:
        yield _with("an unknown field", whole, (*where, "unknown_field"), 1)
        return
    value = next(iter(_at(whole, where).values()))
    yield _with("U+0000 in a key", whole, where, {"a\0": value})
    yield _with("a key too long", whole, where, {"x" * 3000: value})
    yield _with("a list for a value", whole, where, {"a": []})
    yield _with("null for a value", whole, where, {"a": None})
    yield _with("U+0000 for a value", whole, where, {"a": "\0"})
    yield _with("too many entries", whole, where, {str(number): value for number in range(inner["maxProperties"] + 1)})


def _any_json(whole: Json, where: Where) -> Iterator[BadBody]:
    for what, value in (("a value", "\0"), ("a nested value", {"a": [1, {"b": "x\0"}]}), ("a nested key", [{"a": {"\0": 1}}])):
        yield _with(f"U+0000 in {what}", whole, where, value)
    for text in ("NaN", "-Infinity", "1e400"):
        yield _raw(text, whole, where, text.encode())
        yield _raw(f"{text} deep inside", whole, where, b'{"a":[1,{"b":%s}]}' % text.encode())
    yield _raw("a lone surrogate deep inside", whole, where, b'[["\\ud800x"]]', whole_body=True)
    yield _raw("too deep", whole, where, b"[" * 250 + b"]" * 250, whole_body=True)
    yield _with("too large", whole, where, "x" * (256 * 1024))


def _not_a(whole: Json, where: Where) -> BadBody:
    return _with("an object for an item", whole, where, [{}])


def _with(what: str, whole: Json, where: Where, value: Json) -> BadBody:
    changed = copy.deepcopy(whole)
    _at(changed, where[:-1])[where[-1]] = value
    return BadBody(f"{_name(where)}: {what}", json.dumps(changed).encode(), _name(where))


def _without(whole: Json, where: Where) -> BadBody:
    changed = copy.deepcopy(whole)
    inside = (*where[:-1], 0) if isinstance(_at(changed, where[:-1]), list) else where[:-1]
    del _at(changed, inside)[where[-1]]
    return BadBody(f"{_name((*inside, where[-1]))}: missing", json.dumps(changed).encode(), _name((*inside, where[-1])))


def _raw(what: str, whole: Json, where: Where, raw: bytes, *, whole_body: bool = False) -> BadBody:
    content = _with("", whole, where, _RAW).content.replace(json.dumps(_RAW).encode(), raw)
    return BadBody(f"{_name(where)}: {what}", content, "body" if whole_body else _name(where))


def _at(value: Json, where: Where) -> Json:
    for step in where:
        value = value[step]
    return value


def _name(where: Where) -> str:
    return ".".join(map(str, where))
