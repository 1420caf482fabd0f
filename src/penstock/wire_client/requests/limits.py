"""Default limits: the timeout of a request and the size of an answer."""

from __future__ import annotations

REQUEST_TIMEOUT_S = 30.0
MAX_FRAME_BYTES = 128 << 20
