"""A partition as coordinators see it, whose leader, in-sync replicas and high watermark a test decides."""

from __future__ import annotations

from collections import deque
from random import Random

from penstock.coordination.groups import OFFSETS_TOPIC
from penstock.model.errors import ApiError, ErrorCode
from penstock.ports.disk import Buffer
from penstock.records.batch import BatchHeader
from penstock.replica.partition import CommitCallback
from penstock.sim.machine.disk import SimDisk
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig

NOW_MS = 1_700_000_000_000
HERE, ELSEWHERE = 1, 2


class LedPartition:
    """Replicated by nobody until `replicate`: what is appended is not committed before."""

    def __init__(self, index: int = 0, disk: SimDisk | None = None, topic: str = OFFSETS_TOPIC) -> None:
        disk = disk or SimDisk(Random(1))
        disk.make_directory("/data")
        self.topic, self.topic_id, self.index = topic, b"o" * 16, index
        self.log = Log.open(
            disk,
            f"/data/{topic}-{index}",
            LogConfig(compact=True, delete=False),
            now_ms=NOW_MS,
        )
        self.high_watermark = self.log.log_end_offset
        self.leader, self.leader_epoch = HERE, 0
        self.is_deleted = False
        self.replicas: tuple[int, ...] = (HERE, ELSEWHERE)
        self.isr: tuple[int, ...] = (HERE, ELSEWHERE)
        self._awaiting: deque[tuple[int, CommitCallback]] = deque()

    def __repr__(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def is_leader(self) -> bool:
        return self.leader == HERE

    # -- what coordinators ask ----------------------------------------------------------

    def check_online(self) -> None:
        assert self.log.offline is None

    def check_min_isr(self) -> None:
        if len(self.isr) < min(2, len(self.replicas)):
            raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS)

    def append(self, header: BatchHeader, data: Buffer, now_ms: int) -> int:
        if not self.is_leader:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.log.append(header, data, self.leader_epoch, now_ms)

    def when_committed(self, offset: int, callback: CommitCallback) -> None:
        self._awaiting.append((offset, callback))

    # -- what a test decides ------------------------------------------------------------

    def replicate(self, offset: int | None = None) -> None:
        """Followers have everything below `offset`, or all."""
        self.high_watermark = self.log.log_end_offset if offset is None else offset
        while self._awaiting and self._awaiting[0][0] <= self.high_watermark:
            self._awaiting.popleft()[1](ErrorCode.NONE)

    def fail(self, code: ErrorCode) -> None:
        awaiting, self._awaiting = self._awaiting, deque()
        for _, callback in awaiting:
            callback(code)

    def lead(self, leader: int, epoch: int) -> None:
        was_leader = self.is_leader
        self.leader, self.leader_epoch = leader, epoch
        if was_leader and not self.is_leader:
            self.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def delete(self) -> None:
        self.is_deleted = True
        self.fail(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
