"""`TaskRunner` on a real service: what comes of work items, and how a runner ends."""

import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness.api import Api
from harness.server import Server
from harness.wait import until
from sdk.relay import Relay
from sdk.running import frozen, program_process, until_extended
from sdk.scripted_service import Answer, Break, Received, ScriptedService, beats, lease, problem, verdicts

from leasebeat import Client, GiveUp, Lease, Message, NotFoundError, RetryLater
from leasebeat._lease_manager import LeaseManager
from leasebeat._task_runner import TaskRunner

LONG = 40


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture
def short(client: Client, queue: str) -> str:
    """A queue with leases that are extended at most every fifth of a second. Tests of their end make them shorter."""
    client.put_queue(queue, visibility_timeout=60, extension=60, beat_interval=0.2)
    return queue


class Running:
    """A runner in a thread."""

    def __init__(self, runner: TaskRunner) -> None:
        self.runner = runner
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.runner.start()
        except BaseException as error:  # noqa: BLE001 - for the test to look at
            self.error = error

    def ended(self) -> bool:
        self.thread.join(60)
        return not self.thread.is_alive()


Start = Callable[..., Running]


@pytest.fixture
def start(client: Client, queue: str) -> Iterator[Start]:
    """Start runners on the test's queue; they end with the test."""
    started: list[Running] = []

    def begin(process: Callable[[Any], Any] | TaskRunner, **options: Any) -> Running:
        options = {"queue": queue, "lease_duration_seconds": None, "interval_seconds": 0.3, **options}
        runner = process if isinstance(process, TaskRunner) else TaskRunner(client, "worker-1", process, **options)
        started.append(Running(runner))
        return started[-1]

    yield begin
    for running in started:
        running.runner.stop()
        assert running.ended()


def once(client: Client, message_id: str, *statuses: str) -> Message:
    """Wait for the message to be in one of these states, and return it."""

    def reached() -> Message | None:
        message = client.get_message(message_id)
        return message if message.status in statuses else None

    message = until(reached)
    assert message is not None
    return message


# --- what comes of work items


def test_what_is_returned_is_the_output(client: Client, queue: str, start: Start) -> None:
    ids = [client.send(queue, number).id for number in range(5)]
    start(lambda number: {"double": number * 2})
    assert [once(client, each, "completed").output for each in ids] == [{"double": number * 2} for number in range(5)]


def test_an_exception_fails_the_attempt_and_the_next_one_may_succeed(client: Client, queue: str, start: Start) -> None:
    attempts: list[int] = []

    def process(_body: Any) -> str:
        attempts.append(len(attempts))
        if len(attempts) == 1:
            raise OSError("disk full")
        return "done"

    sent = client.send(queue, "work")
    start(process)
    message = once(client, sent.id, "completed")
    assert (message.output, message.attempt_count, message.failed_count) == ("done", 1, 1)
    (checkpoint,) = client.list_checkpoints(sent.id).items
    assert checkpoint.facts["error"] == "OSError: disk full"


@pytest.mark.parametrize(("error", "status"), [(GiveUp("no such file"), "failed"), (RetryLater("busy", delay=60), "scheduled")])
def test_the_work_may_say_what_is_to_become_of_it(error: Exception, status: str, client: Client, queue: str, start: Start) -> None:
    def process(_body: Any) -> None:
        raise error

    sent = client.send(queue, "work")
    start(process)
    assert once(client, sent.id, status).attempt_count == 1


@pytest.mark.parametrize("output", [{1, 2}, float("nan"), "x" * 300_000])
def test_an_output_that_cannot_be_stored_fails_the_attempt(output: Any, client: Client, queue: str, start: Start) -> None:
    sent = client.send(queue, "work", max_attempts=1)
    start(lambda _body: output)
    message = once(client, sent.id, "failed")
    assert message.error


@pytest.mark.scar(36)
@pytest.mark.parametrize("text", ["nul \0", "lone \ud800", "x" * 20_000])
def test_an_error_that_cannot_be_stored_fails_the_attempt_all_the_same(text: str, client: Client, queue: str, start: Start) -> None:
    def process(_body: Any) -> None:
        raise ValueError(text)

    sent = client.send(queue, "work", max_attempts=1)
    start(process)
    assert once(client, sent.id, "failed").failed_count == 1


def test_the_lease_is_extended_for_as_long_as_the_work_takes(client: Client, short: str, start: Start) -> None:
    sent = client.send(short, "work")
    start(lambda _body: until_extended(client, short, 3))
    message = once(client, sent.id, "completed")
    assert (message.generation, message.attempt_count) == (1, 0)


@pytest.mark.scar(12)
def test_work_that_hangs_loses_its_lease_where_progress_is_required(client: Client, short: str, start: Start) -> None:
    client.put_queue(short, visibility_timeout=1, extension=1, beat_interval=0.2, progress_required=True)
    lost = threading.Event()

    def hang(_body: Any) -> None:
        assert lost.wait(LONG)
        once(client, sent.id, "failed")
        raise OSError("too late")

    sent = client.send(short, "work", max_attempts=1)
    running = start(hang, progress=lambda: 1, on_lease_lost=lost.set)
    message = once(client, sent.id, "failed")
    running.runner.stop()
    assert running.ended()
    assert (message.expired_count, message.failed_count) == (1, 0)
    assert client.get_message(sent.id).error == message.error


@pytest.mark.scar(1)
def test_a_result_of_a_lost_lease_is_refused_and_the_next_work_item_is_worked_on(
    client: Client, short: str, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    lost = threading.Event()

    class Robbed(TaskRunner):
        def _process_work_item(self, lease: Lease) -> str:
            if lease.input_data == "first":
                client.release(lease)
                (taken,) = client.claim(short, worker_id="somebody-else", wait=LONG)
                client.ack(taken, output="somebody else's")
                assert lost.wait(LONG)
            return "ours"

    first = client.send(short, "first")
    with caplog.at_level(logging.WARNING):
        start(Robbed(client, "worker-1", queue=short, interval_seconds=0.1, on_lease_lost=lost.set))
        assert once(client, first.id, "completed").output == "somebody else's"
        second = client.send(short, "second")
        assert once(client, second.id, "completed").output == "ours"
    assert f"The release of work item {first.id} was refused: the lease of message {first.id} is lost" in caplog.text
    assert client.get_message(first.id).output == "somebody else's"


def test_a_release_is_repeated_until_the_service_is_back(client: Client, server: Server, queue: str, start: Start) -> None:
    away = threading.Event()
    with Relay(server.port) as relay, Client(relay.url) as relayed:

        def process(_body: Any) -> str:
            relay.cut(1)  # nobody listens there
            away.set()
            return "done"

        sent = client.send(queue, "work")
        running = start(TaskRunner(relayed, "worker-1", process, queue=queue))
        assert away.wait(LONG)
        time.sleep(1)
        assert client.get_message(sent.id).status == "in_progress"
        relay.cut(server.port)
        assert once(client, sent.id, "completed").output == "done"
        running.runner.stop()
        assert running.ended()


@pytest.mark.scar(10)
@pytest.mark.timed
def test_a_service_that_is_away_for_half_a_lease_costs_nothing(client: Client, server: Server, short: str, start: Start) -> None:
    """The beats that follow extend the lease as before."""
    lost: list[str] = []
    with Relay(server.port) as relay, Client(relay.url) as relayed:

        def process(_body: Any) -> str:
            relay.cut(1)  # nobody listens there
            time.sleep(16 / 2)
            relay.cut(server.port)
            until_extended(client, short)
            return "done"

        client.put_queue(short, visibility_timeout=16, extension=16, beat_interval=0.2)
        sent = client.send(short, "work")
        runner = TaskRunner(
            relayed,
            "worker-1",
            process,
            queue=short,
            lease_duration_seconds=None,
            interval_seconds=0.3,
            on_lease_lost=lambda: lost.append("lost"),
        )
        running = start(runner)
        message = once(client, sent.id, "completed")
        running.runner.stop()
        assert running.ended()
    assert lost == []
    assert (message.output, message.generation) == ("done", 1)
    assert (message.attempt_count, message.expired_count, message.failed_count, message.released_count) == (0, 0, 0, 0)


FROZEN = """
import signal, sys, threading
from leasebeat import Client
from leasebeat._task_runner import TaskRunner

lost = threading.Event()

def process(body):
    if body == "first":
        print("begun", flush=True)
        print("lost" if lost.wait(60) else "never heard", flush=True)
    return "done here"

options = {"queue": sys.argv[2], "lease_duration_seconds": None, "interval_seconds": 0.2, "on_lease_lost": lost.set}
runner = TaskRunner(Client(sys.argv[1]), "worker-1", process, **options)
signal.signal(signal.SIGTERM, lambda *_: runner.stop())
runner.start()
"""


@pytest.mark.scar(10)
@pytest.mark.timed
def test_a_runner_that_was_frozen_hears_of_its_loss_and_goes_on(server: Server, client: Client, short: str) -> None:
    """For longer than its lease. Somebody else has done the work meanwhile."""
    client.put_queue(short, visibility_timeout=8, extension=8, beat_interval=0.2)
    first = client.send(short, "first")
    with program_process(FROZEN, server.url, short) as process:
        assert begun(process)
        with frozen(process, 9):
            (other,) = client.claim(short, worker_id="other", wait=LONG, visibility_timeout=60)
            client.ack(other, "done by another")
            client.put_queue(short, visibility_timeout=60, extension=60, beat_interval=0.2)
        assert process.stdout is not None
        assert process.stdout.readline() == b"lost\n"
        second = client.send(short, "second")
        assert once(client, second.id, "completed").output == "done here"
        process.send_signal(signal.SIGTERM)
        assert process.wait(LONG) == 0
    message = client.get_message(first.id)
    assert (message.output, message.generation, message.expired_count) == ("done by another", 2, 1)


# --- a subclass


def test_a_subclass_may_do_the_work_and_return_its_output(client: Client, queue: str, start: Start) -> None:
    class Doubling(TaskRunner):
        def _process_work_item(self, lease: Lease) -> Any:
            return {"of": lease.work_item_id, "is": lease.input_data * 2}

    sent = client.send(queue, 21)
    start(Doubling(client, "worker-1", queue=queue))
    assert once(client, sent.id, "completed").output == {"of": sent.id, "is": 42}


@pytest.mark.parametrize("success", [True, False])
def test_a_subclass_may_release_by_itself(
    success: bool, client: Client, queue: str, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    lost: list[str] = []

    class Releasing(TaskRunner):
        def _process_work_item(self, lease: Lease) -> None:
            self.lease_manager.release_lease(lease.work_item_id, success=success, output_data="its own", error="its own", retryable=False)

    first, second = (client.send(queue, "work") for _ in range(2))
    with caplog.at_level(logging.WARNING, logger="leasebeat"):
        start(Releasing(client, "worker-1", queue=queue, on_lease_lost=lambda: lost.append("lost")))
        messages = [once(client, each.id, "completed", "failed") for each in (first, second)]
    expected = ("completed", "its own", None) if success else ("failed", None, "its own")
    assert [(each.status, each.output, each.error) for each in messages] == [expected] * 2
    assert lost == []
    assert caplog.messages == []


def test_a_runner_needs_something_to_do(client: Client) -> None:
    with pytest.raises(TypeError, match="needs a process function"):
        TaskRunner(client, "worker-1")


# --- how it ends


def test_stop_lets_the_work_item_in_hand_finish_and_takes_no_other(client: Client, queue: str, start: Start) -> None:
    begun, finish = threading.Event(), threading.Event()

    def process(_body: Any) -> str:
        begun.set()
        return "done" if finish.wait(LONG) else "too late"

    first, second = client.send(queue, "first"), client.send(queue, "second")
    running = start(process)
    assert begun.wait(LONG)
    running.runner.stop()
    finish.set()
    assert running.ended()
    assert running.error is None
    assert client.get_message(first.id).output == "done"
    assert (client.get_message(second.id).status, client.get_message(second.id).generation) == ("pending", 0)
    assert not running.runner.recovery_sweep.is_running()


def test_stop_ends_an_idle_runner(queue: str, start: Start) -> None:
    running = start(lambda _body: None, queue=queue)
    until(running.runner.recovery_sweep.is_running)
    time.sleep(0.3)
    running.runner.stop()
    assert running.ended()


def test_a_work_item_that_comes_while_it_stops_is_given_back_uncounted(client: Client, queue: str, start: Start) -> None:
    class StoppedMeanwhile(LeaseManager):
        def acquire_lease(self, *arguments: Any, **options: Any) -> Lease | None:
            acquired = super().acquire_lease(*arguments, **options)
            runner.stop()
            return acquired

    runner = TaskRunner(client, "worker-1", lambda _body: None, queue=queue)
    runner.lease_manager = StoppedMeanwhile(client, "worker-1", queue=queue)
    sent = client.send(queue, "work")
    assert start(runner).ended()
    message = client.get_message(sent.id)
    assert (message.status, message.attempt_count, message.released_count) == ("pending", 0, 1)


def test_a_drained_worker_ends(client: Client, api: Api, queue: str, start: Start) -> None:
    sent = client.send(queue, "work")
    running = start(TaskRunner(client, f"drained-{queue}", lambda _body: None, queue=queue))
    once(client, sent.id, "completed")
    until(lambda: api.client.post(f"/workers/drained-{queue}/drain", json={}).status_code == 200)
    assert running.ended()
    assert running.error is None


def test_a_queue_that_does_not_exist_is_an_error(start: Start) -> None:
    running = start(lambda _body: None, queue="no-such-queue")
    assert running.ended()
    assert isinstance(running.error, NotFoundError)
    assert not running.runner.recovery_sweep.is_running()


def test_claims_that_fail_are_repeated(service: ScriptedService, caplog: pytest.LogCaptureFixture) -> None:
    service.on("POST", "/queues/default/leases", problem(500, "internal"), problem(404, "no-such-page"), problem(404, "queue-not-found"))
    with Client(service.url) as client:
        running = Running(TaskRunner(client, "worker-1", lambda _body: None))
        assert running.ended()
    assert isinstance(running.error, NotFoundError)
    assert len([each for each in caplog.messages if each.startswith("Acquiring a lease failed")]) == 2


@pytest.mark.parametrize("answer", [Answer({"errors": ["too large"]}, 413), Answer({"code": 400}, 400), Answer("ok"), Answer([]), Answer()])
def test_an_answer_from_something_in_front_of_the_service_does_not_end_it(answer: Answer, service: ScriptedService) -> None:
    service.on("POST", "/queues/default/leases", answer, problem(404, "queue-not-found"))
    with Client(service.url) as client:
        running = Running(TaskRunner(client, "worker-1", lambda _body: None))
        assert running.ended()
    assert isinstance(running.error, NotFoundError)
    assert len(service.asked("/queues/default/leases")) == 2


@pytest.fixture
def pass_on(service: ScriptedService, api: Api) -> Callable[[Received], Answer]:
    """Has the real service answer what the scripted one is asked."""

    def ask(request: Received) -> Answer:
        answer = api.client.request(request.method, request.path, json=request.body)
        return Answer(answer.json(), answer.status_code)

    for path in ("/beat", "/ack", "/release", "/recovery/sweep"):
        service.on("POST", path, ask)
    return ask


@pytest.mark.scar(19, 31)
@pytest.mark.rule(9, 14)
def test_a_grant_that_was_not_heard_of_is_worked_on(
    client: Client, queue: str, service: ScriptedService, pass_on: Callable[[Received], Answer], start: Start
) -> None:
    def lose(request: Received) -> Break:
        pass_on(request)
        return Break()

    sent = client.send(queue, "work")
    service.on("POST", f"/queues/{queue}/leases", lose, lose, pass_on)  # a connection that breaks is replaced once, within a call
    with Client(service.url) as over_service:
        running = start(TaskRunner(over_service, "worker-1", lambda _body: "done", queue=queue))
        message = once(client, sent.id, "completed")
        running.runner.stop()
        assert running.ended()
    assert (message.output, message.generation, message.attempt_count) == ("done", 1, 0)


@pytest.mark.scar(32)
def test_a_grant_that_was_not_heard_of_is_given_back_uncounted_when_it_stops(
    client: Client, queue: str, service: ScriptedService, pass_on: Callable[[Received], Answer], start: Start
) -> None:
    def lose(request: Received) -> Break:
        pass_on(request)
        runner.stop()
        return Break()

    sent = client.send(queue, "work")
    service.on("POST", f"/queues/{queue}/leases", lose, lose, pass_on)
    with Client(service.url) as over_service:
        runner = TaskRunner(over_service, "worker-1", lambda _body: "done", queue=queue)
        assert start(runner).ended()
    message = client.get_message(sent.id)
    assert (message.status, message.generation, message.attempt_count, message.released_count) == ("pending", 1, 0, 1)


def test_it_runs_once(start: Start, queue: str) -> None:
    running = start(lambda _body: None, queue=queue)
    running.runner.stop()
    assert running.ended()
    with pytest.raises(RuntimeError, match="runs once"):
        running.runner.start()


PROGRAM = textwrap.dedent("""
    import signal, sys, time
    from leasebeat import Client
    from leasebeat._task_runner import TaskRunner

    def process(body):
        print("begun", flush=True)
        time.sleep(body)
        return "done"

    runner = TaskRunner(Client(sys.argv[1]), "worker-1", process, queue=sys.argv[2])
    signal.signal(signal.SIGTERM, lambda *_: runner.stop())
    try:
        runner.start()
    except KeyboardInterrupt:
        sys.exit(3)
    print("ended", flush=True)
""")


def begun(process: "subprocess.Popen[bytes]") -> bool:
    assert process.stdout is not None
    return process.stdout.readline() == b"begun\n"


@pytest.mark.scar(32)
def test_a_signal_handler_may_stop_it(client: Client, server: Server, queue: str) -> None:
    sent, left = client.send(queue, 1.0), client.send(queue, 1.0)
    with program_process(PROGRAM, server.url, queue) as process:
        assert begun(process)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=LONG)
    assert (process.returncode, output) == (0, b"ended\n")
    assert client.get_message(sent.id).output == "done"
    assert client.get_message(left.id).generation == 0


@pytest.mark.scar(32)
def test_an_interrupted_work_item_is_given_back_uncounted(client: Client, server: Server, queue: str) -> None:
    sent = client.send(queue, 60)
    with program_process(PROGRAM, server.url, queue) as process:
        assert begun(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(LONG) == 3
    message = client.get_message(sent.id)
    assert (message.status, message.attempt_count, message.released_count) == ("pending", 0, 1)


@pytest.mark.timed
def test_giving_back_is_repeated_while_the_lease_lasts(service: ScriptedService) -> None:
    """Which was extended beyond the end that it was granted with."""
    ended = threading.Event()
    extended = threading.Event()

    def extend(request: Received) -> Answer:
        extended.set()
        return beats(expires_in=12.0)(request)

    def hang(_request: Received) -> Break:
        ended.wait(LONG)
        return Break()

    class Interrupted(TaskRunner):
        def _process_work_item(self, lease: Lease) -> None:
            assert extended.wait(LONG)
            until(lambda: lease.remaining() < 0)
            raise KeyboardInterrupt

    service.on("POST", "/queues/default/leases", Answer({"leases": [lease(expires_in=1.5)], "waited": 0.0, "drain": False}))
    service.on("POST", "/beat", extend)
    service.on("POST", "/release", hang, verdicts("released"))
    with Client(service.url, timeout=LONG) as client:
        running = Running(Interrupted(client, "worker-1"))
        service.wait_for("/release", 2)
        ended.set()
        assert running.ended()
    assert isinstance(running.error, KeyboardInterrupt)


@pytest.mark.scar(30)
def test_a_work_item_whose_work_exits_is_charged_an_attempt(client: Client, queue: str, start: Start) -> None:
    sent = client.send(queue, "work")
    running = start(lambda _body: sys.exit(4))
    assert running.ended()
    assert isinstance(running.error, SystemExit)
    message = client.get_message(sent.id)
    assert (message.attempt_count, message.error) == (1, "SystemExit: 4")


@pytest.mark.scar(16)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_that_the_work_forks_and_lets_go_on_releases_nothing(client: Client, queue: str, start: Start) -> None:
    def process(_body: Any) -> str:
        child = os.fork()
        if child == 0:
            return "child"
        os.waitpid(child, 0)
        return "parent"

    sent = client.send(queue, "work")
    start(process)
    message = once(client, sent.id, "completed")
    assert (message.output, message.generation) == ("parent", 1)
