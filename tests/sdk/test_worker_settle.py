"""What a worker makes of what its handler does, over real connections to a scripted service."""

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.wait import until
from sdk.running import CLAIM, Start, grant, park, paths, program_process, rounds
from sdk.scripted_service import Answer, Break, Received, ScriptedService, Step, lease, message, problem, verdicts

import leasebeat
from leasebeat import Context, LeasedMessage, Options, Worker
from leasebeat._claims import Claims


def test_the_result_of_a_handler_is_the_output_of_its_ack(service: ScriptedService, start: Start) -> None:
    def handle(message: LeasedMessage, context: Context) -> object:
        context.beat(progress=7, detail={"step": "upload"})
        return {"file": message.body["file"], "attempt": context.attempt, "generation": context.generation}

    start(handle, worker_id="worker-1", version="1.4.0")
    (ack,) = service.wait_for("/ack")
    assert ack.body["leases"] == [{"receipt": "secret-1", "output": {"file": "a.wav", "attempt": 1, "generation": 1}}]
    asked = service.asked(CLAIM)[0].body
    assert (asked["worker_id"], asked["host"], asked["version"]) == ("worker-1", socket.gethostname(), "1.4.0")


def test_a_coroutine_function_is_awaited_in_an_event_loop(service: ScriptedService, start: Start) -> None:
    async def handle(message: LeasedMessage, context: Context) -> object:
        await asyncio.sleep(0.01)
        context.beat(progress=1)
        return message.id

    start(handle)
    assert service.wait_for("/ack")[0].body["leases"][0]["output"] == "42"


@pytest.mark.parametrize("end", [SystemExit(4), KeyboardInterrupt()])
@pytest.mark.parametrize("where", ["handler", "task"])
def test_a_coroutine_that_ends_the_program_ends_its_attempt_alone(
    end: BaseException, where: str, service: ScriptedService, start: Start
) -> None:
    """Whether the handler itself does or a task of its own: the event loop is that of the others too."""
    leases = [lease(name, message=message(id=name)) for name in ("beside", "ends", "after")]
    service.on("POST", CLAIM, grant(*leases[:2]), grant(leases[2]), park)
    is_over = threading.Event()

    async def ending() -> None:
        raise end

    async def handle(message: LeasedMessage, _context: Context) -> str:
        if message.id == "beside":
            await asyncio.to_thread(is_over.wait, 60)
        if message.id == "ends":
            await (ending() if where == "handler" else asyncio.gather(ending()))
        return message.id

    start(handle, concurrency=2)
    (nack,) = service.wait_for("/nack")
    is_over.set()
    assert nack.body["leases"][0]["error"].startswith(type(end).__name__)
    service.wait_for("/ack", 2)
    assert {ack.body["leases"][0]["output"] for ack in service.asked("/ack")} == {"beside", "after"}


def test_an_exception_is_a_nack_with_its_text(service: ScriptedService, start: Start) -> None:
    def handle(_message: LeasedMessage, _context: Context) -> None:
        raise OSError("disk full\0\ud800")

    start(handle)
    (nack,) = service.wait_for("/nack")
    assert nack.body["leases"] == [{"receipt": "secret-1", "error": "OSError: disk full\N{REPLACEMENT CHARACTER}?", "retryable": True}]


@pytest.mark.parametrize(
    ("decision", "delay", "retryable"),
    [
        (leasebeat.GiveUp("not a wav file"), None, False),
        (leasebeat.RetryLater("rate limit", delay=30), 30, True),
        (SystemExit(3), None, True),
    ],
)
def test_a_handler_decides_what_becomes_of_its_message(
    decision: BaseException, delay: float | None, retryable: bool, service: ScriptedService, start: Start
) -> None:
    def handle(_message: LeasedMessage, _context: Context) -> None:
        raise decision

    start(handle)
    (item,) = service.wait_for("/nack")[0].body["leases"]
    assert (item.get("delay"), item["retryable"]) == (delay, retryable)
    assert type(decision).__name__ in item["error"]


@pytest.mark.scar(13)
def test_the_last_report_goes_out_before_the_nack(service: ScriptedService, start: Start) -> None:
    def handle(_message: LeasedMessage, context: Context) -> None:
        context.beat(progress=1)
        service.wait_for("/beat")
        context.beat(progress=2, detail={"offset": 99})  # within the interval, so not due for ten seconds
        raise OSError("disk full")

    start(handle)
    service.wait_for("/nack")
    assert paths(service) == ["/beat", "/beat", "/nack"]
    assert service.asked("/beat")[-1].body["leases"] == [{"receipt": "secret-1", "progress": 2, "detail": {"offset": 99}}]


def test_a_nack_does_not_wait_for_a_service_that_takes_no_beats(
    service: ScriptedService, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("_task", "_worker"):
        monkeypatch.setattr(f"leasebeat.{module}.FLUSH_TIMEOUT_S", 0.5)
    service.on("POST", "/beat", problem(503, "overloaded", headers={"retry-after": "1"}))

    def handle(_message: LeasedMessage, context: Context) -> None:
        context.beat(progress=1)
        raise OSError("disk full")

    start(handle)
    service.wait_for("/nack")


def test_an_exception_that_cannot_say_what_it_is_is_a_nack_all_the_same(service: ScriptedService, start: Start) -> None:
    class SpeechlessError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def handle(_message: LeasedMessage, _context: Context) -> None:
        raise SpeechlessError

    start(handle)
    (nack,) = service.wait_for("/nack")
    assert nack.body["leases"][0]["error"] == "SpeechlessError"


def test_an_output_nested_too_deeply_is_a_nack(service: ScriptedService, start: Start) -> None:
    def handle(_message: LeasedMessage, _context: Context) -> object:
        output: list[object] = []
        for _ in range(100_000):
            output = [output]
        return output

    start(handle)
    (item,) = service.wait_for("/nack")[0].body["leases"]
    assert item["error"].startswith("RecursionError")
    assert service.asked("/ack") == []


@pytest.mark.parametrize("delay", [-5.0, float("nan"), float("inf"), 1e9])
def test_a_delay_that_no_service_takes_is_refused_where_it_is_chosen(delay: float) -> None:
    with pytest.raises(ValueError, match="delay must be from 0 to 31536000 seconds"):
        leasebeat.RetryLater("rate limit", delay=delay)


@pytest.mark.parametrize("output", [float("nan"), object()])
def test_an_output_without_json_form_is_a_nack(output: object, service: ScriptedService, start: Start) -> None:
    start(lambda _message, _context: output)
    (item,) = service.wait_for("/nack")[0].body["leases"]
    assert "JSON" in item["error"]
    assert service.asked("/ack") == []


def given_up(service: ScriptedService, enough: Callable[[list[Received]], bool]) -> list[Received]:
    """Wait for a lease that a worker has given up after enough tries to settle it. Returns its claim and the tries.

    A machine that stands still may leave a short lease no time for them: then the next one is looked at. All goes well with those after.
    """

    def ended() -> list[list[Received]]:
        tried = [[request for request in each if request.path != "/beat"] for each in rounds(service)[:-1]]
        return [each for each in tried if enough(each)]

    found = until(ended)[0]
    service.on("POST", CLAIM, park)
    service.on("POST", "/ack", verdicts("acked", late=False))
    service.on("POST", "/nack", verdicts("requeued"))
    return found


@pytest.mark.parametrize("status", [401, 404])
def test_an_ack_that_is_turned_away_is_tried_while_its_lease_lasts_and_no_longer(
    status: int, service: ScriptedService, start: Start
) -> None:
    """By something in front of the service, it may be, and not for long. But no beat makes the lease longer for it."""
    service.on("POST", CLAIM, grant(lease(expires_in=4.0)))
    service.on("POST", "/ack", Answer("no", status))
    start(lambda _message, _context: "done")
    claim, *tries = given_up(service, lambda asked: len(asked) > 2)
    assert tries[-1].at - claim.at < 20, "no longer: a late ack is tried for half a minute"
    assert set(paths(service)) == {"/ack"}


def test_a_settlement_that_is_turned_away_for_a_moment_arrives(service: ScriptedService, start: Start) -> None:
    service.on("POST", "/ack", Answer("no", 403), Answer("no such page", 404), verdicts("acked", late=False))
    start(lambda _message, _context: "done")
    assert [request.body["leases"][0]["output"] for request in service.wait_for("/ack", 3)] == ["done"] * 3


def test_a_nack_that_the_service_refuses_is_tried_without_its_error_and_then_no_more(
    service: ScriptedService, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    service.on("POST", "/nack", problem(422, "invalid-request"))

    def handle(_message: LeasedMessage, _context: Context) -> None:
        raise OSError("disk full")

    start(handle)
    service.wait_for(CLAIM, 2)
    assert [request.body["leases"][0].get("error") for request in service.asked("/nack")] == ["OSError: disk full", None]
    assert (
        "The nack of message 42 is refused, so its lease runs out: 422 invalid-request about invalid-request (request r-1)"
        in caplog.messages
    )


def test_an_output_that_the_service_refuses_is_a_nack(service: ScriptedService, start: Start) -> None:
    service.on("POST", "/ack", problem(422, "invalid-request", errors=[{"field": "leases.0.output", "message": "holds U+0000"}]))
    start(lambda _message, _context: "a\0b")
    (item,) = service.wait_for("/nack")[0].body["leases"]
    assert "leases.0.output: holds U+0000" in item["error"]


@pytest.mark.scar(14)
def test_an_ack_is_repeated_until_it_is_answered_and_its_lease_is_beaten_for(service: ScriptedService, start: Start) -> None:
    service.on("POST", "/ack", *[problem(500, "internal")] * 3, verdicts("acked", late=False))
    start(lambda _message, _context: "done")
    assert len(service.wait_for("/ack", 4)) == 4
    assert len(service.wait_for("/beat")) == 1


def test_an_ack_that_the_database_refuses_is_repeated(service: ScriptedService, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    service.on("POST", "/ack", verdicts("error", late=False), verdicts("error", late=False), verdicts("acked", late=False))
    start(lambda _message, _context: "done")
    service.wait_for("/ack", 3)
    service.wait_for(CLAIM, 2)
    assert [request.body for request in service.asked("/ack")] == [{"leases": [{"receipt": "secret-1", "output": "done"}]}] * 3
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "The ack of message 42 failed and is repeated: 500 row-refused" in warnings[0]


def test_a_result_that_the_database_goes_on_refusing_does_not_keep_its_lease(
    service: ScriptedService, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasebeat._task.LATE_ACK_GRACE_S", 0.2)
    service.on("POST", CLAIM, grant(lease(expires_in=3.0)))
    service.on("POST", "/ack", verdicts("error", late=False))
    start(lambda _message, _context: "done")
    given_up(service, lambda asked: len(asked) > 2)
    assert service.asked("/beat") == []


def test_a_nack_that_the_database_refuses_is_repeated(service: ScriptedService, start: Start) -> None:
    service.on("POST", "/nack", verdicts("error"), verdicts("requeued"))

    def handle(_message: LeasedMessage, _context: Context) -> None:
        raise OSError("disk full")

    start(handle)
    service.wait_for("/nack", 2)


@pytest.mark.rule(6)
def test_finished_work_is_acked_though_its_lease_ran_out_while_the_service_was_away(service: ScriptedService, start: Start) -> None:
    acked: list[Received] = []

    def answer(request: Received) -> Answer | Break:
        if request.at < service.asked(CLAIM)[-1].at + 4:
            return Break()
        acked.append(request)
        return verdicts("acked", late=True)(request)

    service.on("POST", CLAIM, lambda request: park(request) if acked else grant(lease(expires_in=3.0)))
    service.on("POST", "/beat", Break())
    service.on("POST", "/ack", answer)
    start(lambda _message, _context: "done")
    until(lambda: acked)
    service.wait_for(CLAIM, len(service.asked(CLAIM)) + 1)
    assert [request.body["leases"][0]["output"] for request in acked] == ["done"]


def test_a_late_ack_is_given_up_in_the_end(service: ScriptedService, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasebeat._task.LATE_ACK_GRACE_S", 3.0)
    service.on("POST", CLAIM, grant(lease(expires_in=2.5)))
    service.on("POST", "/ack", problem(500, "internal"))
    service.on("POST", "/beat", problem(500, "internal"))
    start(lambda _message, _context: "done")
    claim, *tries = given_up(service, lambda asked: asked[-1].at > asked[0].at + 2.5)
    assert tries[-1].at - claim.at < 30


def test_a_nack_is_given_up_when_the_lease_has_run_out(service: ScriptedService, start: Start) -> None:
    service.on("POST", CLAIM, grant(lease(expires_in=3.0)))
    service.on("POST", "/nack", problem(500, "internal"))
    service.on("POST", "/beat", problem(500, "internal"))

    def handle(_message: LeasedMessage, _context: Context) -> None:
        raise OSError("disk full")

    start(handle)
    claim, *tries = given_up(service, lambda asked: len(asked) > 1)
    assert tries[-1].at - claim.at < 20


@pytest.mark.scar(15)
def test_the_next_message_is_claimed_only_when_a_slot_is_free(service: ScriptedService, start: Start) -> None:
    finish = threading.Event()
    service.on("POST", CLAIM, grant(lease("r-1", message=message(id="1")), lease("r-2", message=message(id="2"))), park)

    def handle(message: LeasedMessage, _context: Context) -> None:
        if message.id == "1":
            finish.wait(60)

    start(handle, concurrency=2)
    service.wait_for("/ack")
    service.wait_for(CLAIM, 3)
    finish.set()
    service.wait_for("/ack", 2)
    asked_for = [request.body["max_messages"] for request in service.asked(CLAIM)]
    assert asked_for[:3] == [2, 1, 1]
    until(lambda: service.asked(CLAIM)[-1].body["max_messages"] == 2)


@pytest.mark.scar(15)
def test_nothing_is_claimed_while_every_slot_is_taken(service: ScriptedService, start: Start) -> None:
    finish = threading.Event()
    start(lambda _message, _context: finish.wait(60))
    service.wait_for(CLAIM)
    time.sleep(0.1)
    assert len(service.asked(CLAIM)) == 1
    finish.set()
    service.wait_for(CLAIM, 2)


@pytest.mark.parametrize("queues", ["default", ["default", "other"]])
def test_a_service_that_answers_at_once_is_not_asked_in_a_tight_loop(
    queues: str | list[str], service: ScriptedService, start: Start
) -> None:
    service.on("POST", CLAIM, Answer({"leases": []}))
    service.on("POST", "/queues/other/leases", Answer({"leases": []}))
    started = time.monotonic()
    start(lambda _message, _context: None, queues=queues, wait=0)
    assert service.wait_for(CLAIM, 5)[4].at - started >= 3 * 0.25  # with several queues, the first two rounds have no pause between them


@pytest.mark.parametrize(
    ("refusal", "error"),
    [(problem(404, "queue-not-found"), leasebeat.NotFoundError), (problem(422, "invalid-request"), leasebeat.InvalidRequestError)],
)
def test_wrong_settings_end_the_worker_with_their_error(refusal: Step, error: type, service: ScriptedService, start: Start) -> None:
    service.on("POST", CLAIM, refusal)
    running = start(lambda _message, _context: None)
    running.join()
    assert type(running.error) is error


@pytest.mark.parametrize("trouble", [Break(), problem(500, "internal"), problem(503, "overloaded"), Answer("not found", 404)])
def test_claims_go_on_after_trouble(trouble: Answer | Break, service: ScriptedService, start: Start) -> None:
    service.on("POST", CLAIM, trouble, trouble, grant(lease()), park)
    start(lambda _message, _context: None)
    service.wait_for("/ack")


def test_a_claim_that_failed_is_repeated_by_its_name(service: ScriptedService, start: Start) -> None:
    """It may have been granted leases all the same, which would be lost until they run out."""
    service.on("POST", CLAIM, Break(), Break(), problem(500, "internal"), grant(lease()), park)
    start(lambda _message, _context: None)
    service.wait_for("/ack")
    *tries, next_claim = [request.body["claim_id"] for request in service.wait_for(CLAIM, 5)[:5]]
    assert len(set(tries)) == 1
    assert next_claim != tries[0]


def test_a_repeated_claim_that_brings_more_than_there_is_room_for_gives_the_rest_back(willing: ScriptedService) -> None:
    willing.on("POST", CLAIM, problem(500, "internal"), grant(lease("r-1"), lease("r-2", message=message(id="2"))))
    with Claims(Options(base_url=willing.url), "worker-1") as claims:
        with pytest.raises(leasebeat.ServerError):
            claims.claim("default", max_messages=2, wait=0, visibility_timeout=None)
        assert [held.message.id for held in claims.claim("default", max_messages=1, wait=0, visibility_timeout=None)] == ["42"]
    assert willing.asked("/release")[0].body["leases"] == [{"receipt": "r-2"}]


NO_THREADS = """
import sys, threading, time
from pathlib import Path
from leasebeat import Worker

def handle(message, context):
    if message.id == "1":
        threading.stack_size(1 << 46)  # from now on the system has no memory for another thread
        while not Path(sys.argv[2]).exists():
            time.sleep(0.01)
        threading.stack_size(0)
    return message.id

Worker(sys.argv[1], "default", handle, concurrency=3, wait=1.0).run()
"""


def test_what_no_thread_can_be_started_for_is_given_back(willing: ScriptedService, tmp_path: Path) -> None:
    one, *others = [lease(f"r-{number}", message=message(id=str(number))) for number in (1, 2, 3)]
    willing.on("POST", CLAIM, grant(one), grant(*others), grant(*others), park)
    enough = tmp_path / "enough"
    with program_process(NO_THREADS, willing.url, str(enough)):
        tried, again = willing.wait_for("/release", 2)
        enough.touch()
        assert willing.wait_for("/ack")[0].body["leases"][0]["output"] == "1"
        willing.on("POST", CLAIM, grant(*others), park)
        acked = [request.body["leases"][0]["output"] for request in willing.wait_for("/ack", 3)]
    assert tried.body == again.body == {"leases": [{"receipt": "r-2"}, {"receipt": "r-3"}]}
    assert sorted(acked) == ["1", "2", "3"]


def test_a_worker_runs_once(service: ScriptedService, start: Start) -> None:
    running = start(lambda _message, _context: None)
    service.wait_for(CLAIM)
    with pytest.raises(RuntimeError, match="runs once"):
        running.worker.run()


@pytest.mark.parametrize("settings", [{"queues": []}, {"concurrency": 0}, {"stall_threshold": 0}])
def test_a_worker_without_queue_or_slot_is_refused(settings: dict[str, Any], service: ScriptedService) -> None:
    with pytest.raises(ValueError, match="a worker needs"):
        Worker(service.url, **{"queues": "default", "handler": lambda _message, _context: None, **settings})
