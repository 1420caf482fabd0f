"""Log lines on standard error: for people (`console`) or one JSON object per line (`json`).

    {"time": "2026-01-31T12:00:00.123Z", "level": "warning", "logger": "penstock.net.listener",
     "process": "broker", "message": "...", "exception": "Traceback ..."}

`exception` appears only if there was one. Fields passed with `extra=` are added under their
own names.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Final

CONSOLE: Final = "console"
JSON: Final = "json"
FORMATS: Final = (CONSOLE, JSON)

_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{second}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": self._process,
            "message": record.getMessage(),
        }
        line.update({name: value for name, value in record.__dict__.items() if name not in _STANDARD})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return json.dumps(line, default=str, ensure_ascii=False)


def configure(level: int | str, log_format: str, process: str = "broker") -> None:
    """Make the root logger of this process write to standard error. May be called again."""
    handler = logging.StreamHandler(sys.stderr)
    if log_format == JSON:
        handler.setFormatter(JsonFormatter(process))
    else:
        prefix = "" if process == "broker" else f"{process}: "
        handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)-7s {prefix}%(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)


def current_format() -> str:
    """The current format, for a child process to use."""
    return JSON if any(isinstance(h.formatter, JsonFormatter) for h in logging.getLogger().handlers) else CONSOLE
