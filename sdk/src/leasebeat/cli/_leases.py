"""`leasebeat lease`, and the verbs on what it printed: `beat`, `ack`, `nack` and `release`."""

from typing import Annotated

import typer

from leasebeat._client import Client
from leasebeat._identity import HOST
from leasebeat._leases import Ack, Beat, Nack
from leasebeat._version import __version__
from leasebeat.cli._given import DEFAULT_URL, STANDARD_INPUT, Receipt, Receipts, Url, read_json, read_receipt, read_receipts
from leasebeat.cli._status import complain, print_json, print_verdicts


def lease(
    queue: Annotated[str, typer.Argument(help="The queue to take from.")],
    *,
    worker_id: Annotated[str | None, typer.Option(help="Who asks. This host's name if left out.")] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for work if there is none, at most 50.")] = 0.0,
    most: Annotated[int, typer.Option("--max", help="The most messages to lease, 1 to 1000.")] = 1,
    visibility_timeout: Annotated[float | None, typer.Option(help="Length of the leases in seconds, in place of the queue's.")] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Lease messages. Prints a line for each, with its receipt, which is a secret; nothing if there is no work."""
    with Client(url) as client:
        leases = client.claim(
            queue,
            worker_id=worker_id or HOST,
            max_messages=most,
            wait=wait,
            visibility_timeout=visibility_timeout,
            host=HOST,
            version=__version__,
        )
    for each in leases:
        print_json(each, without=["valid_until"])
    if leases.drain:
        complain("the service drains this worker: it gets no more work")


def beat(
    receipts: Receipts,
    *,
    progress: Annotated[int | None, typer.Option(help="How much work is done: any number that grows with it.")] = None,
    detail: Annotated[str | None, typer.Option(metavar="JSON", help="Where the work stands, for whoever resumes it.")] = None,
    worker_id: Annotated[str | None, typer.Option(help="Who beats.")] = None,
    url: Url = DEFAULT_URL,
) -> int:
    """Prove progress, which extends a lease when its interval has passed. Prints a verdict for each receipt."""
    report = None if detail is None else read_json(detail, "the detail")
    beats = [Beat(receipt, progress, report) for receipt in read_receipts(receipts)]
    with Client(url) as client:
        return print_verdicts(client.beat_many(beats, worker_id=worker_id))


def ack(
    receipt: Receipt,
    *,
    output: Annotated[str | None, typer.Option(metavar="JSON", help="The result. - reads it from standard input.")] = None,
    url: Url = DEFAULT_URL,
) -> int:
    """Complete a message, for good. Prints the verdict."""
    if receipt == output == STANDARD_INPUT:
        raise typer.BadParameter("standard input cannot be both the receipt and the output")
    result = None if output is None else read_json(output, "the output")
    with Client(url) as client:
        return print_verdicts(client.ack_many([Ack(read_receipt(receipt), result)]))


def nack(
    receipt: Receipt,
    *,
    error: Annotated[str | None, typer.Option(help="What went wrong.")] = None,
    delay: Annotated[float | None, typer.Option(help="Seconds before the message becomes ready again, in place of the backoff.")] = None,
    final: Annotated[bool, typer.Option("--final", help="Give the message up: another attempt is pointless.")] = False,
    url: Url = DEFAULT_URL,
) -> int:
    """End a failed attempt. Prints the verdict."""
    with Client(url) as client:
        return print_verdicts(client.nack_many([Nack(read_receipt(receipt), error, delay, retryable=not final)]))


def release(receipt: Receipt, *, url: Url = DEFAULT_URL) -> int:
    """Give a message back untouched, which does not count as an attempt. Prints the verdict."""
    with Client(url) as client:
        return print_verdicts(client.release_many([read_receipt(receipt)]))
