"""The way in for calls with a JSON body: it is read once, limited in size, validated by the compiled validator, and nothing else runs.

OpenAPI shows each route in full. Dependencies do not run on these routes, so an endpoint must not declare any, nor query parameters.
The body of a POST whose every field has a default may be left out.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_origin

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from app.api.params import refuse_parameters
from app.api.room import ITEM_BYTES, Share
from app.api.schemas import Wire
from app.api.service import service_of
from app.errors import ProblemError

MAX_BODY_BYTES = 8 * 1024 * 1024

Head = Mapping[bytes, bytes]


class BodyRoute(APIRoute):
    """A route whose endpoint takes the request, its path parameters and one validated body, and returns a `Response`."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        model = _body_model(endpoint)
        validate = model.__pydantic_validator__.validate_json
        # Not of a PUT: an empty one, sent by mistake, would reset everything.
        optional = options.get("methods") == ["POST"] and not any(field.is_required() for field in model.model_fields.values())
        if optional:
            options["openapi_extra"] = {"requestBody": {"required": False}}
        super().__init__(path, endpoint, **options)
        read = _read_optional_json if optional else _read_json
        lists = _lists_of_items(model)

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            request = Request(scope, receive, send)
            if scope["query_string"]:
                refuse_parameters(request)
            share = Share(service_of(request).room(self.name))
            try:
                raw = await read(request, share)
                request._body = raw  # type: ignore[assignment]  # noqa: SLF001 - what `request.body()` returns; it could not read it again
                body = validate(raw)
                share.add(ITEM_BYTES * sum(len(getattr(body, each)) for each in lists))
                response: Response = await endpoint(request=request, body=body, **request.path_params)
                await response(scope, receive, send)
            except ClientDisconnect:
                return
            finally:
                share.give_back()

        # In place of FastAPI's own, which would prepare for dependencies, streams and forms.
        self.app = serve


class HotRoute(BodyRoute):
    """What workers and senders call all the time, by POST. `app/front.py` leads these calls past FastAPI's own layers."""


def body_router(tag: str) -> APIRouter:
    return APIRouter(tags=[tag], route_class=BodyRoute, generate_unique_id_function=operation_id)


def hot_router(tag: str) -> APIRouter:
    return APIRouter(tags=[tag], route_class=HotRoute, generate_unique_id_function=operation_id)


def operation_id(route: APIRoute) -> str:
    return route.name


def json_response(value: object, status: int = 200) -> Response:
    return Response(orjson.dumps(value, option=orjson.OPT_UTC_Z), status, media_type="application/json")


def _body_model(endpoint: Callable[..., Any]) -> type[Wire]:
    model: type[Wire] = inspect.signature(endpoint, eval_str=True).parameters["body"].annotation
    if not issubclass(model, Wire):
        raise TypeError(f"{endpoint.__name__}: the body of such a route must be a Wire model")
    return model


def _lists_of_items(model: type[Wire]) -> list[str]:
    """Name the fields that hold what a body may have many of."""
    return [name for name, field in model.model_fields.items() if get_origin(field.annotation) is list]


def _head_of(request: Request) -> Head:
    """Return the request's headers by name; of those that come twice, the first."""
    return dict(reversed(request.scope["headers"]))


async def _read_json(request: Request, share: Share) -> bytes | bytearray:
    head = _head_of(request)
    _require_json(head)
    return await _read_body(request, head, share)


async def _read_optional_json(request: Request, share: Share) -> bytes | bytearray:
    head = _head_of(request)
    body = await _read_body(request, head, share)
    if body:
        _require_json(head)
        return body
    if not _is_json(head):
        _refuse_foreign(head)
    return b"{}"


# A browser sends a body of another type, or none, across origins without asking first. Neither must reach a service on loopback.


def _is_json(head: Head) -> bool:
    return head.get(b"content-type", b"").lower().partition(b";")[0].strip() == b"application/json"


def _refuse_foreign(head: Head) -> None:
    """Refuse what a page from elsewhere sends. A browser says where a page is from; other clients say nothing."""
    origin = head.get(b"origin")
    foreign = origin is not None and origin.lower().rpartition(b"://")[2] != head.get(b"host", b"").lower()
    if foreign or head.get(b"sec-fetch-site") == b"cross-site":
        detail = "A page from elsewhere must send a body with Content-Type: application/json, which its browser asks about first."
        raise ProblemError(403, "foreign-origin", "The request comes from another origin", detail)


def _require_json(head: Head) -> None:
    if not _is_json(head):
        raise _unsupported("Send it with Content-Type: application/json.")
    parameters = head[b"content-type"].lower().partition(b";")[2]
    if b"charset" in parameters and b"utf-8" not in parameters:
        raise _unsupported("Send it in UTF-8.")
    if head.get(b"content-encoding", b"identity") != b"identity":
        raise _unsupported("Send it without Content-Encoding.")


async def _read_body(request: Request, head: Head, share: Share) -> bytearray:
    """Read the body, no further than the limit, and not at all if it is announced as larger."""
    announced = head.get(b"content-length", b"")
    if announced.isdigit() and int(announced) > MAX_BODY_BYTES:
        raise _too_large()
    body = bytearray()
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part = message.get("body", b"")
        share.add(len(part))
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise _too_large()
        if not message.get("more_body", False):
            return body


def _unsupported(detail: str) -> ProblemError:
    return ProblemError(415, "unsupported-media-type", "The body must be plain JSON", detail)


def _too_large() -> ProblemError:
    return ProblemError(413, "body-too-large", "The body is too large", f"A body may be at most {MAX_BODY_BYTES} bytes long.")
