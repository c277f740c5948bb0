"""The commands together, and what their failures mean."""

from typing import Annotated

import typer

from leasebeat._errors import LeasebeatError
from leasebeat._version import __version__
from leasebeat.cli._leases import ack, beat, lease, nack, release
from leasebeat.cli._queues import queues
from leasebeat.cli._send import send
from leasebeat.cli._status import DONE, NOT_SERVED, WRONG_USAGE, complain
from leasebeat.cli._top import top
from leasebeat.cli._work import work

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Send messages, lease them, prove progress by beating, and settle them.",
    epilog="Exit status: 0 done; 1 refused, as a lease is over; 2 wrong usage; 3 the service did not answer, or could not serve.",
)
for command in (send, lease, beat, ack, nack, release, work, queues, top):
    app.command()(command)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    *,
    _version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")] = False,
) -> None:
    """Take the options that belong to no command."""


def run() -> int:
    """Run the command that the process's arguments name, and return its exit status. What goes wrong is said in a line."""
    try:
        return app(prog_name="leasebeat", standalone_mode=False) or DONE
    except typer.TyperException as error:
        complain(error.format_message())
    except LeasebeatError as error:
        complain(error)
        return WRONG_USAGE if error.turned_away else NOT_SERVED
    except ValueError as error:
        complain(error)
    return WRONG_USAGE
