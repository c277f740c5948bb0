"""What commands are given: the options that several have, and JSON and receipts from arguments or standard input."""

import sys
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from leasebeat.cli._json_text import parse

STANDARD_INPUT = "-"
DEFAULT_URL = "http://127.0.0.1:8080"
RECEIPT_VARIABLE = "LEASEBEAT_RECEIPT"


def _check_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
        raise typer.BadParameter("it is no http:// or https:// address")
    return url


Url = Annotated[str, typer.Option(envvar="LEASEBEAT_URL", callback=_check_url, help="Where the service is.")]

_RECEIPT_HELP = (
    "The lease's receipt, or - to read it from standard input. A receipt is a secret, and arguments show in the list of processes: "
    "prefer -, or the environment variable."
)
Receipt = Annotated[str, typer.Argument(envvar=RECEIPT_VARIABLE, help=_RECEIPT_HELP)]
Receipts = Annotated[list[str], typer.Argument(envvar=RECEIPT_VARIABLE, help=f"{_RECEIPT_HELP} Several are taken in one call.")]


def read_receipt(given: str) -> str:
    """The receipt that an argument is or stands for."""
    receipts = read_receipts([given])
    if len(receipts) != 1:
        raise typer.BadParameter(f"standard input must hold one receipt, not {len(receipts)}")
    return receipts[0]


def read_receipts(given: Sequence[str]) -> list[str]:
    """The receipts that arguments are or stand for."""
    receipts: list[str] = []
    for each in given:
        receipts += sys.stdin.read().split() if each == STANDARD_INPUT else [each]
    return receipts


def read_json(given: str, name: str) -> Any:
    """The value of a JSON text, or of the one on standard input."""
    return parse_json(sys.stdin.buffer.read() if given == STANDARD_INPUT else given, name)


def parse_json(text: str | bytes, name: str) -> Any:
    """The value of a JSON text."""
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(f"{name} is not JSON: {error}") from error
