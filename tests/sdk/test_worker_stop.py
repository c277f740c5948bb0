"""How a worker stops."""

import asyncio
import concurrent.futures
import inspect
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from harness.wait import until
from sdk.running import CLAIM, Start, beat_until, grant, grant_until_settled, park, paths
from sdk.scripted_service import Answer, Break, Received, ScriptedService, Step, beats, lease, message, problem, verdicts

import leasebeat
from leasebeat import Context, Handler, LeasedMessage, Worker
from leasebeat._claims import Claims
from leasebeat._http import Options
from leasebeat.agents import EvalLoopConfig, MainLoopConfig


@pytest.mark.scar(14)
def test_a_stopping_worker_lets_its_handler_finish_and_beats_for_it(service: ScriptedService, start: Start) -> None:
    service.on("POST", "/beat", beats(expires_in=10.0, next_beat_in=0.05))
    stopped_at: list[float] = []

    def handle(_message: LeasedMessage, context: Context) -> str:
        context.beat()
        assert context.stopping.wait(60)
        stopped_at.append(time.monotonic())
        beat_until(context, lambda: service.asked("/beat")[-1].at > stopped_at[0])
        return "finished"

    running = start(handle)
    service.wait_for("/beat")
    running.stop()
    assert [request.body["leases"][0]["output"] for request in service.asked("/ack")] == ["finished"]
    assert service.asked("/release") == []


@pytest.mark.scar(13, 32)
def test_what_does_not_finish_is_released_with_its_last_report(service: ScriptedService, start: Start) -> None:
    heard: list[type] = []
    reported = threading.Event()

    def handle(_message: LeasedMessage, context: Context) -> None:
        context.beat(progress=1)
        service.wait_for("/beat")
        context.beat(progress=2)
        reported.set()
        context.lost.wait(60)
        with pytest.raises(leasebeat.LeaseSettledError) as caught:
            context.beat()
        heard.append(caught.type)

    running = start(handle, drain_timeout=0.2)
    assert reported.wait(60)
    running.stop()
    assert paths(service) == ["/beat", "/beat", "/release"]
    assert service.asked("/beat")[-1].body["leases"][0]["progress"] == 2
    assert service.asked("/release")[0].body["leases"] == [{"receipt": "secret-1"}]


@pytest.mark.scar(32)
@pytest.mark.parametrize("kind", [Worker, MainLoopConfig, EvalLoopConfig])
def test_who_sets_no_time_to_drain_has_time_to_release_before_a_platform_kills(kind: Callable[..., object]) -> None:
    """Kubernetes gives a process 30 s by default."""
    assert inspect.signature(kind).parameters["drain_timeout"].default <= 30 - 10


def test_a_coroutine_that_does_not_finish_is_cancelled_before_its_release(service: ScriptedService, start: Start) -> None:
    ended: list[str] = []
    begun = threading.Event()

    async def handle(_message: LeasedMessage, _context: Context) -> None:
        begun.set()
        try:
            await asyncio.sleep(90)
        finally:
            await asyncio.sleep(0.1)
            ended.append("cancelled")

    def release(request: Received) -> Answer:
        assert ended == ["cancelled"], "somebody else could be at work before this handler has ended"
        return verdicts("released")(request)

    service.on("POST", "/release", release)
    running = start(handle, drain_timeout=0.1)
    assert begun.wait(60)
    running.stop()
    assert ended == ["cancelled"]
    assert paths(service) == ["/release"]


def waiting(begun: threading.Event, end: threading.Event) -> Handler:
    """Make a handler that says when it has begun, and heeds nothing but `end`."""

    def handle(_message: LeasedMessage, _context: Context) -> None:
        begun.set()
        end.wait(90)

    return handle


def test_a_second_stop_does_not_wait_for_handlers(service: ScriptedService, start: Start) -> None:
    begun, end = threading.Event(), threading.Event()
    running = start(waiting(begun, end), drain_timeout=90)
    assert begun.wait(60)
    running.worker.stop()
    running.stop()
    end.set()
    assert paths(service) == ["/release"]


@pytest.mark.parametrize("times", [1, 3])
def test_a_worker_that_is_told_to_release_does_not_wait_for_handlers(times: int, service: ScriptedService, start: Start) -> None:
    begun, end = threading.Event(), threading.Event()
    running = start(waiting(begun, end), drain_timeout=90)
    assert begun.wait(60)
    for _ in range(times):
        running.worker.release_now()
    running.join()
    end.set()
    assert paths(service) == ["/release"]


@pytest.mark.parametrize("last", [Worker.release_now, Worker.stop])
def test_words_to_release_do_not_keep_an_ack_from_its_answer(
    last: Callable[[Worker], None], service: ScriptedService, start: Start
) -> None:
    """As a third call of `stop` would, but not the first one after them."""
    service.on("POST", "/ack", problem(500, "internal"), problem(500, "internal"), verdicts("acked", late=False))
    running = start(lambda _message, _context: "done")
    service.wait_for("/ack")
    running.worker.release_now()
    running.worker.release_now()
    last(running.worker)
    running.join()
    assert paths(service).count("/ack") == 3
    assert service.asked("/release") == []


@pytest.mark.parametrize("stop", [Worker.stop, Worker.release_now])
def test_a_signal_handler_may_stop_a_worker_wherever_it_interrupts_it(
    stop: Callable[[Worker], None], service: ScriptedService, start: Start
) -> None:
    """It may run in a thread that holds any lock of the worker, so it must wait for none."""
    service.on("POST", CLAIM, park)
    running = start(lambda _message, _context: None)
    service.wait_for(CLAIM)
    stopping = threading.Thread(target=stop, args=(running.worker,), daemon=True)
    with running.worker._changed, running.worker._stopping._cond:  # type: ignore[attr-defined]  # noqa: SLF001
        stopping.start()
        stopping.join(60)
        assert not stopping.is_alive()
    running.join()


def test_a_coroutine_that_could_not_begin_before_its_release_never_does(
    service: ScriptedService, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop is kept busy by another one, for longer than a cancelled handler is waited for."""
    monkeypatch.setattr("leasebeat._worker.CANCEL_TIMEOUT_S", 0.5)
    service.on("POST", CLAIM, grant(*(lease(f"r-{number}", message=message(id=str(number))) for number in (1, 2))), park)
    begun: list[str] = []
    busy, end = threading.Event(), threading.Event()

    async def handle(message: LeasedMessage, _context: Context) -> None:
        begun.append(message.id)
        busy.set()
        end.wait(90)

    running = start(handle, concurrency=2, drain_timeout=90)
    assert busy.wait(60)
    calls: list[Any] = [task._call for task in running.worker._tasks]  # noqa: SLF001
    until(lambda: [call for call in calls if call._coroutine] == calls)  # noqa: SLF001
    running.worker.release_now()
    service.wait_for("/release")
    end.set()
    running.join()
    assert len(begun) == 1
    assert len(service.asked("/release")[0].body["leases"]) == 2


def test_a_coroutine_that_could_not_begin_is_not_waited_for(
    service: ScriptedService, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop is kept busy by another one, which ends once both are cancelled."""
    monkeypatch.setattr("leasebeat._worker.CANCEL_TIMEOUT_S", 60.0)
    busy, end = threading.Event(), threading.Event()

    def grant_when_busy(_request: Received) -> Answer:
        assert busy.wait(60)
        return grant(lease("r-2", message=message(id="2")))

    service.on("POST", CLAIM, grant(lease("r-1", message=message(id="1"))), grant_when_busy, park)

    async def handle(_message: LeasedMessage, _context: Context) -> None:
        busy.set()
        end.wait(90)

    running = start(handle, concurrency=2, drain_timeout=90)
    assert busy.wait(60)
    until(lambda: len(running.worker._tasks) == 2)  # noqa: SLF001
    calls: list[Any] = [task._call for task in running.worker._tasks]  # noqa: SLF001
    until(lambda: all(call._coroutine for call in calls))  # noqa: SLF001
    running.worker.release_now()
    until(lambda: all(call._coroutine.cancelled() for call in calls))  # noqa: SLF001
    end.set()
    service.wait_for("/release", timeout=30)
    running.join()


def test_an_ack_under_way_is_waited_for(service: ScriptedService, start: Start) -> None:
    service.on("POST", "/ack", problem(500, "internal"), problem(500, "internal"), verdicts("acked", late=False))
    running = start(lambda _message, _context: "done", drain_timeout=0.0)
    service.wait_for("/ack")
    running.stop()
    assert len(service.asked("/ack")) == 3
    assert service.asked("/release") == []


@pytest.mark.timed
def test_a_late_ack_holds_a_stopping_worker_up_no_longer_than_its_drain(service: ScriptedService, start: Start) -> None:
    service.on("POST", CLAIM, grant_until_settled(service, lease(expires_in=2.0)))
    service.on("POST", "/ack", problem(500, "internal"))
    service.on("POST", "/beat", problem(500, "internal"))
    running = start(lambda _message, _context: "done", drain_timeout=2.5)
    service.wait_for("/ack")
    time.sleep(2)  # now it is late
    started = time.monotonic()
    running.stop()
    assert time.monotonic() - started < 20, "a late ack is tried for half a minute"
    assert service.asked("/ack")[-1].at > started, "it was tried while there was time"


@pytest.mark.parametrize("trouble", [problem(422, "invalid-request"), problem(500, "internal"), Break(), verdicts("error")])
def test_a_claim_answered_while_stopping_is_nothing_though_its_release_fails(trouble: Step, service: ScriptedService) -> None:
    parked = threading.Event()

    def answer(_request: Received) -> Answer:
        parked.wait(60)
        return grant(lease())

    service.on("POST", CLAIM, answer)
    service.on("POST", "/release", trouble)
    with (
        Claims(Options(base_url=service.url), "worker-1") as claims,
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):
        claimed = pool.submit(claims.claim, "default", max_messages=1, wait=5, visibility_timeout=None)
        service.wait_for(CLAIM)
        claims._stopped = True  # noqa: SLF001 - as `stop` does just after the answer, when there is nothing left to cancel
        parked.set()
        assert claimed.result(60) == ()
    assert service.asked("/release")[0].body["leases"] == [{"receipt": "secret-1"}]


def test_a_parked_claim_is_ended_and_what_it_was_granted_is_given_back(service: ScriptedService, start: Start) -> None:
    ended = threading.Event()

    def parked(_request: Received) -> Answer:
        ended.wait(90)
        return grant(lease("granted-too-late"))

    service.on("POST", CLAIM, parked, grant(lease("granted-too-late")))
    running = start(lambda _message, _context: None)
    service.wait_for(CLAIM)
    started = time.monotonic()
    running.stop()
    ended.set()
    assert time.monotonic() - started < 60
    first, second = service.asked(CLAIM)
    assert second.body == {**first.body, "wait": 0.0}
    assert service.asked("/release")[0].body["leases"] == [{"receipt": "granted-too-late"}]


def test_what_a_failed_claim_may_have_been_granted_is_given_back_before_the_end(service: ScriptedService, start: Start) -> None:
    service.on("POST", CLAIM, problem(503, "unavailable"), grant(lease()))
    running = start(lambda _message, _context: None)
    service.wait_for(CLAIM)
    running.stop()
    failed, asked_again = service.asked(CLAIM)
    assert asked_again.body["claim_id"] == failed.body["claim_id"]
    assert service.asked("/release")[0].body["leases"] == [{"receipt": "secret-1"}]


def test_a_claim_that_is_not_made_as_the_worker_stops_asks_for_nothing(willing: ScriptedService) -> None:
    with Claims(Options(base_url=willing.url), "worker-1") as claims:
        claims.stop()
        assert not claims.claim("default", max_messages=1, wait=0, visibility_timeout=None)
    assert willing.asked(CLAIM) == []


def test_a_claim_that_answers_drain_ends_the_worker(service: ScriptedService, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    service.on("POST", CLAIM, grant(lease(), drain=True))
    with caplog.at_level(logging.INFO, "leasebeat"):
        start(lambda _message, _context: "done", concurrency=2).join()
    assert len(service.asked(CLAIM)) == 1
    assert paths(service) == ["/ack"]
    assert caplog.messages.count("The service drains this worker, which takes no more messages") == 1


def test_beats_that_answer_drain_end_the_worker_once_its_handler_is_done(
    service: ScriptedService, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """Each answer says so anew, which must not count as a second call of `stop`, that would release the message."""
    service.on("POST", "/beat", beats(expires_in=10.0, next_beat_in=0.05, drain=True))

    def handle(_message: LeasedMessage, context: Context) -> str:
        context.beat()
        assert context.stopping.wait(60)
        heard = len(service.asked("/beat"))
        beat_until(context, lambda: len(service.asked("/beat")) >= heard + 3)
        return "finished"

    with caplog.at_level(logging.INFO, "leasebeat"):
        running = start(handle, concurrency=2)
        running.join()
    assert [request.body["leases"][0]["output"] for request in service.asked("/ack")] == ["finished"]
    assert service.asked("/release") == []
    assert caplog.messages.count("The service drains this worker, which takes no more messages") == 1


def test_a_drained_worker_can_still_be_stopped_in_a_hurry(service: ScriptedService, start: Start) -> None:
    service.on("POST", "/beat", beats(drain=True))
    release = threading.Event()

    def handle(_message: LeasedMessage, context: Context) -> None:
        context.beat()
        release.wait(90)

    running = start(handle, drain_timeout=90)
    service.wait_for("/beat")
    running.worker.stop()
    time.sleep(0.1)
    assert service.asked("/release") == [], "the first stop after a drain is a first one"
    running.stop()
    release.set()
    assert len(service.asked("/release")) == 1


def test_stopping_before_running_claims_nothing(willing: ScriptedService) -> None:
    worker = Worker(willing.url, "default", lambda _message, _context: None)
    worker.stop()
    worker.run()
    assert willing.received == []


def test_signals_stop_the_worker_and_get_their_handlers_back(willing: ScriptedService) -> None:
    assert threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

    def handle(_message: LeasedMessage, context: Context) -> bool:
        os.kill(os.getpid(), signal.SIGTERM)
        return context.stopping.wait(60)

    Worker(willing.url, "default", handle).run()
    assert willing.asked("/ack")[0].body["leases"][0]["output"] is True
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_worker_leaves_no_threads(service: ScriptedService, start: Start) -> None:
    """But perhaps for a moment: it waits for their ends, not for ever."""

    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("leasebeat")]

    until(lambda: threads() == [])
    running = start(lambda _message, _context: None)
    service.wait_for("/ack")
    running.stop()
    until(lambda: threads() == [])
