"""Paths with names in them."""

from urllib.parse import quote


def queue_path(queue: str, *rest: str) -> str:
    """The path of a queue or of something in it."""
    return _path("queues", queue, *rest)


def message_path(message_id: str, *rest: str) -> str:
    """The path of a message or of something about it."""
    return _path("messages", message_id, *rest)


def _path(*parts: str) -> str:
    if not all(part.strip(".") for part in parts):
        raise ValueError("a name in a path must not be empty or consist of dots")
    return "/" + "/".join(quote(part, safe="") for part in parts)
