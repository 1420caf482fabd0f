"""How long a request may take and how large an answer may be, unless the caller says otherwise."""

from __future__ import annotations

REQUEST_TIMEOUT_S = 30.0
MAX_FRAME_BYTES = 128 << 20
