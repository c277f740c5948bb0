"""Errors as RFC 9457 problem details: every failure is answered in this one place.

ProblemError
├── foreign-origin                                       403
├── queue-not-found, message-not-found, worker-not-found,
│   not-found                                            404
├── method-not-allowed                                   405
├── queue-not-empty, queue-in-use, queue-protected,
│   message-finished                                     409
├── body-too-large                                       413
├── unsupported-media-type                               415
├── invalid-request, invalid-queue-config,
│   idempotency-key-reused                               422
├── row-refused, internal                                500
└── overloaded, database-unavailable                     503, with Retry-After
"""

from collections.abc import Mapping, Sequence
from typing import Any

import asyncpg
import orjson
import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match, Mount

from app.middleware import request_id_of
from app.store.faults import OverloadedError, RowFaultError, StoreError, UnavailableError

MEDIA_TYPE = "application/problem+json"
_MOST_ERRORS = 20
_METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")
_HTTP_PROBLEMS = {
    404: ("not-found", "No such path"),
    405: ("method-not-allowed", "No such method on this path"),
    413: ("body-too-large", "The body is too large"),
}

log = structlog.get_logger(__name__)


class FieldError(BaseModel):
    field: str = Field(description="Where in the request.", examples=["messages.0.delay"])
    message: str = Field(description="What is wrong with it.", examples=["Input should be greater than or equal to 0"])


class Problem(BaseModel):
    """Why a request was not carried out (RFC 9457)."""

    type: str = Field(description="A URI that names the kind of problem.", examples=["urn:leasebeat:problem:queue-not-found"])
    title: str = Field(description="The kind of problem, for people.", examples=["No such queue"])
    status: int = Field(description="The HTTP status.", examples=[404])
    detail: str = Field(
        description="This problem, for people.", examples=["There is no queue named 'emails'. Create it with PUT /queues/emails."]
    )
    code: str = Field(description="The kind of problem, for programs. Stable.", examples=["queue-not-found"])
    request_id: str = Field(description="Names this request in the service's log.", examples=["0f8fad5bd9cb469fa165708677289501"])
    errors: list[FieldError] | None = Field(None, description="With `invalid-request`: what is wrong, field by field.")


class ProblemError(Exception):
    """A request that is not carried out."""

    def __init__(
        self,
        status: int,
        code: str,
        title: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        errors: Sequence[FieldError] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.title = title
        self.detail = detail
        self.headers = headers
        self.errors = errors


def queue_not_found(name: str) -> ProblemError:
    return ProblemError(404, "queue-not-found", "No such queue", f"There is no queue named {name!r}. Create it with PUT /queues/{{queue}}.")


def message_not_found(message_id: str) -> ProblemError:
    return ProblemError(404, "message-not-found", "No such message", f"There is no message with the id {message_id!r}.")


def worker_not_found(worker_id: str) -> ProblemError:
    return ProblemError(404, "worker-not-found", "No such worker", f"There is no worker named {worker_id!r} in the registry.")


def idempotency_key_reused(queue: str) -> ProblemError:
    detail = f"Within the last day, a request with this Idempotency-Key and another body was sent to {queue!r}. Nothing was stored."
    return ProblemError(422, "idempotency-key-reused", "The Idempotency-Key belongs to another request", detail)


def invalid_request(errors: Sequence[Any]) -> ProblemError:
    """Name the fields that are wrong. The input itself is not repeated: it may be a secret, and it may be large."""
    fields = [FieldError(field=_field(error["loc"]), message=error["msg"]) for error in errors[:_MOST_ERRORS]]
    first = f"{fields[0].field}: {fields[0].message}"
    detail = first if len(errors) == 1 else f"{first} (and {len(errors) - 1} more)"
    return ProblemError(422, "invalid-request", "The request is not valid", detail, errors=fields)


def _field(where: Sequence[str | int]) -> str:
    """Name a field: one of the body by its path alone, the body as a whole as `body`, a parameter as `path.…` or `query.…`."""
    inner = where[1:] if where and where[0] == "body" else where
    return ".".join(map(str, inner)) or "body"


def documented(*codes: int) -> dict[int | str, dict[str, Any]]:
    """Describe these statuses in OpenAPI as problems."""
    titles = {
        403: "The request comes from another origin.",
        404: "There is no such thing.",
        409: "It is in the wrong state.",
        413: "The body is too large.",
        415: "The body is not JSON.",
    }
    titles |= {422: "The request is not valid.", 503: "The service cannot do it now; try again after `Retry-After` seconds."}
    return {
        code: {"description": titles[code], "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}} for code in codes
    }


def install(app: FastAPI) -> None:
    """Answer every failure as a problem."""
    app.add_exception_handler(ProblemError, _on_problem)  # type: ignore[arg-type]  # handlers are typed for the base class only
    app.add_exception_handler(RequestValidationError, _on_validation)  # type: ignore[arg-type]
    app.add_exception_handler(ValidationError, _on_model)  # type: ignore[arg-type]
    app.add_exception_handler(StoreError, _on_store)  # type: ignore[arg-type]
    app.add_exception_handler(asyncpg.PostgresError, _on_postgres)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, _on_http)  # type: ignore[arg-type]
    app.add_exception_handler(Exception, _on_bug)


def respond(request: Request, problem: ProblemError) -> Response:
    body = Problem(
        type=f"urn:leasebeat:problem:{problem.code}",
        title=problem.title,
        status=problem.status,
        detail=problem.detail,
        code=problem.code,
        request_id=request_id_of(request.scope),
        errors=list(problem.errors) if problem.errors else None,
    )
    return Response(orjson.dumps(body.model_dump(exclude_none=True)), problem.status, dict(problem.headers or {}), MEDIA_TYPE)


async def _on_problem(request: Request, error: ProblemError) -> Response:
    return respond(request, error)


async def _on_validation(request: Request, error: RequestValidationError) -> Response:
    return respond(request, invalid_request(error.errors()))


async def _on_model(request: Request, error: ValidationError) -> Response:
    return respond(request, invalid_request(error.errors(include_url=False, include_context=False, include_input=False)))


async def _on_store(request: Request, error: StoreError) -> Response:
    match error:
        case UnavailableError():
            problem = _try_again("database-unavailable", "The database does not answer", "It is not known whether the request took effect.")
        case OverloadedError():
            problem = _try_again("overloaded", "Too many requests are waiting", "Nothing was done.")
        case RowFaultError():
            problem = ProblemError(
                500, "row-refused", "The database refused the data", "Nothing was stored. The service's log has the record."
            )
        case _:
            return await _on_bug(request, error)
    return respond(request, problem)


async def _on_postgres(request: Request, error: asyncpg.PostgresError) -> Response:
    # Its text is left out: it may quote the row.
    log.error("statement refused", request_id=request_id_of(request.scope), sqlstate=error.sqlstate, reason=type(error).__name__)
    return respond(request, ProblemError(500, "internal", "Internal error", "The service's log has the record."))


def _try_again(code: str, title: str, detail: str) -> ProblemError:
    return ProblemError(503, code, title, detail, headers={"Retry-After": "1"})


async def _on_http(request: Request, error: HTTPException) -> Response:
    code, title = _HTTP_PROBLEMS.get(error.status_code, ("http-error", str(error.detail)))
    headers = dict(error.headers or {})
    if "Allow" in headers and (methods := _methods_of(request)):
        headers["Allow"] = ", ".join(methods)
    return respond(request, ProblemError(error.status_code, code, title, str(error.detail), headers=headers))


def _methods_of(request: Request) -> list[str]:
    """Return all methods that a path has: the route that refuses a call knows only its own, and a path may have several routes."""
    routes = [route for route in request.app.routes if not isinstance(route, Mount)]  # which would match any method
    found = [each for each in _METHODS if any(route.matches({**request.scope, "method": each})[0] is Match.FULL for route in routes)]
    return ["HEAD", *found] if "GET" in found else found


async def _on_bug(request: Request, error: Exception) -> Response:
    log.error("unhandled error", request_id=request_id_of(request.scope), exc_info=error)
    return respond(request, ProblemError(500, "internal", "Internal error", "The service's log has the record."))
