"""HTTP as uvicorn speaks it, but for requests that ask for another protocol: these are served as if they had not (RFC 9110, 7.8).

The parser would take the body of such a request for the other protocol's, so the call would be served without its body. Some clients
ask for HTTP/2 in this way by default.
"""

import sys
from typing import cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class Protocol(HttpToolsProtocol):
    """One connection."""

    _received = _ahead = b""

    def data_received(self, data: bytes) -> None:
        self._ahead = data
        while self._ahead:
            self._received, self._ahead = self._ahead, b""
            super().data_received(self._received)
        self._received = b""

    def _should_upgrade(self) -> bool:
        """Tell whether the request is not to be served before `handle_websocket_upgrade` has seen it. CONNECT is refused as it is."""
        return self.scope["method"] != "CONNECT"

    def handle_websocket_upgrade(self) -> None:
        """Begin the request anew without what asked for another protocol."""
        upgrade = cast(httptools.HttpParserUpgrade, sys.exception())  # says how far the parser has come
        rest = self._received[upgrade.args[0] :]
        line = b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        head = [line, *(name + b": " + value for name, value in self.headers if name != b"upgrade")]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as the one before
        self._ahead = b"\r\n".join([*head, b"", rest])
