"""Options of a consumer, and their translation to librdkafka's settings.

Assignment strategies, by group protocol:

| strategy           | classic: chosen by a member | consumer (KIP-848): computed by the broker |
|--------------------|-----------------------------|--------------------------------------------|
| range              | range                       | range                                      |
| round-robin        | roundrobin                  | uniform                                    |
| sticky             | cooperative-sticky          | uniform                                    |
| cooperative-sticky | cooperative-sticky          | uniform                                    |

librdkafka has no eager sticky assignor; cooperative-sticky computes the same assignment and moves partitions without
stopping the others. The broker's uniform assignor is sticky.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, TypedDict

Strategy: TypeAlias = Literal["range", "round-robin", "sticky", "cooperative-sticky"]

NO_GROUP = "penstock-no-group"  # librdkafka needs a name even without a group
_CLASSIC = {
    "range": "range",
    "round-robin": "roundrobin",
    "sticky": "cooperative-sticky",
    "cooperative-sticky": "cooperative-sticky",
}


class ConsumerOptions(TypedDict, total=False):
    """Keyword arguments of a consumer. `ConsumerConfig` documents them and has their defaults."""

    group: str | None
    instance_id: str | None
    strategy: Strategy
    group_protocol: Literal["classic", "consumer"]
    auto_commit: bool
    auto_commit_interval_ms: int
    auto_offset_reset: Literal["earliest", "latest", "error"]
    isolation: Literal["read_committed", "read_uncommitted"]
    max_poll_records: int
    max_poll_interval_ms: int
    session_timeout_ms: int
    fetch_max_wait_ms: int
    request_timeout_ms: int
    metrics_interval_ms: int
    client_id: str
    begin_with: str | None
    settings: Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig:
    group: str | None = None
    """None: no group. Partitions are assigned manually and nothing is committed."""
    instance_id: str | None = None
    """A name that outlives the process (static membership): a restart within the session causes no rebalance."""
    strategy: Strategy = "cooperative-sticky"
    group_protocol: Literal["classic", "consumer"] = "classic"
    auto_commit: bool = True
    """Commit finished records. A record is finished when the application asks for the next one."""
    auto_commit_interval_ms: int = 5000
    auto_offset_reset: Literal["earliest", "latest", "error"] = "latest"
    """Where to start without a committed offset, or with one that no longer exists."""
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    """read_committed: records of aborted transactions are left out, and reading stops before an open transaction."""
    max_poll_records: int = 500
    max_poll_interval_ms: int = 300_000
    session_timeout_ms: int = 45_000
    """Only for the classic protocol; for the consumer protocol the broker decides."""
    fetch_max_wait_ms: int = 500
    request_timeout_ms: int = 30_000
    metrics_interval_ms: int = 1000
    client_id: str = "penstock"
    begin_with: str | None = None
    """A bootstrap server that is known to answer; the client learns the other brokers from it."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Other settings by librdkafka's names, for example {"security.protocol": "SSL"}."""

    @property
    def is_cooperative(self) -> bool:
        return self.group_protocol == "consumer" or _CLASSIC.get(self.strategy) == "cooperative-sticky"

    def librdkafka(self) -> dict[str, object]:
        if self.isolation not in ("read_committed", "read_uncommitted"):
            raise ValueError(f'isolation must be "read_committed" or "read_uncommitted", not {self.isolation!r}')
        if self.strategy not in _CLASSIC:
            raise ValueError(f"strategy must be one of {', '.join(_CLASSIC)}, not {self.strategy!r}")
        named: dict[str, object] = {
            "group.id": self.group or NO_GROUP,
            "enable.auto.commit": self.auto_commit and self.group is not None,
            "enable.auto.offset.store": False,  # offsets are stored when a record is finished
            "auto.commit.interval.ms": self.auto_commit_interval_ms,
            "auto.offset.reset": self.auto_offset_reset,
            "isolation.level": self.isolation,
            "max.poll.interval.ms": self.max_poll_interval_ms,
            "fetch.wait.max.ms": self.fetch_max_wait_ms,
            "enable.partition.eof": True,
            "statistics.interval.ms": self.metrics_interval_ms,
        }
        if self.instance_id is not None:
            named["group.instance.id"] = self.instance_id
        if self.group_protocol == "consumer":
            named["group.protocol"] = "consumer"
            named["group.remote.assignor"] = "range" if self.strategy == "range" else "uniform"
        else:
            named["partition.assignment.strategy"] = _CLASSIC[self.strategy]
            named["session.timeout.ms"] = self.session_timeout_ms
        return named
