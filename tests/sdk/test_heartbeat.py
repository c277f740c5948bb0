import logging
import os
import signal
import threading

import pytest
from sdk.conftest import Clock

from leasebeat import Heartbeat


def test_elapsed_counts_from_the_last_beat(clock: Clock) -> None:
    heartbeat = Heartbeat()
    clock.now += 5.0
    assert heartbeat.elapsed() == 5.0
    heartbeat.beat()
    clock.now += 2.0
    assert heartbeat.elapsed() == 2.0


def test_callbacks_run_in_order_on_each_beat_until_removed() -> None:
    heard: list[str] = []
    heartbeat = Heartbeat()

    def first() -> None:
        heard.append("first")

    def second() -> None:
        heard.append("second")

    heartbeat.add_callback(first)
    heartbeat.add_callback(second)
    heartbeat.beat()
    heartbeat.remove_callback(first)
    heartbeat.beat()
    assert heard == ["first", "second", "second"]


def test_removing_an_unknown_callback_is_an_error() -> None:
    with pytest.raises(ValueError, match="not in list"):
        Heartbeat().remove_callback(lambda: None)


def test_a_failing_callback_is_logged_and_the_next_one_runs(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[str] = []
    heartbeat = Heartbeat()

    def fail() -> None:
        raise OSError("disk full")

    heartbeat.add_callback(fail)
    heartbeat.add_callback(lambda: heard.append("after"))
    with caplog.at_level(logging.ERROR, logger="leasebeat._heartbeat"):
        heartbeat.beat()
    assert heard == ["after"]
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["disk full"]


def test_callbacks_run_outside_the_lock() -> None:
    heartbeat = Heartbeat()
    seen: list[float] = []
    heartbeat.add_callback(lambda: seen.append(heartbeat.elapsed()))
    beat = threading.Thread(target=heartbeat.beat, daemon=True)
    beat.start()
    beat.join(timeout=30)
    assert not beat.is_alive(), "the callback waits for a lock that its own beat holds"
    assert len(seen) == 1


def test_on_beat_adds_one_callback_and_replaces_only_itself() -> None:
    heard: list[str] = []
    heartbeat = Heartbeat()
    heartbeat.add_callback(lambda: heard.append("added"))
    heartbeat.on_beat = lambda: heard.append("assigned")
    heartbeat.beat()
    heartbeat.on_beat = lambda: heard.append("replaced")
    heartbeat.beat()
    heartbeat.on_beat = None
    heartbeat.beat()
    assert heard == ["added", "assigned", "added", "replaced", "added"]
    assert heartbeat.on_beat is None


def test_beats_of_many_threads_are_all_heard() -> None:
    heard: list[None] = []
    heartbeat = Heartbeat()
    heartbeat.add_callback(lambda: heard.append(None))

    def beat_often() -> None:
        for _ in range(50):
            heartbeat.beat()

    threads = [threading.Thread(target=beat_often) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(heard) == 400


@pytest.mark.scar(16)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_waits_for_no_lock_of_its_parent() -> None:
    """Another thread is about to remove a callback as the process forks, and never gets there in the child."""
    heartbeat, comparing, forked = Heartbeat(), threading.Event(), threading.Event()

    class Slow:
        __hash__ = object.__hash__

        def __call__(self) -> None: ...

        def __eq__(self, other: object) -> bool:
            comparing.set()
            return forked.wait(60)

    heartbeat.add_callback(Slow())
    removing = threading.Thread(target=heartbeat.remove_callback, args=(Slow(),))
    removing.start()
    assert comparing.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        heard: list[str] = []
        heartbeat.add_callback(lambda: heard.append("beat"))
        heartbeat.beat()
        os._exit(0 if heard == ["beat"] else 1)
    forked.set()
    removing.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
