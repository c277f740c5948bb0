"""The header that makes a whole send safe to repeat."""

from hashlib import blake2b

from fastapi import Request
from pydantic import TypeAdapter, ValidationError

from app.api.fields import IdempotencyKey
from app.errors import invalid_request
from app.store.sending import RequestKey

_NAME = "Idempotency-Key"
_key = TypeAdapter(IdempotencyKey)

IDEMPOTENCY_KEY = {
    "name": _NAME,
    "in": "header",
    "required": False,
    "description": "Names this request within its queue, so that it can be repeated for a day. Repeated with the same body, byte for byte, "
    "it stores nothing and gets the first answer again: the same ids and `duplicate` flags. With another body it is refused as "
    "`idempotency-key-reused`. 1 to 200 printable ASCII characters. A request that was refused does not use its key up.",
    "schema": _key.json_schema() | {"examples": ["0f8fad5b-d9cb-469f-a165-70867728950e"]},
}
"""The header in OpenAPI: hot routes take no parameters but those of the path, so it is described by hand."""


async def request_key(request: Request) -> RequestKey | None:
    """Return what this request is known by when it is repeated.

    Raises:
        ProblemError: 422, the header is not valid.

    """
    header = request.headers.get(_NAME)
    if header is None:
        return None
    try:
        key = _key.validate_python(header)
    except ValidationError as error:
        raise invalid_request([each | {"loc": ("header", _NAME)} for each in error.errors(include_url=False)]) from error
    return RequestKey(key, blake2b(await request.body(), digest_size=32).digest())
