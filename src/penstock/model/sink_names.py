"""The names that Spark's exactly-once sink uses on a cluster.

Its groups commit batch numbers in place of offsets, so their lag means nothing.
"""

from __future__ import annotations

from typing import Final

SINKS_TOPIC: Final = "__penstock_sinks"
"""The topic of the sinks' decisions."""
SINK_PREFIX: Final = "penstock-sink-"
"""Transactional ids and groups of sinks begin like this. The query id follows."""
