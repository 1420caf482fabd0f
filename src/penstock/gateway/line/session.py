"""One connection of the line protocol: it reads lines and answers them in order.

Every answer ends with one line, `OK ...` or `ERR ...`. Lines before it start with a word in capitals (`MSG`, `TOPIC`).
Records that arrive together are published together and answered in order.

Invariants: the length of a line is bounded, and a line that is too long gives an error but keeps the connection open.
A caller that speaks HTTP is disconnected. Nothing is read while answers wait to be sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from penstock.gateway.crowd import Crowd
from penstock.gateway.line import commands
from penstock.gateway.line.escaping import escape_key, escape_value
from penstock.model.errors import ApiError, ErrorCode, PenstockError
from penstock.model.new_topic import BROKER_DEFAULT, NewTopic
from penstock.model.topic_partition import TopicPartition
from penstock.ports.clock import Clock
from penstock.records.builder import Record
from penstock.wire_client.aio.cluster import AsyncCluster
from penstock.wire_client.aio.fetching import Fetched, fetch, fetch_one, list_offsets
from penstock.wire_client.aio.groups import commit, committed
from penstock.wire_client.aio.publisher import Produced, Publisher
from penstock.wire_client.aio.topics import create_topic
from penstock.wire_client.requests.errors import WireClientError
from penstock.wire_client.requests.groups import OffsetAndMetadata
from penstock.wire_client.requests.offsets import EARLIEST_MS, LATEST_MS

MAX_LINE_BYTES = 1 << 20
READ_BYTES = 64 << 10
MAX_UNANSWERED = 1000
FOLLOW_WAIT_MS = 10_000
# How long an answer waits for a caller that does not read.
UNREAD_S = 60.0


class LineTooLong(Exception):
    pass


class Attention:
    """Tells the `Crowd` whether this session waits for its caller."""

    def __init__(self, crowd: Crowd[asyncio.Task[None]], task: asyncio.Task[None]) -> None:
        self._crowd = crowd
        self._task = task
        self._loop = task.get_loop()

    def wait(self, has_begun: bool) -> None:
        """Called before a read. `has_begun`: part of a line has arrived."""
        if has_begun:
            self._crowd.begins(self._task, self._loop.time())
        else:
            self._crowd.is_idle(self._task, self._loop.time())

    def work(self) -> None:
        self._crowd.is_busy(self._task)


class Session:
    def __init__(
        self,
        cluster: AsyncCluster,
        producer: Publisher,
        clock: Clock,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        attention: Attention,
    ) -> None:
        self._cluster = cluster
        self._producer = producer
        self._clock = clock
        self._reader = reader
        self._writer = writer
        self._attention = attention
        self._buffer = bytearray()
        self._scanned = 0
        self._discarding = False
        self._eof = False
        self._unanswered: list[asyncio.Future[Produced]] = []

    async def run(self) -> None:
        """Serves until QUIT or the end of the input."""
        while True:
            try:
                line = await self._next_line()
            except LineTooLong:
                await self._flush()
                self._say(f"ERR a line must have at most {MAX_LINE_BYTES} bytes")
                continue
            if line is None:
                break
            self._attention.work()
            if not await self._handle(line):
                break
        await self._flush()

    # -- lines --------------------------------------------------------------------------

    async def _next_line(self) -> bytes | None:
        """The next line, or None at the end of the input. Answers earlier publishes before it waits.

        Raises LineTooLong as soon as a line is too long; the rest of the line is discarded.
        """
        while True:
            end = self._buffer.find(b"\n", self._scanned)
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                self._scanned = 0
                if self._discarding:
                    self._discarding = False
                    continue
                if end > MAX_LINE_BYTES:
                    raise LineTooLong
                return line
            self._scanned = len(self._buffer)
            if self._scanned > MAX_LINE_BYTES:
                self._buffer.clear()
                self._scanned = 0
                if not self._discarding:
                    self._discarding = True
                    raise LineTooLong
            if self._eof:
                return self._last_line()
            await self._flush()
            self._attention.wait(has_begun=bool(self._buffer) or self._discarding)
            data = await self._reader.read(READ_BYTES)
            self._eof = not data
            self._buffer += data

    def _last_line(self) -> bytes | None:
        """The rest of the input without a line feed counts as a line, as from printf."""
        line = bytes(self._buffer)
        self._buffer.clear()
        self._scanned = 0
        return None if self._discarding else line or None

    def _say(self, text: str) -> None:
        self._write(text.encode() + b"\n")

    def _write(self, data: bytes) -> None:
        """Raises ConnectionError after the caller hung up: asyncio's own error there is of another type."""
        if self._writer.is_closing():
            raise ConnectionResetError("the caller is gone")
        self._writer.write(data)

    async def _flush(self) -> None:
        """Answers all publishes in order, and waits until the answers are sent."""
        for future in self._unanswered:
            try:
                produced = await future
            except PenstockError as error:
                self._say(_refusal(error))
            else:
                self._say(f"OK {produced.partition} {produced.offset}")
        self._unanswered.clear()
        await self._drain()

    async def _drain(self) -> None:
        """Raises ConnectionError if the caller has read nothing for UNREAD_S."""
        try:
            async with asyncio.timeout(UNREAD_S):
                await self._writer.drain()
        except TimeoutError:
            self._writer.transport.abort()
            raise ConnectionAbortedError(f"the caller read nothing for {UNREAD_S:g} s") from None

    # -- commands -----------------------------------------------------------------------

    async def _handle(self, line: bytes) -> bool:
        """Runs one line. False means that the connection is to be closed."""
        try:
            command = commands.parse(line)
            if isinstance(command, commands.Publish):
                await self._publish(command)
                return True
            await self._flush()
            if isinstance(command, commands.Quit):
                self._say("OK bye")
                return False
            await self._answer(command)
        except commands.SpokenHttp as error:
            await self._flush()
            self._say(f"ERR {error}")
            return False
        except commands.BadCommand as error:
            await self._flush()
            self._say(f"ERR {error}")
        except (ApiError, WireClientError) as error:
            await self._flush()
            self._say(_refusal(error))
        return True

    async def _publish(self, command: commands.Publish) -> None:
        if len(self._unanswered) >= MAX_UNANSWERED:
            await self._flush()
        topic = await self._cluster.topic(command.topic, create=True)
        record = Record(command.key, command.value, timestamp_ms=self._clock.now_ms())
        self._unanswered.append(self._producer.enqueue(topic, record, command.partition))

    async def _answer(self, command: commands.Command) -> None:
        match command:
            case commands.Consume():
                await self._consume(command)
            case commands.Follow():
                await self._follow(command)
            case commands.Commit(group, topic, partition, offset):
                await self._existing(topic, partition)
                await commit(self._cluster, group, {TopicPartition(topic, partition): OffsetAndMetadata(offset, "")})
                self._say(f"OK {offset}")
            case commands.Offset(group, topic, partition):
                await self._existing(topic, partition)
                key = TopicPartition(topic, partition)
                found = (await committed(self._cluster, group, [key])).get(key)
                self._say("OK none" if found is None else f"OK {found.offset}")
            case commands.Topics():
                shown = [topic for topic in (await self._cluster.describe()).topics if not topic.is_internal]
                for topic_info in shown:
                    self._say(f"TOPIC {topic_info.name} {len(topic_info.partitions)}")
                self._say(f"OK {len(shown)}")
            case commands.Create(topic, partitions):
                count = await create_topic(
                    self._cluster, NewTopic(topic, BROKER_DEFAULT if partitions is None else partitions)
                )
                self._say(f"OK {topic} {count}")
            case commands.Help():
                self._say(commands.HELP)
                self._say("OK")

    async def _existing(self, topic: str, partition: int) -> None:
        await self._cluster.leader(topic, partition)

    # -- reading ------------------------------------------------------------------------

    async def _consume(self, command: commands.Consume) -> None:
        positions = await self._positions(command.topic, command.partition, command.where)
        count = 0
        # Up to the present end: on a busy topic the read would never finish otherwise.
        ends = await list_offsets(self._cluster, dict.fromkeys(positions, LATEST_MS))
        for partition in positions:
            while count < command.max_records:
                offset = positions[partition]
                if offset == ends[partition].offset:
                    break
                fetched = await fetch_one(self._cluster, partition, offset, max_wait_ms=0)
                records = [record for record in fetched.records if record.offset < ends[partition].offset]
                cut = records[: command.max_records - count]
                self._say_records(partition.partition, cut)
                await self._drain()
                count += len(cut)
                if len(cut) < len(fetched.records):
                    positions[partition] = cut[-1].offset + 1 if cut else ends[partition].offset
                    break
                if fetched.next_offset == offset:
                    break
                positions[partition] = fetched.next_offset
        self._say(_summary(count, positions))

    async def _follow(self, command: commands.Follow) -> None:
        """Sends new records until a line or the end of the input arrives. The line is then run as a command."""
        positions = await self._positions(command.topic, command.partition, command.where)
        count = 0
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(self._line_comes())]
        stop = tasks[0]
        try:
            while True:
                batch = asyncio.create_task(self._arrived(positions))
                tasks[1:] = [batch]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if stop.done():
                    break
                for partition, fetched in batch.result().items():
                    self._say_records(partition.partition, fetched.records)
                    positions[partition] = fetched.next_offset
                    count += len(fetched.records)
                await self._drain()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._say(_summary(count, positions))

    async def _line_comes(self) -> None:
        """Waits for a line, and leaves it in the buffer."""
        while b"\n" not in self._buffer and not self._eof and len(self._buffer) <= MAX_LINE_BYTES:
            data = await self._reader.read(READ_BYTES)
            self._eof = not data
            self._buffer += data

    async def _arrived(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, Fetched]:
        while True:
            found = await fetch(self._cluster, positions, max_wait_ms=FOLLOW_WAIT_MS)
            for partition, fetched in found.items():
                if fetched.error is not ErrorCode.NONE:
                    raise ApiError(fetched.error, f"{partition.topic}-{partition.partition}: {fetched.error.name}")
            if found:
                return found

    async def _positions(self, topic: str, partition: int | None, where: commands.Where) -> dict[TopicPartition, int]:
        info = await self._cluster.topic(topic)
        if partition is None:
            partitions = [TopicPartition(topic, entry.partition) for entry in info.partitions]
        else:
            await self._existing(topic, partition)
            partitions = [TopicPartition(topic, partition)]
        if isinstance(where, int):
            return dict.fromkeys(partitions, where)
        if isinstance(where, commands.AtTime):
            found = await list_offsets(self._cluster, dict.fromkeys(partitions, where.timestamp_ms))
            ends = await list_offsets(self._cluster, dict.fromkeys(partitions, LATEST_MS))
            return {p: found[p].offset if found[p].offset >= 0 else ends[p].offset for p in partitions}
        end = EARLIEST_MS if where == commands.EARLIEST else LATEST_MS
        found = await list_offsets(self._cluster, dict.fromkeys(partitions, end))
        return {p: found[p].offset for p in partitions}

    def _say_records(self, partition: int, records: list[Record]) -> None:
        if records:
            self._write(
                b"".join(
                    b"MSG %d %d %s %s\n"
                    % (partition, record.offset, escape_key(record.key), escape_value(record.value))
                    for record in records
                )
            )


def _summary(count: int, positions: Mapping[TopicPartition, int]) -> str:
    """The number of records, and the next offset of each partition."""
    return " ".join([f"OK {count}", *(f"{key.partition}:{offset}" for key, offset in positions.items())])


def _refusal(error: PenstockError) -> str:
    """The error as one line, also if the broker's message has several."""
    return "ERR " + " ".join(str(error).split())
