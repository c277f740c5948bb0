"""A worker of the demo: parses one file of the standard library per message, counts its definitions and hashes it.

python stdlib_worker.py http://127.0.0.1:8080 stdlib worker-1
"""

import ast
import hashlib
import sys
import threading
import time
from pathlib import Path
from typing import Any

from leasebeat import Context, LeasedMessage, Worker

_parsing = threading.Lock()  # Python 3.11 counts the depth of a tree for all threads together, and fails if two build one


def study(message: LeasedMessage, context: Context) -> dict[str, Any]:
    """Do the work of one message. Each definition found is a beat."""
    started_at = time.time()
    source = Path(message.body["path"]).read_bytes()
    definitions = 0
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            definitions += 1
            context.beat(progress=definitions)
    return {
        "definitions": definitions,
        "sha256": hashlib.sha256(source).hexdigest(),
        "generation": context.generation,
        "started_at": started_at,
    }


def parse(source: bytes) -> ast.AST:
    """Parse a file; one that is not valid Python on purpose, as some of the standard library's tests are, counts as empty."""
    try:
        with _parsing:
            return ast.parse(source)
    except (SyntaxError, ValueError):
        return ast.Module([], [])


if __name__ == "__main__":
    url, queue, worker_id = sys.argv[1:]
    Worker(url, queue, study, worker_id=worker_id, concurrency=4).run()
