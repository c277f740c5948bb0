"""`ProcessHandlers`: runs handlers in processes, so that work that keeps an interpreter busy is in nobody's way."""

import concurrent.futures
import contextlib
import json
import logging
import math
import multiprocessing
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from leasebeat._context import Context
from leasebeat._errors import LeasebeatError
from leasebeat._handlers import LOST_GRACE_S, GiveBack, Handler
from leasebeat._process_child import serve
from leasebeat._process_page import Job, Lost, Page, Raised, Ready, Returned, Stopping
from leasebeat._retry import Pauses
from leasebeat._signals import STOP_SIGNALS
from leasebeat._ticker import Ticker
from leasebeat._tracing import trace_headers
from leasebeat._tracked_lease import TrackedLease

_log = logging.getLogger(__name__)
_spawning = multiprocessing.get_context("spawn")  # a fork would take the worker's locks along, held by threads that it leaves behind

LOOK_S = 0.05  # at what the processes report and are to hear, by one thread for all
DEATH_LOOK_S = 1.0  # for a death that no pipe tells of, as something that the handler started holds its end
TERM_GRACE_S = 2.0
EXIT_TIMEOUT_S = 2.0
START_PATIENCE_S = 120.0  # with a process that starts and does not use the processor, or does not show it
LONG_START_S = 30.0  # is worth a word


class HandlerProcessError(LeasebeatError):
    """The process of a handler ended before its handler did."""


def check_importable(handler: Handler) -> None:
    """Refuse a handler that cannot be handed to another process.

    Raises:
        ValueError: If it is such.
    """
    try:
        ForkingPickler.dumps(handler)
    except Exception as error:
        raise ValueError(f"{handler!r} cannot run in a process of its own: it must be importable by name") from error


class ProcessHandlers:
    """Runs handlers in child processes, one message in each at a time.

    A process serves many messages. One that died, or was ended, is replaced before its place is free for another message. A handler
    whose lease is lost hears of it, and is ended if it goes on all the same. No process outlives its worker.
    """

    def __init__(self, handler: Handler, size: int, stopping: threading.Event) -> None:
        """Describe the processes.

        Args:
            handler: What to run. The processes import it by its name.
            size: How many processes to keep.
            stopping: Set when the worker is shutting down.
        """
        self._handler = handler
        self._size = size
        self._stopping = stopping
        self._children: set[Child] = set()
        self._idle: deque[Child] = deque()
        self._watched: set[ProcessCall] = set()
        self._looks = Ticker("leasebeat-pages", self._look)

    def call(self, context: Context, tracked: TrackedLease) -> "ProcessCall":
        """Prepare to run the handler for a lease, in a process that is idle."""
        return ProcessCall(self, self._idle.popleft(), context, tracked)

    def sound(self, child: "Child", meanwhile: Callable[[], object] = lambda: None) -> "Child":
        """The process itself if it can serve, or another one in its place. `meanwhile` is called again and again until there is one.

        Raises:
            GiveBack: If there is none before the worker stops.
        """
        if child.usable:
            return child
        child.kill()
        child.dismiss()
        self._children.discard(child)
        backoff = Pauses()
        while not self._stopping.is_set():
            try:
                another = self._start()
                if self._await_ready(another, meanwhile):
                    return another
            except (HandlerProcessError, OSError) as error:
                _log.warning("A process for handlers could not be started, and is tried again: %s", error)
                self._pause(backoff.pause(), meanwhile)
        raise GiveBack

    def put_back(self, child: "Child") -> None:
        """Keep a process, or another one in its place, for the next message."""
        with contextlib.suppress(GiveBack):
            self._idle.append(self.sound(child))

    @contextmanager
    def watching(self, call: "ProcessCall") -> Generator[None, None, None]:
        """Look at what a handler reports and is to hear, again and again in the block."""
        self._watched.add(call)
        self._looks.wake()
        try:
            yield
        finally:
            self._watched.discard(call)

    def __enter__(self) -> Self:
        """Start the processes, so that no lease runs while its handler is still imported.

        Raises:
            HandlerProcessError: If one dies as it starts, or hangs.
            OSError: If the system does not allow for so many processes (EAGAIN) or open files (EMFILE).
            RuntimeError: If it has no thread for what looks at them.
        """
        try:
            self._looks.wake()  # a system that has no thread for it says so now
            for child in [self._start() for _ in range(self._size)]:
                self._await_ready(child)
                self._idle.append(child)
        except BaseException:
            self._end_all()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end_all()

    def _look(self) -> float:
        for call in list(self._watched):
            try:
                call.look()
            except Exception:  # noqa: BLE001 - whatever a handler writes to its page, it must not be in the way of others
                _log.exception("What the handler of message %s reports cannot be read: it is not beaten for any more", call.message_id)
                self._watched.discard(call)
        return time.monotonic() + LOOK_S if self._watched else math.inf

    def _start(self) -> "Child":
        child = Child(self._handler)
        self._children.add(child)
        return child

    def _await_ready(self, child: "Child", meanwhile: Callable[[], object] = lambda: None) -> bool:
        try:
            return child.wait_ready(self._stopping, meanwhile)
        except HandlerProcessError:
            child.kill()
            self._children.discard(child)
            raise

    def _pause(self, seconds: float, meanwhile: Callable[[], object]) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._stopping.wait(LOOK_S):
            meanwhile()

    def _end_all(self) -> None:
        """Let idle processes end by themselves, and kill what does not."""
        self._looks.close()
        for child in list(self._idle):
            child.dismiss()
        until = time.monotonic() + EXIT_TIMEOUT_S
        for child in list(self._idle):
            child.wait_ended(until)
        for child in list(self._children):
            child.kill()


class ProcessCall:
    """Runs a handler in a child, and passes on what handler and worker say to each other."""

    def __init__(self, handlers: ProcessHandlers, child: "Child", context: Context, tracked: TrackedLease) -> None:
        self.message_id = context.message.id
        self._handlers = handlers
        self._child = child
        self._context = context
        self._tracked = tracked
        self._beats = 0
        self._kept_until = 0.0
        self._looking = threading.Lock()
        self._working = False  # the page tells of this message, and of no other
        self._nudged_for = (False, False)
        self._told_to_stop = False
        self._lost_at: float | None = None
        self._ended = threading.Event()

    def run(self) -> Any:
        """Return what the handler returns, or raise what it raises.

        Raises:
            HandlerProcessError: If its process dies.
            CancelledError: If its process is ended.
            GiveBack: If there was no process for it before the worker stopped, so that it never ran.
        """
        try:
            outcome = self._outcome()
        except HandlerProcessError:
            if self._child.ending:
                raise concurrent.futures.CancelledError from None
            raise
        finally:
            if self._child.ending:
                self._child.kill()  # nothing that the handler left behind in there goes on either
            self._ended.set()
        if isinstance(outcome, Returned):
            return json.loads(outcome.output)
        if self._child.ending:
            raise concurrent.futures.CancelledError
        raise outcome.error()

    def cancel(self) -> None:
        """End the handler: politely, then by force (`wait_cancelled`)."""
        self._child.terminate()

    def wait_cancelled(self, until: float) -> None:
        """Wait until the handler has ended. After a moment on `time.monotonic()` its process is killed."""
        if not self._ended.wait(max(0.0, until - time.monotonic())):
            self._child.kill()
            self._ended.wait(EXIT_TIMEOUT_S)

    def close(self) -> None:
        """Give the process back."""
        self._handlers.put_back(self._child)

    def look(self) -> None:
        """Take over what the handler reports, tell it how long its lease lasts, and wake who is to tell it more. It waits for nobody."""
        with self._looking:
            if self._working:
                self._take_report()
                self._child.page.valid_until = self._tracked.valid_until
                self._nudge()

    def _outcome(self) -> Returned | Raised:
        context = self._context
        job = Job(context.message, context.attempt, context.generation, context.worker_id, trace_headers())
        self._kept_until = time.monotonic() + START_PATIENCE_S
        self._child = self._handlers.sound(self._child, self._keep_lease)  # it may have died while it was idle
        self._tracked.raise_if_lost()
        self._child.begin(job, self._tracked.valid_until)
        with self._reporting(), self._handlers.watching(self):
            while True:
                news = self._child.hear(DEATH_LOOK_S if self._lost_at is None else LOOK_S)
                if isinstance(news, Returned | Raised):
                    return news
                self._pass_on()

    @contextmanager
    def _reporting(self) -> Generator[None, None, None]:
        """Let looks take what the page tells, and take its last word."""
        self._working = True
        try:
            yield
        finally:
            try:
                self.look()
            finally:
                with self._looking:
                    self._working = False

    def _keep_lease(self) -> None:
        """Beat for a handler that cannot begin yet, as its process has to be started, but not for ever."""
        if time.monotonic() < self._kept_until:
            self._context.heartbeat.beat()

    def _take_report(self) -> None:
        """Its beats since the last look count as one, which comes to the same for the sender."""
        beats = self._child.page.beats
        if beats != self._beats:
            self._beats = beats
            self._tracked.note(*self._child.page.report())
            self._context.heartbeat.beat()

    def _nudge(self) -> None:
        if (news := (self._context.stopping.is_set(), self._tracked.lost.is_set())) != self._nudged_for:
            self._nudged_for = news
            self._child.nudge()

    def _pass_on(self) -> None:
        if self._context.stopping.is_set() and not self._told_to_stop:
            self._told_to_stop = True
            self._child.tell(Stopping())
        loss = self._tracked.loss
        if loss is None:
            return
        if self._lost_at is None:
            self._lost_at = time.monotonic()
            self._child.tell(Lost(loss.status))
        self._press(time.monotonic() - self._lost_at)

    def _press(self, since_loss: float) -> None:
        """Somebody else may be at work: a handler that does not end by itself is ended."""
        if since_loss > LOST_GRACE_S + TERM_GRACE_S:
            self._child.kill()
        elif since_loss > LOST_GRACE_S:
            self._child.terminate()


class Child:
    """A process, and the worker's ends of what it shares with it. One thread at a time talks to it; any may end it."""

    def __init__(self, handler: Handler) -> None:
        """Start the process.

        Raises:
            OSError: If the system does not allow for another one.
        """
        self.page = _spawning.RawValue(Page)
        self._connection, theirs = _spawning.Pipe()
        self._nudged, self._nudging = _spawning.Pipe(duplex=False)
        self._process = _spawning.Process(target=serve, args=(theirs, self.page, handler), name="leasebeat-handler")
        self._cut_off = False
        resource_tracker.ensure_running()  # while that starts it lets the signals through
        with theirs, _stop_signals_held_back():
            self._process.start()

    @property
    def usable(self) -> bool:
        """Whether it can serve another message."""
        return self._process.exitcode is None and not self.ending and not self._cut_off

    @property
    def ending(self) -> bool:
        """Whether the worker has told it to end."""
        return bool(self.page.ending)

    def wait_ready(self, stopping: threading.Event, meanwhile: Callable[[], object]) -> bool:
        """Wait until it can serve, or the worker stops. A slow import may take its time, as long as it is seen to use the processor.

        Returns whether it can serve.

        Raises:
            HandlerProcessError: If it dies instead, or hangs.
        """
        moved_at = time.monotonic()
        tell_at = moved_at + LONG_START_S
        used = self._processor_time()
        while not stopping.is_set():
            if isinstance(self.hear(LOOK_S), Ready):
                return True
            meanwhile()
            now, before, used = time.monotonic(), used, self._processor_time()
            moved_at = now if used != before else moved_at
            if now - moved_at > START_PATIENCE_S:
                raise HandlerProcessError(
                    f"the process of the handler hangs as it starts, in an import: nothing moved for {now - moved_at:.0f} s"
                )
            if now > tell_at:
                _log.warning("A process for handlers has been starting for more than %.0f s: it imports the handler", LONG_START_S)
                tell_at = math.inf
        return False

    def begin(self, job: Job, valid_until: float) -> None:
        """Have it work on a message."""
        self.page.clear(valid_until)
        self.tell(job)

    def tell(self, news: Job | Stopping | Lost) -> None:
        """Say something, unless it is dead, which whoever listens to it finds out."""
        with contextlib.suppress(OSError):
            self._connection.send(news)

    def hear(self, timeout: float) -> Ready | Returned | Raised | None:
        """Wait for what it says, at most `timeout` seconds, or until a nudge.

        Raises:
            HandlerProcessError: If it has died.
        """
        dead = self._process.exitcode is not None  # asked first, so that nothing it said before is missed
        try:
            ready = wait([self._connection, self._nudged], 0 if dead else timeout)
            if self._nudged in ready:
                self._nudged.recv_bytes()
            if self._connection in ready:
                return self._connection.recv()  # type: ignore[no-any-return]
        except (EOFError, OSError):
            self._cut_off = True
            self.wait_ended(time.monotonic() + EXIT_TIMEOUT_S)
        if dead or self._cut_off:
            raise HandlerProcessError(f"the process of the handler ended: {_manner(self._process.exitcode)}")
        return None

    def nudge(self) -> None:
        """Let whoever hears it look up."""
        with contextlib.suppress(OSError):
            self._nudging.send_bytes(b"!")

    def terminate(self) -> None:
        """Tell it to end, once."""
        if not self.ending:
            self.page.ending = 1
            self._process.terminate()

    def kill(self) -> None:
        """End it at once."""
        self.page.ending = 1
        self._process.kill()
        self.wait_ended(time.monotonic() + EXIT_TIMEOUT_S)

    def dismiss(self) -> None:
        """Have it end by itself, as there is no more work."""
        self._connection.close()

    def _processor_time(self) -> list[bytes]:
        """What it has used, as far as the system shows that."""
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self._process.pid}/stat").read_bytes().rpartition(b") ")[2].split()[11:13]
        return []

    def wait_ended(self, until: float) -> None:
        """Wait until it has ended, at most until a moment on `time.monotonic()`.

        The exit status tells, not a pipe, of which a process that the handler started may hold a copy.
        """
        while self._process.exitcode is None and time.monotonic() < until:
            time.sleep(0.005)


@contextmanager
def _stop_signals_held_back() -> Generator[None, None, None]:
    """A process that is started meanwhile is deaf to these signals until it knows how to take them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _manner(exitcode: int | None) -> str:
    if exitcode is None:
        return "it closed its connection"
    return f"killed by signal {-exitcode}" if exitcode < 0 else f"exit status {exitcode}"
