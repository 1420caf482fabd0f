"""The first offset of each leader epoch: `leader-epoch-checkpoint`, in Kafka's text format.

Epochs and start offsets both increase. The file may lag behind memory. It is written at a checkpoint or close, before
the recovery point passes missing entries; the batches after that point contain their epochs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from penstock.model.errors import StorageError

FILE_NAME = "leader-epoch-checkpoint"
UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class LeaderEpochs:
    __slots__ = ("_epochs", "_starts", "latest", "stable_version", "version")

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.latest = UNDEFINED_EPOCH
        self.version = 0  # grows with every change
        self.stable_version = 0  # the version that is stable in the file

    @property
    def is_dirty(self) -> bool:
        return self.version != self.stable_version

    def __len__(self) -> int:
        return len(self._epochs)

    def copy(self) -> LeaderEpochs:
        """Return a copy for a thread, which does not change."""
        result = LeaderEpochs()
        result._epochs, result._starts, result.latest = self._epochs[:], self._starts[:], self.latest
        return result

    @staticmethod
    def of(entries: Iterable[tuple[int, int]]) -> LeaderEpochs:
        """The inverse of `entries`."""
        result = LeaderEpochs()
        for epoch, start_offset in entries:
            result.assign(epoch, start_offset)
        return result

    def entries(self) -> list[tuple[int, int]]:
        """(epoch, first offset), oldest first."""
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> None:
        """Batches from `start_offset` on have `epoch`. An epoch that is not newer changes nothing."""
        if epoch <= self.latest:
            return
        while self._starts and self._starts[-1] >= start_offset:  # an epoch without batches
            self._starts.pop()
            self._epochs.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.latest = epoch
        self.version += 1

    def epoch_of(self, offset: int) -> int:
        at = bisect_right(self._starts, offset) - 1
        return self._epochs[at] if at >= 0 else UNDEFINED_EPOCH

    def contradicts(self, epoch: int, last_offset: int) -> bool:
        """Whether a batch that ends with `last_offset` cannot have `epoch`, which no checksum covers."""
        known = self.epoch_of(last_offset)
        return epoch < UNDEFINED_EPOCH or known not in (UNDEFINED_EPOCH, epoch)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(the largest known epoch up to `epoch`, its end offset), as OffsetForLeaderEpoch answers."""
        if epoch == UNDEFINED_EPOCH:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self.latest:
            return epoch, log_end_offset
        at = bisect_right(self._epochs, epoch)
        if at == len(self._epochs):  # newer than all known epochs
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if at == 0:  # older than all known epochs
            return epoch, self._starts[0]
        return self._epochs[at - 1], self._starts[at]

    def truncate_from_end(self, end_offset: int) -> None:
        """Drop epochs that start at `end_offset` or later."""
        while self._starts and self._starts[-1] >= end_offset:
            self._starts.pop()
            self._epochs.pop()
            self.version += 1
        self.latest = self._epochs[-1] if self._epochs else UNDEFINED_EPOCH

    def truncate_from_start(self, start_offset: int) -> None:
        """Drop epochs that end before `start_offset`; the epoch there now starts with it."""
        at = bisect_right(self._starts, start_offset) - 1
        if at > 0 or (at == 0 and self._starts[0] < start_offset):
            del self._starts[:at], self._epochs[:at]
            self._starts[0] = start_offset
            self.version += 1

    def encode(self) -> bytes:
        lines = [f"{epoch} {start}\n" for epoch, start in self.entries()]
        return f"0\n{len(lines)}\n{''.join(lines)}".encode()

    @classmethod
    def decode(cls, data: bytes, path: str) -> LeaderEpochs:
        result = cls()
        try:
            version, count, *lines = data.decode("ascii").splitlines()
            if int(version) != 0 or int(count) != len(lines) or not data.endswith(b"\n"):
                raise ValueError("wrong version or number of lines")
            for line in lines:
                epoch, start = map(int, line.split())
                result.assign(epoch, start)
        except ValueError as error:
            raise StorageError(f"{path} is damaged: {error}") from error
        result.stable_version = result.version
        return result
