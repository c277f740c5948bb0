"""How a handler hears that its lease is over."""

import asyncio
import socket
import threading
import time
from contextlib import suppress
from itertools import pairwise

import pytest
from harness.wait import until
from sdk.running import CLAIM, Start, beat_until, grant, grant_until_settled, lost_lease, park, paths
from sdk.scripted_service import Answer, Break, Received, ScriptedService, beats, lease, message, problem, verdicts

import leasebeat
from leasebeat import Context, LeasedMessage


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("expired", leasebeat.LeaseExpiredError),
        ("lost", leasebeat.LeaseConflictError),
        ("cancelled", leasebeat.LeaseCancelledError),
        ("settled", leasebeat.LeaseSettledError),
        ("unknown", leasebeat.UnknownLeaseError),
    ],
)
def test_a_handler_hears_at_once_that_its_lease_is_over(status: str, error: type, service: ScriptedService, start: Start) -> None:
    service.on("POST", "/beat", beats(status, expires_in=None, next_beat_in=None))
    heard: list[type] = []

    def handle(_message: LeasedMessage, context: Context) -> None:
        heard.append(lost_lease(context))
        context.beat()  # raises again: a lost lease stays lost

    running = start(handle)
    service.wait_for(CLAIM, 2)
    running.stop()
    assert heard == [error]
    assert paths(service) == ["/beat"], "a lost lease is neither beaten for again nor nacked"


def test_a_result_is_offered_though_the_lease_is_lost(service: ScriptedService, start: Start) -> None:
    service.on("POST", "/beat", beats("lost", expires_in=None, next_beat_in=None))
    service.on("POST", "/ack", verdicts("lost", late=False))

    def handle(_message: LeasedMessage, context: Context) -> str:
        context.beat()
        assert context.lost.wait(60)
        return "done anyway"

    start(handle)
    assert service.wait_for("/ack")[0].body["leases"][0]["output"] == "done anyway"
    service.wait_for(CLAIM, 2)
    assert len(service.asked("/ack")) == 1


@pytest.mark.scar(10)
def test_failed_beats_are_no_loss_until_the_local_deadline(service: ScriptedService, start: Start) -> None:
    service.on("POST", CLAIM, grant_until_settled(service, lease(expires_in=2.0)))
    service.on("POST", "/beat", Break())
    heard_at: list[float] = []

    def handle(_message: LeasedMessage, context: Context) -> None:
        assert lost_lease(context) is leasebeat.LeaseExpiredError
        heard_at.append(time.monotonic())

    started = time.monotonic()
    start(handle)
    service.wait_for("/ack")
    assert 2.0 < heard_at[0] - started < 30
    assert len(service.asked("/beat")) < 30


@pytest.mark.scar(9)
def test_fifty_beats_against_a_failing_service_make_few_calls_and_the_handler_hears_of_its_loss(
    service: ScriptedService, start: Start
) -> None:
    """Few, as the pause before each is twice as long as the one before, up to two seconds, and shortened by a half at most."""
    service.on("POST", CLAIM, grant_until_settled(service, lease(expires_in=4.0)))
    service.on("POST", "/beat", problem(500, "internal"))

    def handle(_message: LeasedMessage, context: Context) -> bool:
        for _ in range(50):
            context.beat()
            time.sleep(0.005)
        return context.lost.wait(60)

    start(handle)
    assert service.wait_for("/ack")[0].body["leases"][0]["output"] is True
    calls = service.asked("/beat")
    pauses = [later.at - earlier.at for earlier, later in pairwise(calls)]
    assert calls
    assert all(pause >= min(0.05 * 2**number, 1.0) for number, pause in enumerate(pauses)), pauses


@pytest.mark.scar(9)
@pytest.mark.parametrize("moving", [False, True])
def test_a_deadline_is_heard_on_time_while_a_call_for_another_lease_hangs(moving: bool, service: ScriptedService, start: Start) -> None:
    hang = threading.Event()
    short = lease("short", expires_in=2.0, message=message(id="short"))
    service.on("POST", CLAIM, grant(lease("long"), short), grant_until_settled(service, short))
    service.on("POST", "/beat", lambda request: Break() if hang.wait(90) else beats()(request))
    heard_at: list[float] = []

    def handle(message: LeasedMessage, context: Context) -> None:
        if message.id == "short":
            service.wait_for("/beat")
            if moving:
                with suppress(leasebeat.LeaseLostError):
                    context.beat()
            assert context.lost.wait(60)
            heard_at.append(time.monotonic())
        else:
            context.beat()
            hang.wait(90)

    started = time.monotonic()
    start(handle, concurrency=2)
    service.wait_for("/ack")
    hang.set()
    assert 2.0 < heard_at[0] - started < 30


@pytest.mark.timed
def test_a_call_that_hangs_leaves_time_to_beat_for_a_shorter_lease(service: ScriptedService, start: Start) -> None:
    """The first call, for the long lease, never comes back; the short lease, due a little later, is saved by the next one."""
    hang = threading.Event()
    answer = beats(expires_in=12.0, next_beat_in=0.3)
    service.on("POST", CLAIM, grant(lease("long"), lease("short", expires_in=12.0, message=message(id="short"))), park)

    def first_for_long_hangs(request: Received) -> Answer | Break:
        alone = [item["receipt"] for item in request.body["leases"]] == ["long"]
        return Break() if alone and hang.wait(90) else answer(request)

    service.on("POST", "/beat", first_for_long_hangs)
    short_was_beaten_for = threading.Event()

    def calls_for_short() -> list[Received]:
        return [call for call in service.asked("/beat") if "short" in [item["receipt"] for item in call.body["leases"]]]

    def handle(message: LeasedMessage, context: Context) -> bool:
        if message.id == "short":
            context.beat()
            service.wait_for("/beat")
            short_was_beaten_for.set()
        else:
            assert short_was_beaten_for.wait(60)
            time.sleep(0.05)
        beat_until(context, lambda: len(calls_for_short()) > 1)
        return context.lost.is_set()

    start(handle, concurrency=2)
    outputs = [request.body["leases"][0]["output"] for request in service.wait_for("/ack", 2)]
    hang.set()
    assert outputs == [False, False]


@pytest.mark.scar(9, 12)
def test_the_deadline_is_heard_by_a_handler_that_only_waits(service: ScriptedService, start: Start) -> None:
    service.on("POST", CLAIM, grant_until_settled(service, lease(expires_in=2.0)))
    start(lambda _message, context: context.lost.wait(60))
    assert service.wait_for("/ack")[0].body["leases"][0]["output"] is True


@pytest.mark.scar(12)
def test_a_coroutine_that_waits_on_without_its_lease_is_cancelled(
    service: ScriptedService, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads from somebody who says nothing. Its place is then free for another message."""
    monkeypatch.setattr("leasebeat._handlers.LOST_GRACE_S", 0.3)
    begun = threading.Event()
    heard: list[bool] = []

    async def handle(_message: LeasedMessage, context: Context) -> None:
        reader, writer = await asyncio.open_connection(*peer.getsockname())
        begun.set()
        try:
            await reader.read()
        finally:
            heard.append(context.lost.is_set())
            writer.close()

    service.on("POST", CLAIM, lambda request: park(request) if begun.is_set() else grant(lease(expires_in=2.0)))
    with socket.create_server(("127.0.0.1", 0)) as peer:
        start(handle)
        until(lambda: heard)
        claims = len(service.asked(CLAIM))
        service.wait_for(CLAIM, claims + 1)
    assert heard == [True]
    assert paths(service) == [], "a lost lease is not settled"


def test_a_coroutine_has_time_to_end_by_itself_once_its_lease_is_lost(
    service: ScriptedService, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasebeat._handlers.LOSS_LOOK_S", 0.01)
    monkeypatch.setattr("leasebeat._handlers.LOST_GRACE_S", 60.0)
    service.on("POST", "/beat", beats("lost", expires_in=None, next_beat_in=None))
    heard: list[str] = []

    async def handle(_message: LeasedMessage, context: Context) -> None:
        try:
            while True:
                context.beat()
                await asyncio.sleep(0.01)
        finally:
            await asyncio.sleep(0.5)
            heard.append("ended by itself")

    start(handle)
    until(lambda: heard)
    assert heard == ["ended by itself"]


def test_coroutines_are_watched_together(service: ScriptedService, start: Start) -> None:
    """Each wakes the event loop for nothing but its own work."""
    service.on("POST", CLAIM, grant(*(lease(f"r-{number}", message=message(id=str(number))) for number in range(3))), park)
    all_run = asyncio.Barrier(3)

    async def handle(_message: LeasedMessage, _context: Context) -> int:
        await all_run.wait()
        running = len(asyncio.all_tasks())
        await all_run.wait()
        return running

    start(handle, concurrency=3)
    assert [ack.body["leases"][0]["output"] for ack in service.wait_for("/ack", 3)] == [3, 3, 3]


def test_a_coroutine_that_cleans_up_as_its_worker_stops_is_not_cancelled_again(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasebeat._handlers.LOSS_LOOK_S", 0.01)
    monkeypatch.setattr("leasebeat._handlers.LOST_GRACE_S", 0.05)
    begun = threading.Event()
    ended: list[str] = []

    async def handle(_message: LeasedMessage, _context: Context) -> None:
        begun.set()
        try:
            await asyncio.sleep(90)
        finally:
            ended.append("cut off")
            await asyncio.sleep(1.0)
            ended[:] = ["cleaned up"]

    running = start(handle, drain_timeout=0.1)
    assert begun.wait(60)
    running.stop()
    assert ended == ["cleaned up"]


@pytest.mark.scar(10)
def test_a_lease_outlives_a_moment_without_the_service(service: ScriptedService, start: Start) -> None:
    service.on("POST", CLAIM, grant(lease(expires_in=40.0)), park)
    service.on("POST", "/beat", *[Break()] * 4, beats(expires_in=60.0))

    def handle(_message: LeasedMessage, context: Context) -> str:
        beat_until(context, lambda: context.remaining() > 40)
        return "still held"

    start(handle)
    assert service.wait_for("/ack")[0].body["leases"][0]["output"] == "still held"


def test_a_beat_that_was_not_answered_is_sent_again_by_itself(service: ScriptedService, start: Start) -> None:
    service.on("POST", "/beat", problem(500, "internal"), beats())

    def handle(_message: LeasedMessage, context: Context) -> None:
        context.beat(progress=1)
        service.wait_for("/beat", 2)

    start(handle)
    service.wait_for("/ack")
    first, second = service.asked("/beat")
    assert first.body == second.body


def test_a_lease_that_is_being_acked_is_not_lost_meanwhile(service: ScriptedService, start: Start) -> None:
    """A beat that comes after the ack is answered `settled`, which is no loss."""
    settled = verdicts("settled", expires_at=None, expires_in=None, next_beat_in=None)

    def beat_arrives_after_the_ack(request: Received) -> Answer:
        service.wait_for("/ack")
        return settled(request)

    service.on("POST", "/beat", beat_arrives_after_the_ack)
    service.on("POST", "/ack", Answer({"results": [{"receipt": "secret-1", "status": "acked", "late": False}]}, delay=0.2))
    contexts: list[Context] = []

    def handle(_message: LeasedMessage, context: Context) -> None:
        contexts.append(context)
        context.beat()
        service.wait_for("/beat")

    start(handle)
    service.wait_for(CLAIM, 2)
    assert not contexts[0].lost.is_set()
