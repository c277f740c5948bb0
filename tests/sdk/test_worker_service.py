"""Workers against the real service on a real Postgres. `server` is the fixture that runs both."""

import signal
import socket
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from harness.operating import parked_on
from harness.server import Server
from harness.wait import until
from sdk.relay import Relay
from sdk.running import frozen, program_process, until_extended

import leasebeat
from leasebeat import Client, Context, LeasedMessage, Worker
from sdk import process_handlers


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture
def queue(client: Client) -> str:
    """A queue of its own, whose leases are extended at most every 0.2 seconds. Tests of their end make them shorter."""
    name = f"sdk-{uuid.uuid4().hex[:8]}"
    client.put_queue(name, visibility_timeout=60, extension=60, beat_interval=0.2, max_attempts=3)
    return name


@pytest.fixture
def start(client: Client, queue: str) -> Iterator[Callable[..., Worker]]:
    running: list[tuple[Worker, threading.Thread]] = []

    def begin(handler: leasebeat.Handler, **options: Any) -> Worker:
        worker = Worker(client, queue, handler, **{"wait": 5.0, "drain_timeout": 60.0, **options})
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        running.append((worker, thread))
        return worker

    yield begin
    for worker, _ in running:
        worker.stop()
    for _, thread in running:
        thread.join(60)
        assert not thread.is_alive()


Start = Callable[..., Worker]


def finished(client: Client, message_id: str) -> leasebeat.Message:
    """Wait for a message's final state."""
    until(lambda: client.get_message(message_id).status in {"completed", "failed", "cancelled"}, pause=0.02)
    return client.get_message(message_id)


@contextmanager
def in_thread(worker: Worker) -> Iterator[threading.Thread]:
    """A worker that is to return by itself, and does not outlive the block if it does not."""
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        worker.stop()
        thread.join(60)


@pytest.mark.scar(11)
def test_work_longer_than_its_lease_is_done_once_while_it_beats(client: Client, queue: str, start: Start) -> None:
    def handle(message: LeasedMessage, context: Context) -> dict[str, Any]:
        progress = count()
        until_extended(client, queue, 4, beat=lambda: context.beat(progress=next(progress)))
        return {"echo": message.body, "attempt": context.attempt}

    sent = client.send(queue, {"file": "a.wav"})
    start(handle)
    message = finished(client, sent.id)
    assert (message.status, message.output) == ("completed", {"echo": {"file": "a.wav"}, "attempt": 1})
    assert (message.generation, message.attempt_count) == (1, 0)
    assert message.progress is not None
    assert message.progress >= 3, "each extension comes with a newer report"


@pytest.mark.scar(18)
def test_a_parked_claim_gets_a_whole_lease(server: Server, client: Client, queue: str, start: Start) -> None:
    def handle(_message: LeasedMessage, context: Context) -> float:
        return context.remaining() + time.monotonic()

    until(lambda: parked_on(server) == 0)
    asked_at = time.monotonic()
    start(handle, wait=20.0)
    until(lambda: parked_on(server))
    time.sleep(1)
    message = finished(client, client.send(queue, 1).id)
    assert message.output >= asked_at + 1 + 60, "it lasts until then"
    assert message.generation == 1


@pytest.mark.scar(12, 13)
def test_a_hung_handler_loses_its_lease_and_another_worker_finishes(client: Client, queue: str, start: Start) -> None:
    heard: list[type] = []
    hung = threading.Event()

    def hang(_message: LeasedMessage, context: Context) -> None:
        context.beat(progress=5, detail={"step": "upload"})
        hung.set()
        assert context.lost.wait(60)
        with pytest.raises(leasebeat.LeaseLostError) as caught:
            context.beat()
        heard.append(caught.type)
        raise caught.value

    def resume(message: LeasedMessage, context: Context) -> dict[str, Any]:
        return {"from": message.progress, "detail": message.detail, "attempt": context.attempt}

    client.put_queue(queue, visibility_timeout=4, extension=4, beat_interval=0.2, max_attempts=100)
    sent = client.send(queue, 1)
    hanging = start(hang)
    assert hung.wait(60)
    hanging.stop()
    until(lambda: client.get_message(sent.id).progress == 5)
    client.put_queue(queue, visibility_timeout=60)
    start(resume)
    message = finished(client, sent.id)
    assert message.output == {"from": 5, "detail": {"step": "upload"}, "attempt": message.generation}
    assert message.expired_count == message.generation - 1 >= 1
    until(lambda: heard)
    assert set(heard) == {leasebeat.LeaseExpiredError}


def test_a_failing_handler_is_retried_until_its_attempts_are_used_up(client: Client, queue: str, start: Start) -> None:
    def fail(_message: LeasedMessage, context: Context) -> None:
        context.beat(progress=context.attempt)
        raise OSError(f"disk full on attempt {context.attempt}")

    sent = client.send(queue, 1)
    start(fail)
    message = finished(client, sent.id)
    assert (message.status, message.error, message.failed_count) == ("failed", "OSError: disk full on attempt 3", 3)
    assert message.progress == 3
    history = client.list_checkpoints(sent.id).items
    assert [(checkpoint.kind, checkpoint.reason) for checkpoint in history] == [("error_boundary", "nacked")] * 3


def test_a_drained_worker_finishes_what_it_has_and_returns(client: Client, queue: str) -> None:
    going_on = threading.Event()

    def handle(_message: LeasedMessage, context: Context) -> str:
        while not context.stopping.is_set():
            context.beat()
            going_on.set()
            time.sleep(0.02)
        return "finished"

    first, second = client.send_many(queue, [leasebeat.NewMessage(1), leasebeat.NewMessage(2)])
    with in_thread(Worker(client, queue, handle, worker_id=f"{queue}-drained", version="1.4.0", wait=5.0)) as running:
        assert going_on.wait(60)
        client.drain_worker(f"{queue}-drained")
        running.join(60)
        assert not running.is_alive()
    assert (client.get_message(first.id).output, client.get_message(second.id).status) == ("finished", "pending")
    seen = client.get_worker(f"{queue}-drained")
    assert (seen.draining, seen.host, seen.version, seen.leases) == (True, socket.gethostname(), "1.4.0", ())


def test_an_idle_worker_that_is_drained_returns(client: Client, queue: str) -> None:
    with in_thread(Worker(client, queue, lambda _message, _context: None, worker_id=f"{queue}-idle", wait=1.0)) as running:
        until(lambda: f"{queue}-idle" in {each.worker_id for each in client.list_workers(limit=1000).items})
        client.drain_worker(f"{queue}-idle")
        running.join(60)
        assert not running.is_alive()


def test_giving_up_is_final(client: Client, queue: str, start: Start) -> None:
    def give_up(_message: LeasedMessage, _context: Context) -> None:
        raise leasebeat.GiveUp("not a wav file")

    sent = client.send(queue, 1)
    start(give_up)
    message = finished(client, sent.id)
    assert (message.status, message.generation, message.error) == ("failed", 1, "GiveUp: not a wav file")


def test_one_worker_does_many_messages_once_each(client: Client, queue: str, start: Start) -> None:
    handled: list[int] = []
    sent = client.send_many(queue, [leasebeat.NewMessage(number) for number in range(40)])
    start(lambda message, _context: handled.append(message.body), concurrency=4)
    assert {finished(client, message.id).status for message in sent} == {"completed"}
    assert sorted(handled) == list(range(40))


@pytest.mark.scar(13, 32)
def test_a_stopping_worker_gives_back_what_it_cannot_finish(client: Client, queue: str, start: Start) -> None:
    begun = threading.Event()

    def hold(_message: LeasedMessage, context: Context) -> None:
        begun.set()
        while not context.lost.is_set():
            context.beat(progress=9)
            time.sleep(0.02)

    sent = client.send(queue, 1)
    worker = start(hold, drain_timeout=0.1)
    assert begun.wait(60)
    until(lambda: client.get_message(sent.id).progress == 9)
    worker.stop()
    start(lambda message, _context: message.progress)
    message = finished(client, sent.id)
    assert message.output == 9
    assert (message.released_count, message.attempt_count) == (1, 0)


@pytest.mark.scar(14)
def test_sigterm_drains_a_worker_process(server: Server, client: Client, queue: str) -> None:
    program = textwrap.dedent(
        """
        import sys, time
        from leasebeat import Worker

        def handle(message, context):
            print("begun", flush=True)
            for progress in range(15):
                context.beat(progress=progress)
                time.sleep(0.1)
            return "finished"

        Worker(sys.argv[1], sys.argv[2], handle).run()
        """
    )
    first, second = client.send(queue, 1), client.send(queue, 2)
    with program_process(program, server.url, queue) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    done = client.get_message(first.id)
    assert (done.status, done.output, done.generation) == ("completed", "finished", 1)
    assert client.get_message(second.id).status == "pending"


def test_an_idle_worker_process_stops_at_once(server: Server, queue: str) -> None:
    program = "import sys; from leasebeat import Worker; Worker(*sys.argv[1:], print, wait=50).run()"
    until(lambda: parked_on(server) == 0)
    with program_process(program, server.url, queue) as process:
        until(lambda: parked_on(server))
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_a_stop_that_reaches_another_thread_ends_a_parked_claim_all_the_same(server: Server, queue: str, tmp_path: Path) -> None:
    """As it does when a process that was stopped is let go on and asked to end at once: the main thread sleeps on."""
    program = (
        "import os, signal, sys, threading, time; from leasebeat import Worker\n"
        "def signal_here():\n"
        "    while not os.path.exists(sys.argv[3]):\n"
        "        time.sleep(0.01)\n"
        "    print('signalled', flush=True)\n"
        "    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)\n"
        "    time.sleep(60)\n"
        "threading.Thread(target=signal_here, daemon=True).start()\n"
        "Worker(sys.argv[1], sys.argv[2], print, wait=50).run()"
    )
    until(lambda: parked_on(server) == 0)
    with program_process(program, server.url, queue, str(tmp_path / "parked")) as process:
        until(lambda: parked_on(server))
        (tmp_path / "parked").touch()
        assert process.stdout
        assert process.stdout.readline() == b"signalled\n"
        assert process.wait(30) == 0


def test_an_unknown_queue_ends_the_worker(client: Client) -> None:
    with pytest.raises(leasebeat.NotFoundError) as caught:
        Worker(client, "no-such-queue", lambda _message, _context: None).run()
    assert caught.value.code == "queue-not-found"


@pytest.mark.scar(10)
@pytest.mark.timeout(300)
def test_a_service_that_is_killed_and_comes_back_costs_nothing(start_server: Callable[[], Server]) -> None:
    """The lease outlives the gap: beats are repeated, the work goes on, and its ack arrives."""
    first = start_server()
    killed, working = threading.Event(), threading.Event()

    def handle(_message: LeasedMessage, context: Context) -> int:
        progress = 0
        while not killed.is_set() or progress < 10:
            context.beat(progress=progress)
            progress += 1
            working.set()
            time.sleep(0.01)
        return context.generation

    with Relay(first.port) as relay, Client(relay.url) as client:
        client.put_queue("durable", visibility_timeout=120, extension=120, beat_interval=0.2)
        message = client.send("durable", 1)
        worker = Worker(client, "durable", handle, wait=5.0)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        assert working.wait(60)
        first.kill()
        killed.set()
        time.sleep(0.3)  # the ack is tried in vain
        relay.target = start_server().port
        done = finished(client, message.id)
        worker.stop()
        thread.join(60)
    assert (done.status, done.output, done.generation, done.attempt_count) == ("completed", 1, 1, 0)


@pytest.mark.rule(6)
def test_finished_work_is_acked_late_when_the_service_comes_back(server: Server) -> None:
    """Its lease ran out during the outage; nobody else has leased the message, so the result counts."""
    with Client(server.url) as client, Relay(server.port) as relay, Client(relay.url) as relayed:
        name = f"sdk-{uuid.uuid4().hex[:8]}"
        client.put_queue(name, visibility_timeout=4, extension=4, beat_interval=0.2, max_attempts=100)
        away = threading.Event()

        def handle(_message: LeasedMessage, context: Context) -> str:
            relay.cut(1)  # a port that nobody listens on
            away.set()
            return f"lease {context.generation}"

        message = client.send(name, 1)
        with in_thread(Worker(relayed, name, handle, wait=5.0)):
            assert away.wait(60)
            until(lambda: client.get_message(message.id).status == "pending")
            relay.cut(server.port)
            done = finished(client, message.id)
    assert (done.status, done.output) == ("completed", f"lease {done.generation}")
    assert done.expired_count == done.generation


@pytest.mark.scar(11)
def test_busy_threads_keep_their_leases(client: Client, queue: str, start: Start) -> None:
    """Four handlers that never leave the interpreter to anybody, until all leases have been extended some times."""
    enough = threading.Event()

    def handle(_message: LeasedMessage, context: Context) -> int:
        done = 0
        while not enough.is_set():
            done += sum(number * number for number in range(1000)) % 2 + 1
            context.beat(progress=done)
        return context.generation

    sent = client.send_many(queue, [leasebeat.NewMessage(number) for number in range(4)])
    start(handle, concurrency=4)
    try:
        until(lambda: len(client.list_leases(queue=queue).items) == 4)
        until_extended(client, queue, 3)
    finally:
        enough.set()
    assert [(message.status, message.output) for message in (finished(client, each.id) for each in sent)] == [("completed", 1)] * 4


FROZEN = """
import asyncio, os, sys, time
from leasebeat import LeaseLostError, Worker

LEASE = 5

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # each line at once, from either thread

class Work:
    def __init__(self, message, context):
        self.kind, self.context, self.last = message.body, context, time.monotonic()

    def goes_on(self):
        asleep, self.last = time.monotonic() - self.last, time.monotonic()
        try:
            self.context.beat()
        except LeaseLostError as error:
            say(self.kind, type(error).__name__, self.context.lost.is_set())
            return False
        say(self.kind, "beat" if asleep < LEASE else "beat without a lease")
        return True

def in_thread(work):
    while work.goes_on():
        time.sleep(0.02)

async def in_loop(work):
    while work.goes_on():
        await asyncio.sleep(0.02)

def handle(message, context):
    if message.body == "parked":
        say("parked", context.generation)
    else:
        return (in_thread if message.body == "thread" else in_loop)(Work(message, context))

Worker(sys.argv[1], sys.argv[2], handle, concurrency=3).run()
"""


@pytest.mark.scar(10, 18)
@pytest.mark.timed
def test_a_process_that_was_frozen_hears_of_its_losses_from_its_next_beats(server: Server, client: Client, queue: str) -> None:
    """For twice its leases. Somebody else has done the work meanwhile, and what its parked claim was granted comes again."""
    client.put_queue(queue, visibility_timeout=5, extension=5, beat_interval=0.2)
    sent = client.send_many(queue, [leasebeat.NewMessage(kind, work_type="working") for kind in ("thread", "coroutine")])
    with program_process(FROZEN, server.url, queue) as process:
        assert process.stdout is not None
        said = {process.stdout.readline()}
        while len(said) < 2:
            said.add(process.stdout.readline())
        assert said == {b"thread beat\n", b"coroutine beat\n"}
        until(lambda: parked_on(server) == 1)
        with frozen(process, 10):
            granted = client.send(queue, "parked", work_type="parked")
            until(lambda: client.get_message(granted.id).status == "in_progress")
            for _ in sent:
                (other,) = client.claim(queue, worker_id="other", wait=40, visibility_timeout=60, work_types="working")
                client.ack(other, "done by another")
            until(lambda: client.get_message(granted.id).status == "pending")
        heard = (line for line in process.stdout if line not in said)  # those were before
        assert {next(heard) for _ in range(3)} == {
            b"thread LeaseExpiredError True\n",
            b"coroutine LeaseExpiredError True\n",
            b"parked 2\n",
        }
        assert finished(client, granted.id).generation == 2
    messages = [client.get_message(each.id) for each in sent]
    assert [(message.status, message.output, message.generation) for message in messages] == [("completed", "done by another", 2)] * 2


@contextmanager
def working(client: Client, handlers: Mapping[str, tuple[leasebeat.Handler, dict[str, Any]]]) -> Iterator[None]:
    """A worker per queue, with that handler and options."""
    with ExitStack() as workers:
        for queue, (handler, options) in handlers.items():
            workers.enter_context(in_thread(Worker(client, queue, handler, wait=5.0, **options)))
        yield


@pytest.mark.scar(10)
@pytest.mark.timeout(400)
@pytest.mark.timed
def test_a_service_that_is_away_for_half_a_lease_costs_nothing(
    start_server: Callable[[], Server], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It starts again on the same port. The work goes on until the leases that it had by then are extended, by the beats that follow."""
    asked_at = time.monotonic()
    first = start_server()
    start_s = time.monotonic() - asked_at
    lease_s = max(24.0, 4 * start_s)
    monkeypatch.setattr("harness.server._free_port", lambda: first.port)
    enough = tmp_path / "enough"
    handlers: dict[str, tuple[leasebeat.Handler, dict[str, Any]]] = {
        "threads": (process_handlers.work_until_told, {}),
        "coroutines": (process_handlers.work_until_told_in_a_loop, {}),
        "processes": (process_handlers.work_until_told, {"processes": True}),
    }
    with Client(first.url) as client:
        for queue in handlers:
            client.put_queue(queue, visibility_timeout=lease_s, extension=lease_s, beat_interval=0.5)
        sent = [client.send(queue, str(enough)) for queue in handlers]
        with working(client, handlers):
            until(lambda: all(client.get_message(each.id).progress is not None for each in sent))
            done_by_then = [client.get_message(each.id).progress or 0 for each in sent]
            first.kill()
            time.sleep(lease_s / 2 - start_s)
            assert start_server().url == first.url
            for queue in handlers:
                until_extended(client, queue)
            enough.touch()
            messages = [finished(client, each.id) for each in sent]
    assert [(message.status, message.output, message.generation) for message in messages] == [("completed", 1, 1)] * 3
    assert [message.attempt_count + message.expired_count + message.released_count for message in messages] == [0] * 3
    assert all((message.progress or 0) > before for message, before in zip(messages, done_by_then, strict=True))


@pytest.mark.scar(17)
def test_replicas_know_each_others_leases(start_server: Callable[[], Server]) -> None:
    """Claimed via one, extended via both by turns, acked via the other."""
    one, other = start_server(), start_server()
    with Client(one.url) as here, Client(other.url) as there:
        here.put_queue("replicated", visibility_timeout=60, extension=60, beat_interval=0.1)
        sent = there.send("replicated", 1)
        (held,) = here.claim("replicated", worker_id="w", wait=40)
        for client in (here, there) * 4:
            until(lambda via=client: via.beat(held, worker_id="w").status == "extended")  # type: ignore[misc]
        assert there.ack(held, "done").late is False
        assert here.get_message(sent.id).output == "done"


@pytest.mark.scar(25)
def test_no_claim_waits_as_long_as_a_proxy_does(server: Server, client: Client, queue: str) -> None:
    """Proxies cut a request at 60 seconds."""
    with pytest.raises(leasebeat.InvalidRequestError) as caught:
        client.claim(queue, worker_id="w", wait=50.1)
    assert [error.field for error in caught.value.errors] == ["wait"]
    with pytest.raises(leasebeat.InvalidRequestError):
        Worker(server.url, queue, lambda _message, _context: None, wait=60).run()
