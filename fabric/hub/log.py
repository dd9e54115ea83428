"""The hub's log: one event in each line, as text for people or as JSON for programs."""

import json
import logging
import sys
import time
from typing import Any, Final

LOGGER: Final = logging.getLogger("fabric")


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields = " ".join(f"{k}={_shown(v)}" for k, v in getattr(record, "fields", {}).items())
        return f"{stamp}.{int(record.msecs):03d}Z {record.levelname.lower():8s} {record.getMessage()} {fields}".rstrip()


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        row = {"ts": round(record.created, 3), "level": record.levelname.lower(), "event": record.getMessage()}
        return json.dumps(row | getattr(record, "fields", {}), default=str)


def _shown(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    plain = text and all(c.isprintable() and c not in ' ="' for c in text)  # clients must not control the terminal
    return text if plain else json.dumps(text)


def set_up(style: str, level: str) -> None:
    """Send the hub's events to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if style == "json" else _Text())
    LOGGER.handlers[:] = [handler]
    LOGGER.setLevel(level.upper())
    LOGGER.propagate = False


def event(level: int, name: str, /, **fields: Any) -> None:
    LOGGER.log(level, name, extra={"fields": fields})
