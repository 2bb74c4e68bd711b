"""The log: structured lines on standard error, each with the id of its step, none with a secret."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from penstock.model import correlation
from penstock.model.errors import UsageError
from penstock.model.inert import inert
from penstock.settings.redaction import last_words, redact

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
log = structlog.get_logger()


def configure_logs(level: str = "info", form: str = "auto") -> None:
    """Write JSON lines, or readable ones; `auto` is readable on a terminal. May be called again with other wishes."""
    if level not in LEVELS:
        msg = f"{level!r} is not a log level; use one of {', '.join(LEVELS)}"
        raise UsageError(msg)
    readable = form == "console" or (form == "auto" and sys.stderr.isatty())
    plain = structlog.processors.JSONRenderer(default=str)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _correlated,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([_inert, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())] if readable else [plain]),
            _redacted,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        # A cached logger would keep the level that it had first.
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers[:] = [handler for handler in root.handlers if not isinstance(handler, _Library)] + [_Library()]
    sys.excepthook = last_words


def _correlated(_logger: Any, _method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    found = correlation.current()
    if found is not None:
        fields.setdefault("correlation", found)
    return fields


def _inert(_logger: Any, _method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """For readable lines: JSON escapes control characters by itself."""
    return {
        name: inert(value, lines=name == "exception") if isinstance(value, str) else value
        for name, value in fields.items()
    }


def _redacted(_logger: Any, _method: str, line: Any) -> str:
    """The last processor: what the renderer made is one text, whatever was in it."""
    return redact(line)


class _Library(logging.Handler):
    """What a library says through Python's own logging becomes a line like the others."""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        if record.levelno >= logging.ERROR:
            log.error("library.said", logger=record.name, text=text)
        elif record.levelno >= logging.WARNING:
            log.warning("library.said", logger=record.name, text=text)
        else:
            log.debug("library.said", logger=record.name, text=text)
