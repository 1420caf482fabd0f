"""The members of the cluster: a value, its bytes in a log entry, and its history along the log.

A configuration takes effect when its entry is in the log, committed or not, and loses effect when
the entry is truncated. `ConfigurationHistory` keeps enough to go back. Must not know: terms, roles,
messages.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeAlias

NodeId: TypeAlias = int


@dataclass(frozen=True, slots=True)
class Configuration:
    """Voters decide; observers only receive. Both in ascending order."""

    voters: tuple[NodeId, ...]
    observers: tuple[NodeId, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "voters", tuple(sorted(self.voters)))
        object.__setattr__(self, "observers", tuple(sorted(self.observers)))
        members = self.voters + self.observers
        if len(set(members)) != len(members):
            raise ValueError(f"a server is listed twice: {self}")

    @property
    def members(self) -> tuple[NodeId, ...]:
        return self.voters + self.observers

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    def is_majority(self, nodes: Collection[NodeId]) -> bool:
        return bool(self.voters) and sum(voter in nodes for voter in self.voters) >= self.majority

    def quorum_value(self, values: dict[NodeId, int]) -> int:
        """The largest number that a majority of voters has reached; a missing voter counts as 0."""
        reached = sorted((values.get(voter, 0) for voter in self.voters), reverse=True)
        return reached[self.majority - 1] if reached else 0

    def encode(self) -> bytes:
        return f"voters={_joined(self.voters)} observers={_joined(self.observers)}".encode("ascii")

    @staticmethod
    def decode(data: bytes) -> Configuration:
        voters, observers = data.decode("ascii").split(" ")
        return Configuration(_split(voters.removeprefix("voters=")), _split(observers.removeprefix("observers=")))

    def __str__(self) -> str:
        observers = f" observers {_joined(self.observers)}" if self.observers else ""
        return f"voters {_joined(self.voters)}{observers}"


def _joined(nodes: tuple[NodeId, ...]) -> str:
    return ",".join(map(str, nodes))


def _split(text: str) -> tuple[NodeId, ...]:
    return tuple(int(part) for part in text.split(",") if part)


class ConfigurationHistory:
    """The configurations still in the log: `(index, configuration)`, oldest first, never empty."""

    __slots__ = ("_known",)

    def __init__(self, index: int, configuration: Configuration) -> None:
        self._known = [(index, configuration)]

    @property
    def latest(self) -> Configuration:
        return self._known[-1][1]

    @property
    def latest_index(self) -> int:
        return self._known[-1][0]

    def at(self, index: int) -> Configuration:
        """The configuration in effect when the log ended at index."""
        return next(configuration for known, configuration in reversed(self._known) if known <= index)

    def since(self, index: int) -> list[Configuration]:
        """The configuration in effect when the log ended at index, and all later ones."""
        return [self.at(index), *(configuration for known, configuration in self._known if known > index)]

    def append(self, index: int, configuration: Configuration) -> None:
        self._known.append((index, configuration))

    def truncate_from(self, index: int) -> bool:
        """Go back to the configuration in effect before index. Return True if that changed it."""
        kept = [item for item in self._known if item[0] < index]
        changed = len(kept) < len(self._known)
        self._known = kept
        return changed

    def forget_before(self, index: int) -> None:
        """Keep the configuration in effect at index and drop older ones, which are no longer needed."""
        while len(self._known) > 1 and self._known[1][0] <= index:
            del self._known[0]
