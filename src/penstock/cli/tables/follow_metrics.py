"""The metrics of followed topics, as Prometheus reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.observability.exposition import counter, gauge, render

if TYPE_CHECKING:
    from penstock.topic_tables.progress import FollowProgress

_COUNTS = (
    ("records", "records", "Records that were committed to the table"),
    ("bytes", "size_bytes", "Bytes of these records in memory"),
    ("commits", "commits", "Commits to the table"),
    ("commit_seconds", "commit_s", "Time that these commits took"),
    ("tombstones", "tombstones", "Records that delete by their key"),
    ("evolutions", "evolutions", "Changes of the schema by values"),
    ("dead_letters", "dead_letters", "Records that did not fit the table"),
    ("lost_offsets", "lost", "Offsets that were deleted before they were read"),
    ("restarts", "restarts", "Failures after which following began again"),
)


def metrics_page(*followed: FollowProgress) -> str:
    """Read on another thread: it takes the mappings as they are at the moment."""
    families = [
        counter(
            f"penstock_table_{name}_total",
            f"{text} since the command started.",
            ("topic",),
            [((one.topic,), float(getattr(one, field))) for one in followed],
        )
        for name, field, text in _COUNTS
    ]
    lags, positions = [], []
    for one in followed:
        at, ends = one.positions, one.ends
        lags += [((one.topic, str(part)), float(max(0, end - at.get(part, 0)))) for part, end in sorted(ends.items())]
        positions += [((one.topic, str(part)), float(offset)) for part, offset in sorted(at.items())]
    families += [
        gauge(
            "penstock_table_running",
            "1 while the topic is followed, 0 while a failure is waited out.",
            ("topic",),
            [((one.topic,), float(one.is_running)) for one in followed],
        ),
        gauge(
            "penstock_table_version", "The table's version.", ("topic",), [((o.topic,), o.version) for o in followed]
        ),
        gauge(
            "penstock_table_lag",
            "Committed records of the partition that the table does not have.",
            ("topic", "partition"),
            lags,
        ),
        gauge(
            "penstock_table_position",
            "The offset of the partition up to which the table has everything.",
            ("topic", "partition"),
            positions,
        ),
    ]
    return "".join(piece for family in families for piece in render(family))
