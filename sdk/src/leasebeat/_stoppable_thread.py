"""`StoppableThread`: a thread that is told to stop, by signal handlers too, and may be started again."""

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from leasebeat._fork import reset_in_child


class Stop:
    """The word to stop. A signal handler may give it at any moment: there are no locks that the code it interrupts could hold."""

    def __init__(self) -> None:
        self._words: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.given = False

    def give(self) -> None:
        """Ask for an end."""
        self.given = True
        self._words.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait for the word, at most so long. Returns whether it is given. One thread waits at a time."""
        if not self.given:
            with suppress(queue.Empty):
                self._words.get(timeout=max(0.0, seconds))
        return self.given


@dataclass(frozen=True, slots=True)
class _Run:
    thread: threading.Thread
    stop: Stop


class StoppableThread:
    """A daemon thread, one at a time. A child that is forked has none until it starts one."""

    def __init__(self, name: str) -> None:
        """Name the thread, without starting it."""
        self._name = name
        self._starting = threading.Lock()
        self._run: _Run | None = None
        reset_in_child(self)

    @property
    def is_running(self) -> bool:
        """Whether this process has the thread."""
        run = self._run
        return run is not None and run.thread.is_alive()

    @property
    def is_to_run(self) -> bool:
        """Whether it runs and has not been told to stop."""
        run = self._run
        return run is not None and run.thread.is_alive() and not run.stop.given

    def start(self, work: Callable[[Stop], object]) -> None:
        """Run `work(stop)`, which is to return soon once `stop` is given. Does nothing while other work is to run."""
        with self._starting:
            if self.is_to_run:
                return
            stop = Stop()
            thread = threading.Thread(target=work, args=(stop,), name=self._name, daemon=True)
            self._run = _Run(thread, stop)  # before it starts, as the first thing it does may be to stop
            thread.start()

    def stop(self, *, wait: bool, timeout: float) -> None:
        """Tell the thread to stop, and wait for its end at most `timeout` seconds. From within the thread it does not wait."""
        run = self._run
        if run is None:
            return
        run.stop.give()
        if wait and run.thread.is_alive() and run.thread is not threading.current_thread():
            run.thread.join(timeout)

    def after_fork(self) -> None:
        """Forget the parent's thread."""
        self._starting = threading.Lock()
        self._run = None
