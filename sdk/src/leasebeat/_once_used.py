"""Modules that take long to import, and that a program, or a process for handlers, may do without."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["OnceUsed", "asyncio"]


class OnceUsed:
    """Stands for a module, which is imported when something of it is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


if TYPE_CHECKING:
    import asyncio
else:
    asyncio = OnceUsed("asyncio")
