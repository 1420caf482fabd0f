"""Positions of a consumer instance: they move when records are handed out, not when they are read."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from penstock.gateway.http import instances
from penstock.gateway.http.formats import Format
from penstock.gateway.http.instances import Instance, InstanceSettings
from penstock.model.errors import ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.records.builder import Record
from penstock.wire_client.aio.cluster import AsyncCluster
from penstock.wire_client.aio.fetching import Fetched

PARTITION = TopicPartition("t", 0)


class Log:
    """Values of one partition; None is a control record. `asked` is where each fetch began."""

    def __init__(self, *values: bytes | None) -> None:
        self.values = values
        self.asked: list[int] = []

    async def fetch(
        self, cluster: AsyncCluster, positions: Mapping[TopicPartition, int], **_: object
    ) -> dict[TopicPartition, Fetched]:
        offset = positions[PARTITION]
        self.asked.append(offset)
        await asyncio.sleep(0)
        if offset == len(self.values):
            return {}
        value = self.values[offset]
        records = [] if value is None else [Record(None, value, offset=offset)]
        return {PARTITION: Fetched(records, offset + 1, len(self.values), 0, ErrorCode.NONE)}


def read(log: Log, monkeypatch: pytest.MonkeyPatch, *taken: bool) -> list[list[bytes | None]]:
    """The records of each read; then its caller takes them, or is gone."""
    monkeypatch.setattr(instances, "fetch", log.fetch)
    cluster: Any = None

    async def run() -> list[list[bytes | None]]:
        settings = InstanceSettings(Format.JSON, reset="none", auto_commit=False, min_bytes=1, timeout_ms=0)
        instance = Instance(cluster, "g", "one", settings)
        instance.assign([PARTITION])
        instance.seek({PARTITION: 0})
        seen = []
        for is_taken in taken:
            found = await instance.read(0, 1000)
            seen.append([record.value for fetched in found.values() for record in fetched.records])
            if is_taken:
                instance.hand_out(found)
        return seen

    return asyncio.run(run())


def test_what_nobody_took_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = read(Log(b"a", b"b"), monkeypatch, False, False, True, False, True, True)
    assert seen == [[b"a"], [b"a"], [b"a"], [b"b"], [b"b"], []]


def test_what_nobody_needs_to_see_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(None, b"b")
    assert read(log, monkeypatch, True, False, True) == [[], [b"b"], [b"b"]]
    assert log.asked == [0, 1, 1]
