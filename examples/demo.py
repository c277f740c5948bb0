"""Three workers study a third of the standard library; one is killed, one is stopped in the middle. All is completed once all the same.

Starts a service with a Postgres of its own in a temporary folder, and ends both. Run it with `make demo`.
"""

import hashlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

from stdlib_worker import parse

from leasebeat import Client, LeasebeatError, Message, NewMessage, SentMessage

QUEUE = "stdlib"
LEASE_S = 2.0
SETTLE_S = 0.3
TIMEOUT_S = 300.0


def main() -> None:
    files = sorted(path for path in Path(sysconfig.get_paths()["stdlib"]).rglob("*.py") if "site-packages" not in path.parts)[::3]
    with ExitStack() as stack:
        url = stack.enter_context(service())
        client = stack.enter_context(Client(url))
        client.put_queue(QUEUE, visibility_timeout=LEASE_S, extension=LEASE_S, beat_interval=LEASE_S / 10, max_attempts=20)
        sent = {message.id: path for path, message in zip(files, send(client, files), strict=True)}
        say(f"sent {len(sent)} messages, one for each third file of {files[0].parents[0]}")
        workers = {name: stack.enter_context(worker(url, name)) for name in ("worker-1", "worker-2", "worker-3")}

        until(lambda: completed(client) > len(files) // 5)
        strike(client, workers["worker-1"], "worker-1", signal.SIGKILL)
        until(lambda: completed(client) > len(files) // 3)
        strike(client, workers["worker-2"], "worker-2", signal.SIGSTOP)
        until(lambda: completed(client) + failed(client) == len(files))
        say("everything is completed; worker-2 goes on, and learns that its leases are lost")
        workers["worker-2"].send_signal(signal.SIGCONT)
        for name in ("worker-2", "worker-3"):
            workers[name].send_signal(signal.SIGTERM)
            say(f"{name} ended with status {workers[name].wait(60)} on SIGTERM")

        report(client, sent)


def report(client: Client, sent: dict[str, Path]) -> None:
    """Check every result against an independent pass over the same files, and print what happened."""
    messages = {message.id: message for message in all_messages(client)}
    wrong = [path for message_id, path in sent.items() if differs(messages[message_id], path)]
    expired = [message for message in messages.values() if message.expired_count]
    assert expired, "no lease ran out: the demo showed nothing"
    redelivery = sorted(seconds for message in expired for seconds in redelivery_times(client, message))
    rows = {
        "messages": len(sent),
        "completed": sum(message.status == "completed" for message in messages.values()),
        "results that differ from an independent pass": len(wrong),
        "leases granted": sum(message.generation for message in messages.values()),
        "attempts that ran out (reclaims)": sum(message.expired_count for message in messages.values()),
        "attempts nacked": sum(message.failed_count for message in messages.values()),
        "results that are not of the last lease": sum(message.output["generation"] != message.generation for message in messages.values()),
        "from expiry to redelivery, median": f"{statistics.median(redelivery) * 1000:.0f} ms",
        "from expiry to redelivery, longest": f"{redelivery[-1] * 1000:.0f} ms",
    }
    print()
    for name, value in rows.items():
        print(f"  {name:<46} {value:>10}")
    print()
    assert messages.keys() == sent.keys(), "a message is missing, or there is one too many"
    assert rows["completed"] == len(sent), "a message has failed"
    assert not wrong, f"results differ: {wrong[:3]}"
    assert not rows["results that are not of the last lease"], "a message was leased again after it was completed"
    print("All of it was completed, each message once, with the right result.")


def differs(message: Message, path: Path) -> bool:
    """Compare a worker's result with what a plain search of the parsed file's text finds."""
    source = path.read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stack, definitions = [parse(source)], 0
    while stack:
        node = stack.pop()
        definitions += type(node).__name__ in {"FunctionDef", "AsyncFunctionDef", "ClassDef"}
        for value in vars(node).values():
            stack += [child for child in (value if isinstance(value, list) else [value]) if hasattr(child, "_fields")]
    output = message.output or {}
    return (output.get("definitions"), output.get("sha256")) != (definitions, hashlib.sha256(source).hexdigest())


def redelivery_times(client: Client, message: Message) -> Iterator[float]:
    """Yield the seconds from the expiry of a message's last lost lease to the start of the attempt that completed it.

    Both are moments of this machine's clock, which the Postgres of the demo runs by.
    """
    for checkpoint in client.list_checkpoints(message.id).items:
        if checkpoint.reason == "lease_expired" and checkpoint.generation == message.output["generation"] - 1:
            yield message.output["started_at"] - moment(checkpoint.facts["expires_at"])


def strike(client: Client, process: "subprocess.Popen[bytes]", name: str, blow: signal.Signals) -> None:
    """Hit a worker while it holds leases: hold it still, look, and let it go on if it has none just then."""
    while True:
        process.send_signal(signal.SIGSTOP)
        time.sleep(SETTLE_S)  # an ack that it has already sent ends a lease yet
        held = client.list_leases(queue=QUEUE, worker_id=name).items
        if held:
            break
        process.send_signal(signal.SIGCONT)
        time.sleep(0.01)
    process.send_signal(blow)
    say(f"{name} gets {blow.name} while it holds {len(held)} leases")


def completed(client: Client) -> int:
    return sum(1 for _ in all_messages(client, status="completed"))


def failed(client: Client) -> int:
    return sum(1 for _ in all_messages(client, status="failed"))


def send(client: Client, files: list[Path]) -> list[SentMessage]:
    sent: list[SentMessage] = []
    for batch in (files[start : start + 500] for start in range(0, len(files), 500)):
        sent += client.send_many(QUEUE, [NewMessage({"path": str(path)}) for path in batch])
    return sent


def all_messages(client: Client, *, status: str | None = None) -> Iterator[Message]:
    cursor: str | None = ""
    while cursor is not None:
        page = client.list_messages(QUEUE, status=status, cursor=cursor or None, limit=1000)
        yield from page.items
        cursor = page.next_cursor


@contextmanager
def service() -> Iterator[str]:
    """Run a service with a Postgres of its own in a temporary folder, and yield its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"LEASEBEAT_DATA_DIR": folder, "LEASEBEAT_LOG_LEVEL": "warning"}
        environment.pop("DATABASE_URL", None)
        process = subprocess.Popen([sys.executable, "-m", "app", "serve", "--port", str(port)], env=environment)
        try:
            with Client(f"http://127.0.0.1:{port}") as client:
                until(lambda: is_ready(client))
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def is_ready(client: Client) -> bool:
    try:
        return client.readyz().status == "ready"
    except LeasebeatError:
        return False


@contextmanager
def worker(url: str, name: str) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-W", "ignore", str(Path(__file__).with_name("stdlib_worker.py")), url, QUEUE, name])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def until(probe: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not probe():
        if time.monotonic() > end:
            raise TimeoutError(f"not done within {TIMEOUT_S:.0f} s")
        time.sleep(0.2)


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def say(what: str) -> None:
    print(f"{time.monotonic() - START:6.2f} s  {what}", flush=True)


START = time.monotonic()

if __name__ == "__main__":
    main()
