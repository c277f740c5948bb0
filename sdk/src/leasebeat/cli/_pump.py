"""`Pump`: what flows between us and a program."""

import contextlib
import os
import selectors
import subprocess
import threading
from collections.abc import Callable
from functools import partial
from typing import IO, Any, cast

CHUNK_BYTES = 64 * 1024
LAST_READS = 16  # of a chunk each: as much as a pipe holds at most


class Pump:
    """Writes a program's input and reads its output and its errors, in one thread: whatever it does not read holds up nothing."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        body: bytes,
        *,
        output: Callable[[bytes], None],
        errors: Callable[[bytes], None],
    ) -> None:
        """Start.

        Args:
            process: The program, with pipes for all three streams. They are closed here.
            body: Its standard input.
            output: Called with each piece of its standard output.
            errors: Called with each piece of its standard error.
        """
        stdin, stdout, stderr = (cast("IO[bytes]", stream) for stream in (process.stdin, process.stdout, process.stderr))
        self._body = memoryview(body)
        self._finishing = False
        self._selector = selectors.DefaultSelector()
        finish_end, self._finish = os.pipe()
        os.set_blocking(stdin.fileno(), False)
        self._selector.register(stdin, selectors.EVENT_WRITE, self._write)
        self._selector.register(stdout, selectors.EVENT_READ, partial(self._read, output))
        self._selector.register(stderr, selectors.EVENT_READ, partial(self._read, errors))
        self._selector.register(os.fdopen(finish_end, "rb", buffering=0), selectors.EVENT_READ, self._begin_to_finish)
        self._thread = threading.Thread(target=self._run, name=f"leasebeat-pump-{process.pid}", daemon=True)
        self._thread.start()

    def finish(self, timeout: float | None = None) -> None:
        """The program has exited: read what it has left behind, but do not wait for others that hold its streams open."""
        os.close(self._finish)
        self._thread.join(timeout)

    def _run(self) -> None:
        with self._selector:
            while not self._finishing:
                self._serve(None)
            for _ in range(LAST_READS):
                if not self._serve(0):
                    break
            for key in list(self._selector.get_map().values()):
                self._close(key.fileobj)

    def _serve(self, timeout: float | None) -> bool:
        ready = self._selector.select(timeout)
        for key, _ in ready:
            key.data(key.fileobj)
        return bool(ready)

    def _write(self, stream: IO[bytes]) -> None:
        try:
            self._body = self._body[os.write(stream.fileno(), self._body[:CHUNK_BYTES]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._body = memoryview(b"")  # it reads no further
        if not self._body:
            self._close(stream)

    def _read(self, take: Callable[[bytes], None], stream: IO[bytes]) -> None:
        if data := os.read(stream.fileno(), CHUNK_BYTES):
            take(data)
        else:
            self._close(stream)

    def _begin_to_finish(self, stream: IO[bytes]) -> None:
        self._finishing = True
        self._close(stream)

    def _close(self, stream: Any) -> None:
        self._selector.unregister(stream)
        with contextlib.suppress(OSError):
            stream.close()
