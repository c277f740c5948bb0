"""Path and query parameters that several routes share."""

from collections.abc import Collection
from typing import Annotated

from fastapi import Path, Query, Request
from fastapi.routing import APIRoute

from app.api.fields import INT64_MAX, NO_NUL, QueueName, WorkerId
from app.errors import invalid_request

_MAX_ID_DIGITS = 30

QueuePath = Annotated[QueueName, Path(description="The queue's name.", examples=["default"])]
MessagePath = Annotated[str, Path(max_length=_MAX_ID_DIGITS, pattern=r"^[0-9]+$", description="The message's id.", examples=["42"])]
WorkerPath = Annotated[WorkerId, Path(description="The worker's name.", examples=["worker-1"])]
WorkerCursor = Annotated[
    str, Query(max_length=200, pattern=NO_NUL, description="The `next_cursor` of the page before.", examples=["worker-1"])
]
MessageCursor = Annotated[
    str, Query(max_length=30, pattern=r"^[0-9]*$", description="The `next_cursor` of the page before.", examples=["42"])
]
PageLimit = Annotated[int, Query(ge=1, le=1000, description="The most items to return.", examples=[100])]


def refuse_unknown(request: Request) -> None:
    """Refuse query parameters that the route does not have: with a name mistyped, the answer would be to another question.

    Raises:
        ProblemError: 422.

    """
    route: APIRoute = request.scope["route"]
    refuse_parameters(request, but={parameter.alias for parameter in route.dependant.query_params})


def refuse_parameters(request: Request, but: Collection[str] = ()) -> None:
    """Refuse query parameters, all but those named.

    Raises:
        ProblemError: 422.

    """
    unknown = [name for name in request.query_params if name not in but]
    if unknown:
        raise invalid_request([{"loc": ("query", name), "msg": "There is no such parameter"} for name in unknown])


def is_id(text: str) -> bool:
    """Tell whether the path of a route that takes a body, which nobody has validated, may name a message."""
    return text.isascii() and text.isdecimal() and len(text) <= _MAX_ID_DIGITS


def id_number(text: str) -> int:
    """Read an id or a cursor. One that is larger than any id stands for the largest, and is not found."""
    return min(int(text or 0), INT64_MAX)
