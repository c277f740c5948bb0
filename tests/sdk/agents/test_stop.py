"""A loop may be told to stop at any moment, by anybody."""

import threading

from harness.wait import until
from sdk.agents.conftest import StartChat
from sdk.agents.loops import DONE, MakeLoop, running


def test_a_signal_handler_may_stop_a_loop_wherever_it_interrupts_it(start_chat: StartChat, make_loop: MakeLoop) -> None:
    """It may run in a thread that holds any lock of the loop, so it must wait for none."""
    loop = make_loop(start_chat(DONE))
    with running(loop, wait_time_seconds=50) as thread:
        until(lambda: loop._receiving)  # noqa: SLF001
        stopping = threading.Thread(target=loop.stop, daemon=True)
        with loop._lock, loop._stopping._cond:  # type: ignore[attr-defined]  # noqa: SLF001
            stopping.start()
            stopping.join(60)
            assert not stopping.is_alive()
        thread.join(40)
        assert not thread.is_alive()


def test_a_loop_that_was_stopped_before_it_ran_stays_stopped(start_chat: StartChat, make_loop: MakeLoop) -> None:
    loop = make_loop(start_chat(DONE))
    loop.stop()
    with running(loop, wait_time_seconds=50) as thread:
        thread.join(40)
        assert not thread.is_alive()
