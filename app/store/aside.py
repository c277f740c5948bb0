"""Messages that Postgres refuses to work on, left alone for a while so that they hold up nobody else (design rule 10)."""

import time

_PAUSE_S = 60.0


class Aside:
    """Remembers messages for a minute each; then they are tried again."""

    def __init__(self) -> None:
        self._until: dict[int, float] = {}

    def put(self, message_id: int) -> None:
        self._until[message_id] = time.monotonic() + _PAUSE_S

    def ids(self) -> list[int]:
        now = time.monotonic()
        self._until = {message_id: until for message_id, until in self._until.items() if until > now}
        return list(self._until)
