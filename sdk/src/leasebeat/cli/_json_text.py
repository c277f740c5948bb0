"""JSON as the service takes it."""

import json
from typing import Any, NoReturn


def parse(text: bytes | str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: If it is none: also if it is NaN, Infinity, or nested too deep.
    """
    try:
        return _DECODER.decode(text if isinstance(text, str) else text.decode())
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
