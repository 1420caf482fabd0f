"""Brokers and addresses of voters as the whole log has them, for a node that does not know how much of it is committed.

Above all one that has just started: how much is committed it hears from a leader, and there is none before the voters
have found each other. So they look for each other by all of the log, as they count votes by all of it; Kafka reads its
VotersRecords so, too. It counts until that much is applied, and no longer when the end of it turns out to have been
replaced. Must not know: connections.
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
        """Nothing but brokers and addresses, and of brokers not whether they live."""
        image.brokers.update(applied.brokers)
        image.peers.update(applied.peers)
        for entry in entries:
            # A log may have as many bytes as lie between two snapshots; few entries are of interest.
            if entry.kind is EntryKind.DATA and any(name in entry.data for name in _NAMES):
                for record in decode_entry(entry.data):
                    if isinstance(record, RECORDS):
                        image.replay(record)

    @property
    def index(self) -> int:
        """How far it reaches; 0 when it counts no more. An entry of this index and term has the same ones before it."""
        is_ahead = self._index > self._log.applied_index
        return self._index if is_ahead and self._log.has_entry(self._index, self._term) else 0
