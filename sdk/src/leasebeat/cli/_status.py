"""Exit statuses, and what is said on the way."""

import dataclasses
import json
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer

from leasebeat._leases import Verdict

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

DONE = 0
REFUSED = 1
WRONG_USAGE = 2
NOT_SERVED = 3


def complain(problem: object) -> None:
    """Say on standard error what went wrong, in one line."""
    typer.echo(f"leasebeat: {' '.join(str(problem).split())}", err=True)


def print_json(result: "DataclassInstance", *, without: Iterable[str] = ()) -> None:
    """Print a result on standard output, as one line of JSON."""
    fields: dict[str, Any] = dataclasses.asdict(result)
    for name in without:
        fields.pop(name, None)
    typer.echo(json.dumps(fields, default=datetime.isoformat))


def print_verdicts(verdicts: Iterable[Verdict]) -> int:
    """Print a line for each verdict, and return the exit status that they come to."""
    verdicts = tuple(verdicts)
    for verdict in verdicts:
        print_json(verdict, without=("receipt", "valid_until"))
    if over := [verdict.status for verdict in verdicts if verdict.refused]:
        complain(f"refused: {', '.join(over)}")
        return REFUSED
    if not all(verdict.succeeded for verdict in verdicts):
        complain("the service could not do it for each lease")
        return NOT_SERVED
    return DONE
