"""Who works, if nobody says: this host, and a process on it."""

import os
import socket
import uuid

HOST = socket.gethostname()[:150]  # leaves room in a worker's id


def default_worker_id() -> str:
    """A new name for a worker of this process."""
    return f"{HOST}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
