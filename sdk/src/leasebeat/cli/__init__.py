"""The command line `leasebeat`, which the extra `cli` installs what it needs for."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line, and exit with its status."""
    try:
        from leasebeat.cli._app import run  # noqa: PLC0415 - what it imports comes with the extra only
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"typer", "rich"}:
            raise
        print("leasebeat: the command line needs its extra: pip install 'leasebeat[cli]'", file=sys.stderr)  # noqa: T201 - there is no typer
        sys.exit(2)
    sys.exit(run())
