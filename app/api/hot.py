"""The way in for hot calls: the raw body is validated once by the compiled validator, and the endpoint returns finished bytes.

OpenAPI still shows each route in full. Dependencies do not run on these routes, so an endpoint must not declare any.
"""

import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json

from app.api.schemas import Wire
from app.errors import ProblemError, invalid_request

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class HotRoute(APIRoute):
    """A route whose endpoint takes the request, its path parameters and one validated body, and returns a `Response`."""

    def get_route_handler(self) -> Handler:
        endpoint = self.endpoint
        validate = _body_model(endpoint).__pydantic_validator__.validate_json

        async def handle(request: Request) -> Response:
            _require_json(request)
            body = validate(await request.body())
            return await endpoint(request=request, body=body, **request.path_params)  # type: ignore[no-any-return]

        return handle


class JsonRoute(APIRoute):
    """A route like any other, save that its body is refused where a hot one would be: no JSON by its type, no JSON in fact."""

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def check(request: Request) -> Response:
            if self.body_field:
                _require_json(request)
                try:
                    from_json(await request.body())
                except ValueError as error:
                    raise invalid_request([{"loc": (), "msg": f"Invalid JSON: {error}"}]) from error
            return await handle(request)

        return check


def json_response(value: object, status: int = 200) -> Response:
    return Response(orjson.dumps(value, option=orjson.OPT_UTC_Z), status, media_type="application/json")


def _body_model(endpoint: Callable[..., Any]) -> type[Wire]:
    model: type[Wire] = inspect.signature(endpoint, eval_str=True).parameters["body"].annotation
    if not issubclass(model, Wire):
        raise TypeError(f"{endpoint.__name__}: the body of a hot route must be a Wire model")
    return model


def _require_json(request: Request) -> None:
    # A browser sends other types across origins without asking first, so they must not reach a service on loopback.
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise ProblemError(415, "unsupported-media-type", "The body must be JSON", "Send it with Content-Type: application/json.")
