"""Acknowledgements of followers: only those of the leader's own epoch count."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.api.fetch.follower_connections import FollowerConnections
from penstock.api.handlers.replica_acknowledgement import AcknowledgementHandler
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.acknowledgement import Acknowledged, acknowledgement_frame
from penstock.wire.codec import read_request_header

TOPIC = bytes([7] * 16)
EPOCH, END = 5, 40


class LedPartition:
    """The part of a partition that the handler uses, led in `EPOCH` and with records up to `END`."""

    def __init__(self) -> None:
        self.log = SimpleNamespace(log_end_offset=END)
        self.counted: list[tuple[int, int]] = []

    def check_follower(self, replica_id: int, leader_epoch: int) -> None:
        return None

    def check_leader_epoch(self, leader_epoch: int) -> None:
        """As the real one, for which a negative one is that of a client that does not say."""
        if 0 <= leader_epoch != EPOCH:
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)

    def follower_claimed(self, replica_id: int, offset: int, log_start: int, now_ms: int, *, broker_epoch: int) -> None:
        self.counted.append((replica_id, offset))


@pytest.mark.parametrize(
    ("leader_epoch", "offset", "is_counted"),
    [(EPOCH, END, True), (EPOCH, END + 1, False), (EPOCH - 1, END, False), (EPOCH + 1, END, False), (-1, END, False)],
)
def test_only_what_was_fetched_in_this_epoch_counts(leader_epoch: int, offset: int, is_counted: bool) -> None:
    partition, answers = LedPartition(), cast("list[Any]", [])
    partitions = cast("Any", SimpleNamespace(get_by_id=lambda topic_id, index: partition))
    handler = AcknowledgementHandler(
        partitions, cast("Any", SimpleNamespace(monotonic=lambda: 1.0)), FollowerConnections()
    )
    frame = acknowledgement_frame(2, 9, [Acknowledged(TOPIC, 0, leader_epoch, offset, 0)])
    connection = cast("Any", SimpleNamespace(number=1, reply=lambda slot, parts: answers.append(parts)))
    handler.receive(connection, 0, 0, memoryview(frame)[read_request_header(frame, 4)[4] :])
    assert answers == [[]]
    assert partition.counted == ([(2, offset)] if is_counted else [])
    assert handler.ignored == (not is_counted)


def test_what_was_long_under_way_on_an_older_connection_does_not_count() -> None:
    partition = LedPartition()
    partitions = cast("Any", SimpleNamespace(get_by_id=lambda topic_id, index: partition))
    clock = cast("Any", SimpleNamespace(monotonic=lambda: 1.0))
    handler = AcknowledgementHandler(partitions, clock, FollowerConnections())
    hung_up: list[int] = []
    for number, offset in ((2, END), (1, END - 1), (2, END)):
        frame = acknowledgement_frame(2, 9, [Acknowledged(TOPIC, 0, EPOCH, offset, 0)])
        hang_up = partial(hung_up.append, number)
        connection = cast("Any", SimpleNamespace(number=number, reply=lambda slot, parts: None, abort=hang_up))
        handler.receive(connection, 0, 0, memoryview(frame)[read_request_header(frame, 4)[4] :])
    assert partition.counted == [(2, END), (2, END)]
    assert hung_up == [1]
    assert handler.ignored == 1
