"""`leasebeat queues`."""

from typing import Annotated

import typer

from leasebeat._client import Client
from leasebeat.cli._given import DEFAULT_URL, Url
from leasebeat.cli._status import print_json
from leasebeat.cli._tables import console, every, queue_table


def queues(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON for each queue, with its whole configuration.")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """List the queues, with their messages by state as of the last background count."""
    with Client(url) as client:
        found = tuple(every(client.list_queues))
    if not as_json:
        console().print(queue_table(found))
        return
    for queue in found:
        print_json(queue)
