"""Logs: one line per event, as JSON for machines or in colour for people. uvicorn's lines go the same way."""

import logging
import sys
from typing import Any

import structlog


def configure(level: str, style: str) -> None:
    """Send every log line to standard error in one style ("json" or "console")."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if style == "json"
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            exception_formatter=structlog.dev.plain_traceback,  # the rich one prints local variables, secrets among them
        )
    )
    render: list[Any] = [structlog.processors.format_exc_info, renderer] if style == "json" else [renderer]
    structlog.configure(
        processors=[*shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[_drop_meta, *render]))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("alembic.runtime.migration").setLevel(logging.WARNING)


def _drop_meta(_logger: object, _method: str, event: Any) -> Any:
    return structlog.stdlib.ProcessorFormatter.remove_processors_meta(None, "", event)
