"""Paths with names in them."""

from urllib.parse import quote


def queue_path(queue: str, *rest: str) -> str:
    """The path of a queue or of something in it."""
    return _path("queues", queue, *rest)


def message_path(message_id: str, *rest: str) -> str:
    """The path of a message or of something about it."""
    return _path("messages", message_id, *rest)


def worker_path(worker_id: str, *rest: str) -> str:
    """The path of a worker or of something about it."""
    return _path("workers", worker_id, *rest)


def _path(collection: str, name: str, *rest: str) -> str:
    if not name:
        raise ValueError("a name in a path must not be empty")
    encoded = quote(name, safe="")
    if not name.strip("."):
        encoded = encoded.replace(".", "%2E")  # or it would change the path
    return "/".join(["", collection, encoded, *rest])
