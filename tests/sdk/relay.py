"""An address that stays while the server behind it changes."""

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class Relay:
    """Passes connections on to `target`, a port of loopback that may be set anew at any time."""

    def __init__(self, target: int) -> None:
        self.target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: set[socket.socket] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self, target: int) -> None:
        """Pass new connections on to `target`, and break those there are."""
        self.target = target
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(connection,), daemon=True).start()

    def _connect(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.target)) as onward:
            self._connections.add(connection)
            back = threading.Thread(target=_pass_on, args=(onward, connection), daemon=True)
            back.start()
            _pass_on(connection, onward)
            back.join()
            self._connections.discard(connection)


def _pass_on(source: socket.socket, drain: socket.socket) -> None:
    """Copy until one side ends, then end both."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            drain.sendall(data)
    for end in (source, drain):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
