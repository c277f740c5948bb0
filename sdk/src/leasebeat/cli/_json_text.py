"""JSON as the service takes it."""

import json
import math
from typing import Any, NoReturn

from leasebeat._wire import storable_text


def parse(text: bytes | str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: If it is none, or not one that the service can store: with a number that is not finite, U+0000, or half of a surrogate
            pair in it, or nested too deep.
    """
    written = text if isinstance(text, str) else text.decode()
    try:
        value = _DECODER.decode(written)
        if "\\u" in written or not written.isascii():  # else there is nothing to be found
            storable_text(value, "it")
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    return value


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise ValueError(f"{number} is too large a number")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse)
