"""Process groups whose leader has exited."""

import os
import sys
from contextlib import suppress
from pathlib import Path


def has_others(leader: int) -> bool:
    """Whether somebody else of a process group lives, now that its leader has exited and is not reaped yet."""
    if sys.platform != "linux":  # elsewhere, signals do not reach zombies
        return _hears_signals(leader)
    return any(_is_in(leader, int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit() and int(entry.name) != leader)


def _hears_signals(group: int) -> bool:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, 0)
        return True
    return False


def _is_in(group: int, process: int) -> bool:
    """Whether a process is alive, and in a group. It may end at any moment."""
    with suppress(OSError):
        return os.getpgid(process) == group and _state(process) not in "ZX"
    return False


def _state(process: int) -> str:
    """The letter after the process's name, which may hold anything."""
    return Path(f"/proc/{process}/stat").read_bytes().rpartition(b") ")[2][:1].decode()
