"""Brokers and voter addresses from the whole log, for a node that does not yet know how much of it is committed.

This is for a node that has just started: it learns the commit index from a leader, and there is no leader before the
voters have found each other. So the voters use the addresses of the whole log, as votes consider the whole log. Kafka
reads its VotersRecords in the same way. The view is used until that much is applied, or until another leader has
replaced the end of the log. Must not know: connections.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from penstock.core.metadata.image import MetadataImage
from penstock.core.metadata.records import (
    BrokerRegistered,
    BrokerUnregistered,
    PeerAddressRemoved,
    PeerAddressSet,
    decode_entry,
)
from penstock.core.raft.messages import Entry, EntryKind

RECORDS: Final = (BrokerRegistered, BrokerUnregistered, PeerAddressSet, PeerAddressRemoved)
_NAMES: Final = tuple(f'"{record.type}"'.encode() for record in RECORDS)


class LogView(Protocol):
    @property
    def applied_index(self) -> int: ...

    @property
    def unapplied(self) -> Sequence[Entry]: ...

    def has_entry(self, index: int, term: int) -> bool: ...


class LogAhead:
    def __init__(self, applied: MetadataImage, log: LogView) -> None:
        self._log = log
        entries = log.unapplied
        self._index, self._term = (entries[-1].index, entries[-1].term) if entries else (0, 0)
        self.image = image = MetadataImage()
        """Only brokers and addresses; not whether the brokers are alive."""
        image.brokers.update(applied.brokers)
        image.peers.update(applied.peers)
        for entry in entries:
            # There may be many bytes since the last snapshot, but few entries matter here.
            if entry.kind is EntryKind.DATA and any(name in entry.data for name in _NAMES):
                for record in decode_entry(entry.data):
                    if isinstance(record, RECORDS):
                        image.replay(record)

    @property
    def index(self) -> int:
        """The last index of the view; 0 if it is no longer used. Equal index and term imply equal earlier entries."""
        is_ahead = self._index > self._log.applied_index
        return self._index if is_ahead and self._log.has_entry(self._index, self._term) else 0
