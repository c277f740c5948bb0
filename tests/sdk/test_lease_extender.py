import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from sdk.conftest import Clock

from leasebeat import (
    BeatResult,
    Heartbeat,
    LeaseConflictError,
    LeaseExpiredError,
    LeaseExtender,
    LeaseExtenderConfig,
    LeaseSettledError,
)
from leasebeat import ReceiptHandleExpiredError as HandleExpired

LOGGER = "leasebeat._lease_extender"


class RecordingMessage:
    """A message whose lease somebody else keeps: it records what it is asked, and does what the test says."""

    id = "abc-123"

    def __init__(self, respond: Callable[[], Any] = lambda: None) -> None:
        self.asked: list[int] = []
        self.respond = respond
        self._lock = threading.Lock()

    @property
    def extend_visibility_calls(self) -> int:
        return len(self.asked)

    def extend_visibility(self, seconds: int, /) -> Any:
        with self._lock:
            self.asked.append(seconds)
        return self.respond()


class KnowingMessage(RecordingMessage):
    """One that also knows until when its lease lasts, and keeps the progress that it is told."""

    def __init__(self, lease_s: float, respond: Callable[[], Any] = lambda: None) -> None:
        super().__init__(respond)
        self.valid_until = time.monotonic() + lease_s
        self.noted: list[int] = []
        self._lease_s = lease_s

    def note_progress(self, progress: int, /) -> None:
        self.noted.append(progress)

    def extend_visibility(self, seconds: int, /) -> Any:
        result = super().extend_visibility(seconds)
        self.valid_until = time.monotonic() + self._lease_s
        return result


def answer(status: str, expires_in: float) -> BeatResult:
    return BeatResult(receipt="secret", status=status, expires_in=expires_in, valid_until=time.monotonic() + expires_in)


def beat_each_second(heartbeat: Heartbeat, clock: Clock, seconds: int) -> None:
    for _ in range(seconds):
        heartbeat.beat()
        clock.now += 1.0


def raising(error: Exception) -> Callable[[], None]:
    def respond() -> None:
        raise error

    return respond


def beat_from_threads(heartbeat: Heartbeat, count: int) -> None:
    together = threading.Barrier(count)

    def beat() -> None:
        together.wait()
        heartbeat.beat()

    threads = [threading.Thread(target=beat) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_lease_extender_extends_on_beat() -> None:
    msg, heartbeat = RecordingMessage(), Heartbeat()
    with LeaseExtender(LeaseExtenderConfig(interval=0.0)).attach(msg, heartbeat):
        heartbeat.beat()
        heartbeat.beat()
        heartbeat.beat()
    assert msg.extend_visibility_calls == 3


@pytest.mark.scar(6)
def test_lease_extender_rate_limits(clock: Clock) -> None:
    msg, heartbeat = RecordingMessage(), Heartbeat()
    with LeaseExtender(LeaseExtenderConfig(interval=0.2)).attach(msg, heartbeat):
        heartbeat.beat()
        heartbeat.beat()
        heartbeat.beat()
        assert msg.extend_visibility_calls == 1
        clock.now += 0.25
        heartbeat.beat()
    assert msg.extend_visibility_calls == 2


def test_lease_extender_disabled() -> None:
    msg, heartbeat = RecordingMessage(), Heartbeat()
    with LeaseExtender(LeaseExtenderConfig(enabled=False)).attach(msg, heartbeat):
        heartbeat.beat()
    assert msg.extend_visibility_calls == 0


def test_heartbeat_callback_chaining() -> None:
    calls: list[str] = []
    msg, heartbeat = RecordingMessage(), Heartbeat()
    heartbeat.on_beat = lambda: calls.append("original")
    with LeaseExtender(LeaseExtenderConfig(interval=0.0)).attach(msg, heartbeat):
        heartbeat.beat()
    heartbeat.beat()
    assert calls == ["original", "original"]
    assert msg.extend_visibility_calls == 1


@pytest.mark.scar(12)
def test_stuck_worker_lease_expires() -> None:
    msg, heartbeat = RecordingMessage(), Heartbeat()
    with LeaseExtender(LeaseExtenderConfig(interval=0.01)).attach(msg, heartbeat):
        time.sleep(0.1)
    assert msg.extend_visibility_calls == 0


def test_the_defaults_are_those_of_the_specification() -> None:
    assert LeaseExtenderConfig() == LeaseExtenderConfig(interval=60.0, extension=300, enabled=True)
    msg, heartbeat = RecordingMessage(), Heartbeat()
    with LeaseExtender().attach(msg, heartbeat):
        heartbeat.beat()
        heartbeat.beat()
    assert msg.asked == [300]


@pytest.mark.scar(8)
def test_the_first_beat_extends_at_once_on_a_machine_that_has_just_booted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 0.5)  # half a second since boot: less than an interval
    msg, heartbeat = RecordingMessage(), Heartbeat()
    with LeaseExtender(LeaseExtenderConfig(interval=60.0)).attach(msg, heartbeat):
        heartbeat.beat()
    assert msg.extend_visibility_calls == 1


def test_each_attachment_starts_anew() -> None:
    extender, heartbeat = LeaseExtender(LeaseExtenderConfig(interval=60.0)), Heartbeat()
    first, second = RecordingMessage(), RecordingMessage()
    with extender.attach(first, heartbeat):
        heartbeat.beat()
    with extender.attach(second, heartbeat):
        heartbeat.beat()
    assert (first.extend_visibility_calls, second.extend_visibility_calls) == (1, 1)


@pytest.mark.scar(6)
def test_twenty_threads_that_beat_at_once_make_one_extension() -> None:
    msg, heartbeat = RecordingMessage(respond=lambda: time.sleep(0.02)), Heartbeat()
    with LeaseExtender(LeaseExtenderConfig(interval=60.0)).attach(msg, heartbeat):
        beat_from_threads(heartbeat, 20)
    assert msg.extend_visibility_calls == 1


def test_a_slow_extension_holds_up_no_other_beat() -> None:
    answer = threading.Event()
    msg, heartbeat = RecordingMessage(respond=lambda: answer.wait(90)), Heartbeat()
    with LeaseExtender(LeaseExtenderConfig(interval=60.0)).attach(msg, heartbeat):
        slow = threading.Thread(target=heartbeat.beat)
        slow.start()
        while not msg.asked:
            time.sleep(0.001)
        started = time.monotonic()
        heartbeat.beat()
        took = time.monotonic() - started
        answer.set()
        slow.join()
    assert took < 30


def test_attaching_twice_is_an_error_and_leaves_the_first_attached() -> None:
    msg, heartbeat = RecordingMessage(), Heartbeat()
    extender = LeaseExtender(LeaseExtenderConfig(interval=0.0))
    with extender.attach(msg, heartbeat):
        with pytest.raises(RuntimeError, match="LeaseExtender already attached"), extender.attach(RecordingMessage(), heartbeat):
            pass
        heartbeat.beat()
    assert msg.extend_visibility_calls == 1


def test_detaches_when_the_work_fails() -> None:
    msg, heartbeat = RecordingMessage(), Heartbeat()
    extender = LeaseExtender(LeaseExtenderConfig(interval=0.0))
    with pytest.raises(OSError, match="disk full"), extender.attach(msg, heartbeat):
        raise OSError("disk full")
    heartbeat.beat()
    assert msg.extend_visibility_calls == 0
    with extender.attach(msg, heartbeat):
        heartbeat.beat()
    assert msg.extend_visibility_calls == 1


@pytest.mark.scar(9)
@pytest.mark.parametrize("error", [HandleExpired("expired"), LeaseExpiredError("expired"), LeaseConflictError("lost")])
def test_an_expired_receipt_is_a_warning_and_work_goes_on(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    msg, heartbeat = RecordingMessage(raising(error)), Heartbeat()
    told: list[str] = []
    extender = LeaseExtender(LeaseExtenderConfig(interval=0.0), on_lost=lambda: told.append("lost"))
    with caplog.at_level(logging.DEBUG, logger=LOGGER), extender.attach(msg, heartbeat):
        for _ in range(50):
            heartbeat.beat()
    expected = (LOGGER, logging.WARNING, "Lease extension failed for message abc-123: receipt handle expired")
    assert caplog.record_tuples == [expected]
    assert msg.extend_visibility_calls == 1
    assert extender.lost.is_set()
    assert told == ["lost"]


def test_a_settled_lease_is_lost_too(caplog: pytest.LogCaptureFixture) -> None:
    msg, heartbeat = RecordingMessage(raising(LeaseSettledError("settled", "abc-123"))), Heartbeat()
    extender = LeaseExtender()
    with caplog.at_level(logging.WARNING, logger=LOGGER), extender.attach(msg, heartbeat):
        heartbeat.beat()
    assert extender.lost.is_set()
    assert caplog.messages == ["Lease extension failed for message abc-123: the lease of message abc-123 is already settled"]


def test_lost_is_about_the_newest_attachment() -> None:
    extender, heartbeat = LeaseExtender(), Heartbeat()
    with extender.attach(RecordingMessage(raising(LeaseExpiredError("expired"))), heartbeat):
        heartbeat.beat()
        first = extender.lost
    with extender.attach(RecordingMessage(), heartbeat):
        heartbeat.beat()
        assert not extender.lost.is_set()
    assert first.is_set()


@pytest.mark.scar(9)
@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("interval", [0.0, 60.0])
def test_fifty_beats_on_a_failing_backend_make_one_call(interval: float, caplog: pytest.LogCaptureFixture) -> None:
    msg, heartbeat = RecordingMessage(raising(ConnectionError("backend is down"))), Heartbeat()
    extender = LeaseExtender(LeaseExtenderConfig(interval=interval))
    with caplog.at_level(logging.DEBUG, logger=LOGGER), extender.attach(msg, heartbeat):
        for _ in range(50):
            heartbeat.beat()
    assert msg.extend_visibility_calls == 1
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("ERROR", "Lease extension failed for message abc-123")
    ]
    assert caplog.records[0].exc_info is not None
    assert not extender.lost.is_set()


def test_a_failed_extension_is_tried_again_well_before_the_interval_ends(clock: Clock) -> None:
    failures = iter([ConnectionError("down")])

    def respond() -> None:
        for failure in failures:
            raise failure

    msg, heartbeat = RecordingMessage(respond), Heartbeat()
    with LeaseExtender(LeaseExtenderConfig(interval=2.0)).attach(msg, heartbeat):
        started = clock.now
        while msg.extend_visibility_calls < 2:
            heartbeat.beat()
            clock.now += 0.005
        took = clock.now - started
    assert 0.15 < took < 1.0


def test_an_extension_is_logged_for_debugging(caplog: pytest.LogCaptureFixture) -> None:
    msg, heartbeat = RecordingMessage(), Heartbeat()
    with caplog.at_level(logging.DEBUG, logger=LOGGER), LeaseExtender().attach(msg, heartbeat):
        heartbeat.beat()
    assert caplog.record_tuples == [(LOGGER, logging.DEBUG, "Extended visibility for message abc-123 by 300 seconds")]


@pytest.mark.parametrize(("status", "level"), [("held", logging.DEBUG), ("stalled", logging.WARNING)])
def test_what_is_not_extended_is_not_logged_as_extended(status: str, level: int, caplog: pytest.LogCaptureFixture) -> None:
    msg, heartbeat = RecordingMessage(lambda: answer(status, 30.0)), Heartbeat()
    with caplog.at_level(logging.DEBUG, logger=LOGGER), LeaseExtender().attach(msg, heartbeat):
        heartbeat.beat()
    assert caplog.record_tuples == [(LOGGER, level, f"Visibility for message abc-123 is not extended: {status}")]


def test_what_is_logged_is_how_far_the_service_has_extended(caplog: pytest.LogCaptureFixture) -> None:
    msg, heartbeat = RecordingMessage(lambda: answer("extended", 30.0)), Heartbeat()
    with caplog.at_level(logging.DEBUG, logger=LOGGER), LeaseExtender().attach(msg, heartbeat):
        heartbeat.beat()
    assert caplog.messages == ["Extended visibility for message abc-123 by 30 seconds"]


# --- leases whose end is known


@pytest.mark.parametrize(
    "make",
    [lambda: KnowingMessage(30.0), lambda: RecordingMessage(lambda: answer("extended", 30.0))],
    ids=["the-message-knows", "the-answer-says"],
)
def test_a_lease_shorter_than_the_interval_is_extended_three_times(make: Callable[[], RecordingMessage], clock: Clock) -> None:
    msg, heartbeat = make(), Heartbeat()
    extender = LeaseExtender(LeaseExtenderConfig(interval=60.0))
    with extender.attach(msg, heartbeat):
        beat_each_second(heartbeat, clock, 300)
    assert msg.extend_visibility_calls == 30
    assert not extender.lost.is_set()


def test_an_extension_shorter_than_the_interval_is_asked_for_three_times(clock: Clock) -> None:
    msg, heartbeat = RecordingMessage(), Heartbeat()
    with LeaseExtender(LeaseExtenderConfig(interval=60.0, extension=30)).attach(msg, heartbeat):
        beat_each_second(heartbeat, clock, 300)
    assert msg.asked == [30] * 30


def test_a_long_lease_is_extended_once_per_interval(clock: Clock) -> None:
    msg, heartbeat = KnowingMessage(1800.0), Heartbeat()
    with LeaseExtender(LeaseExtenderConfig(interval=60.0)).attach(msg, heartbeat):
        beat_each_second(heartbeat, clock, 300)
    assert msg.extend_visibility_calls == 5


@pytest.mark.scar(10)
def test_an_extension_that_failed_is_tried_again_well_before_a_short_lease_ends(clock: Clock) -> None:
    failures = iter([ConnectionError("down")] * 3)

    def respond() -> None:
        for failure in failures:
            raise failure

    msg, heartbeat = KnowingMessage(3.0, respond), Heartbeat()
    extender = LeaseExtender(LeaseExtenderConfig(interval=60.0))
    with extender.attach(msg, heartbeat):
        while clock.now < 1002.0:
            heartbeat.beat()
            clock.now += 0.05
    assert msg.valid_until > 1003.0
    assert not extender.lost.is_set()


@pytest.mark.scar(9, 10)
def test_a_lease_whose_end_has_come_is_lost_without_asking(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    msg, heartbeat, told = KnowingMessage(30.0), Heartbeat(), list[str]()
    extender = LeaseExtender(on_lost=lambda: told.append("lost"))
    with caplog.at_level(logging.WARNING, logger=LOGGER), extender.attach(msg, heartbeat):
        clock.now += 30.0
        heartbeat.beat()
        heartbeat.beat()
    assert extender.lost.is_set()
    assert (msg.asked, told) == ([], ["lost"])
    assert caplog.messages == ["Lease extension failed for message abc-123: receipt handle expired"]


@pytest.mark.scar(9, 10)
@pytest.mark.parametrize("error", [None, ConnectionError("down")], ids=["answered", "failed"])
def test_an_extension_that_lasts_beyond_the_end_of_the_lease_loses_it_in_the_same_beat(clock: Clock, error: Exception | None) -> None:
    def respond() -> BeatResult:
        result = answer("extended", 30.0)
        clock.now += 60.0  # as if the process was stopped for two lease lengths
        if error is not None:
            raise error
        return result

    msg, heartbeat = RecordingMessage(lambda: answer("extended", 30.0)), Heartbeat()
    extender = LeaseExtender(LeaseExtenderConfig(interval=0.0))
    with extender.attach(msg, heartbeat):
        heartbeat.beat()
        assert not extender.lost.is_set()
        msg.respond = respond
        heartbeat.beat()
        assert extender.lost.is_set()


@pytest.mark.scar(11)
def test_a_lease_is_lost_at_its_end_also_while_an_extension_hangs(clock: Clock) -> None:
    answered = threading.Event()
    msg, heartbeat, told = KnowingMessage(30.0, lambda: answered.wait(60)), Heartbeat(), list[str]()
    extender = LeaseExtender(on_lost=lambda: told.append("lost"))
    with extender.attach(msg, heartbeat):
        hanging = threading.Thread(target=heartbeat.beat)
        hanging.start()
        while not msg.asked:
            time.sleep(0.001)
        heartbeat.beat()
        assert not extender.lost.is_set()
        clock.now += 30.0
        heartbeat.beat()
        assert extender.lost.is_set()
        answered.set()
        hanging.join()
    assert told == ["lost"]


def test_each_beat_is_progress_that_the_message_is_told_before_it_is_extended() -> None:
    told: list[int] = []
    msg = KnowingMessage(300.0, lambda: told.append(msg.noted[-1]))
    heartbeat = Heartbeat()
    extender = LeaseExtender(LeaseExtenderConfig(interval=60.0))
    with extender.attach(msg, heartbeat):
        beat_from_threads(heartbeat, 20)
    assert msg.noted == list(range(1, 21))
    assert len(told) == 1


@pytest.mark.parametrize("times", [{"interval": -1}, {"interval": float("nan")}, {"extension": 0}, {"extension": -5}])
def test_times_that_cannot_be_meant_are_refused(times: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="seconds, not"):
        LeaseExtenderConfig(**times)  # type: ignore[arg-type]  # the extension is a whole number; here it is wrong in another way
