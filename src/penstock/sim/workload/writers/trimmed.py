"""A topic whose oldest records are deleted, by DeleteRecords and by retention, while it is written and read.

Must not know: faults, checkers.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.sim.judges.history import History, Outcome, Place
from penstock.sim.workload.caller import TROUBLE, Caller
from penstock.sim.workload.reading.readers import Manner, Reader
from penstock.wire.apis import Api
from penstock.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from penstock.wire_client.requests.errors import check

TRIMMED = Place("trimmed", 0)
TIMEOUT_MS = 1000
RETRY_S = 0.1
RETENTION_BYTES = 6000
SETTINGS = {"internal.segment.bytes": "2048"}
TRIMMED_READS = Manner(is_trimmed=True)
RETAINED = {"retention.bytes": str(RETENTION_BYTES)}


class Trimmer:
    """Deletes up to offsets that were already read, and so are below the high watermark."""

    def __init__(self, caller: Caller, history: History) -> None:
        self._caller = caller
        self._history = history

    async def run(self, is_over: Callable[[], bool], pause_s: float, reader: Reader) -> None:
        while not is_over():
            await self._caller.pause(pause_s)
            position = reader.positions[TRIMMED]
            if position:
                await self.trim(self._caller.random.randint(position // 2, position))

    async def trim_at_last(self, offset: int) -> None:
        """Repeat until it is acknowledged."""
        while not await self.trim(offset):
            await self._caller.pause(RETRY_S)

    async def trim(self, offset: int) -> bool:
        """Return whether it was acknowledged."""
        caller = self._caller
        action = self._history.begin_admin("trim", TRIMMED.topic, value=str(offset))
        partition = DeleteRecordsPartition(partition_index=TRIMMED.partition, offset=offset)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=TRIMMED.topic, partitions=[partition])], timeout_ms=TIMEOUT_MS
        )
        try:
            leader = await caller.leader(TRIMMED)
            answer = await caller.ask(
                caller.address_of(leader.node_id), Api.DELETE_RECORDS, request, DeleteRecordsResponse, purpose="trim"
            )
            check(answer.topics[0].partitions[0].error_code)
        except TROUBLE as error:
            caller.note(error)
            self._history.end_admin(action, Outcome.UNKNOWN, str(error))
            await caller.look_again(TRIMMED)
            return False
        self._history.end_admin(action, Outcome.ACKNOWLEDGED)
        return True
