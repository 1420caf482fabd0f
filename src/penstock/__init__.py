"""Penstock: an event streaming platform that every Kafka client already speaks to.

`penstock.Producer`, `penstock.Consumer`, `penstock.Admin` and their argument types are imported on first use, so that
brokers and commands do not pay for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.sdk import Admin, Consumer, NewRecord, Producer, TopicPartition

__version__ = "0.1.0"

__all__ = ["Admin", "Consumer", "NewRecord", "Producer", "TopicPartition", "__version__"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from penstock import sdk

        return getattr(sdk, name)
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")
