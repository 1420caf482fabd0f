"""Log lines about connections that were refused or closed because of bad input, limited in their rate.

A refused peer may reconnect thousands of times a second. Lines that are left out are counted, and the next line has
their number. Strangers have their own interval, so that broken clients do not hide them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from penstock.model.errors import ProtocolError, Stranger

log = logging.getLogger(__name__)

INTERVAL_S: Final = 10.0


class Complaints:
    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._next_s: dict[str, float] = {}
        self._unsaid: dict[str, int] = {}

    def closed(self, connection_id: str, error: ProtocolError) -> None:
        self._say("stranger" if isinstance(error, Stranger) else "error", f"closed {connection_id}: {error}")

    def refused(self, ip: str, listener: str, reason: str) -> None:
        self._say(reason, f"refused a connection from {ip} on {listener}: {reason}")

    def not_accepted(self, listener: str, error: OSError) -> None:
        self._say("not accepted", f"cannot accept a connection on {listener}: {error}; trying again")

    def _say(self, kind: str, line: str) -> None:
        now_s = self._now_s()
        if now_s < self._next_s.get(kind, 0.0):
            self._unsaid[kind] = self._unsaid.get(kind, 0) + 1
            return
        self._next_s[kind] = now_s + INTERVAL_S
        unsaid = self._unsaid.pop(kind, 0)
        more = f" ({unsaid} more since the last such line)" if unsaid else ""
        log.warning("%s%s", line, more)
