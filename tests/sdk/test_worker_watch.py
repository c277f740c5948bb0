"""The threads that beat and mind deadlines are broken for real: an exception is raised inside them, or a call in them never returns."""

import ctypes
import json
import logging
import math
import threading
import time
from collections.abc import Callable

import pytest
from harness.wait import until
from sdk.running import CLAIM, Start, beat_until, grant_until_settled
from sdk.scripted_service import Answer, Received, ScriptedService, Trickle, beat_result, beats, lease

from leasebeat import BeatResult, Context, LeasedMessage, Options
from leasebeat._beat_sender import BeatSender
from leasebeat._call import Reply, finish
from leasebeat._calls.leases import claim
from leasebeat._tracked_lease import TrackedLease


class Killed(BaseException):
    """No `except Exception` stops it."""


def only(threads: list[threading.Thread]) -> list[threading.Thread]:
    """The one that there is, or nothing: one in whose place another was started may take a moment to end."""
    return threads if len(threads) == 1 else []


def kill(name: str, end: type[BaseException]) -> threading.Thread:
    """Raise an exception in the thread of that name, as soon as it does something."""
    (thread,) = until(lambda: only([each for each in threading.enumerate() if each.name == name]))
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(end))
    return thread


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("end", [SystemExit, Killed])
@pytest.mark.parametrize("name", ["leasebeat-beats", "leasebeat-deadlines"])
def test_a_thread_that_dies_is_started_anew(
    name: str, end: type[BaseException], service: ScriptedService, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """The lease of 4 seconds is extended after that as before, and its end is heard once the beats stop."""
    service.on("POST", CLAIM, grant_until_settled(service, lease(expires_in=4.0)))
    service.on("POST", "/beat", beats(expires_in=4.0, next_beat_in=0.2))
    broken = threading.Event()

    def handle(_message: LeasedMessage, context: Context) -> list[bool]:
        beat_until(context, broken.is_set)
        answered = len(service.asked("/beat"))
        beat_until(context, lambda: len(service.asked("/beat")) > answered + 2)
        return [not context.lost.is_set(), context.lost.wait(60)]

    start(handle)
    service.wait_for("/beat")
    thread = kill(name, end)
    until(lambda: not thread.is_alive())
    broken.set()
    (ack,) = service.wait_for("/ack")
    assert ack.body["leases"][0]["output"] == [True, True]
    assert [record.levelno for record in caplog.records if record.getMessage() == f"The thread {name} has died and is started anew"] == [
        logging.ERROR
    ]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_both_threads_that_die_at_once_are_started_by_the_next_beat(service: ScriptedService, start: Start) -> None:
    service.on("POST", "/beat", beats(expires_in=60.0, next_beat_in=0.1))
    broken = threading.Event()

    def handle(_message: LeasedMessage, context: Context) -> None:
        context.beat()
        assert broken.wait(60)
        context.beat()
        service.wait_for("/beat", 2)

    start(handle)
    service.wait_for("/beat")
    killed = [kill(name, SystemExit) for name in ("leasebeat-beats", "leasebeat-deadlines")]
    until(lambda: not any(thread.is_alive() for thread in killed))
    broken.set()
    service.wait_for("/ack")


def senders() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "leasebeat-beats"]


def track(receipt: str, expires_in: float) -> TrackedLease:
    now = time.monotonic()
    body = json.dumps({"leases": [lease(receipt, expires_in=expires_in)]}).encode()
    (granted,) = finish(claim("default", worker_id="w"), Reply(status=200, body=body, retry_after=None, sent_at=now, answered_at=now))
    return TrackedLease(granted)


@pytest.fixture
def held() -> TrackedLease:
    return track("secret-1", 60.0)


def test_a_thread_that_stalls_is_replaced_and_ends_when_it_can(
    held: TrackedLease, service: ScriptedService, caplog: pytest.LogCaptureFixture
) -> None:
    """What the service's `drain` sets off does not come back."""
    hangs, hang = threading.Event(), threading.Event()

    def on_drain() -> None:
        hangs.set()
        hang.wait(60)

    def answer(request: Received) -> Answer:
        return beats(next_beat_in=0.1, drain=not hangs.is_set())(request)

    service.on("POST", "/beat", answer)
    sender = BeatSender(Options(base_url=service.url, timeout=0.2), "w", on_drain)
    try:
        sender.track(held)
        move(held, sender)
        assert hangs.wait(60)
        before = len(service.asked("/beat"))
        move(held, sender)
        service.wait_for("/beat", before + 1)
        assert "The thread leasebeat-beats stalls and is started anew" in caplog.messages
        until(lambda: len(senders()) == 2)
        hang.set()
        until(lambda: len(senders()) == 1)
        before = len(service.asked("/beat"))
        move(held, sender)
        service.wait_for("/beat", before + 1)
    finally:
        hang.set()
        sender.close()


@pytest.mark.parametrize("of_head", [False, True])
def test_a_beat_whose_answer_trickles_in_for_ever_is_sent_again_and_its_connection_is_left(
    of_head: bool, held: TrackedLease, service: ScriptedService
) -> None:
    """Each byte is in time, so no time-out of a step ends the call: the limit of a call does, or the watch."""
    hanging = Trickle(of_head=of_head)
    service.on("POST", "/beat", hanging, beats())
    sender = BeatSender(Options(base_url=service.url, timeout=0.5), "w", lambda: None)
    try:
        sender.track(held)
        move(held, sender)
        first, second = service.wait_for("/beat", 2)[:2]
        assert hanging.left.wait(60)
        until(lambda: len(senders()) == 1)
    finally:
        sender.close()
    assert first.body == second.body


def test_a_lease_that_is_silent_until_it_ends_leaves_the_beats_of_others_their_time(
    held: TrackedLease, service: ScriptedService, caplog: pytest.LogCaptureFixture
) -> None:
    silent = track("secret-2", 30.0)
    service.on("POST", "/beat", Answer({"results": [beat_result("secret-2", expires_in=30.0)]}), beats_after(2.0))
    sender = BeatSender(Options(base_url=service.url), "w", lambda: None)
    try:
        sender.track(silent)
        move(silent, sender)
        service.wait_for("/beat")
        silent.wait_until_sent(60)
        silent.valid_until = time.monotonic() + 3  # as it is after 27 seconds
        sender.track(held)
        move(held, sender)
        service.wait_for("/beat", 2)
        held.wait_until_sent(60)
        assert held.next_beat_at == math.inf, "it is answered, and not put back"
    finally:
        sender.close()
    assert len(service.asked("/beat")) == 2
    assert not caplog.messages


def beats_after(seconds: float) -> Callable[[Received], Answer]:
    return lambda request: Answer({"results": [beat_result(each["receipt"]) for each in request.body["leases"]]}, delay=seconds)


def test_what_a_call_brings_after_it_was_given_up_is_no_news(held: TrackedLease) -> None:
    held.move()
    first = held.take()
    held.put_back_in_flight()
    held.take()
    held.put_back(first)
    assert held.next_beat_at == math.inf, "the beat that is under way now has taken it along"
    held.apply(first, BeatResult(receipt="secret-1", status="error"))
    assert held.next_beat_at == math.inf
    until_then = held.valid_until
    held.apply(first, BeatResult(receipt="secret-1", status="extended", expires_in=90.0, valid_until=until_then + 30))
    assert held.valid_until == until_then + 30, "but an extension counts"
    assert held.hurry(), "and the newer beat is still waited for"


def test_a_sender_that_the_system_has_no_thread_for_can_be_closed(held: TrackedLease, service: ScriptedService) -> None:
    sender = BeatSender(Options(base_url=service.url), "w", lambda: None)
    before = threading.stack_size(1 << 46)  # more than there is memory for
    try:
        with pytest.raises(RuntimeError):
            sender.track(held)
    finally:
        threading.stack_size(before)
    sender.close()


def move(held: TrackedLease, sender: BeatSender) -> None:
    held.move()
    sender.wake()
