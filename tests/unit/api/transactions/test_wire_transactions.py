"""The transaction coordinator over the wire: every version of its APIs, and the codes that clients of each know."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from group_client import GroupClient
from transaction_client import TransactionClient, codes_of_brokers
from wire_client import WireClient, values

from penstock.model.errors import ErrorCode
from penstock.testing import Broker
from penstock.wire.apis import Api
from penstock.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from penstock.wire.messages.api_versions import ApiVersionsRequest
from penstock.wire.messages.describe_transactions import DescribeTransactionsRequest
from penstock.wire.messages.init_producer_id import InitProducerIdRequest
from penstock.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from penstock.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)

FENCED, OLD_EPOCH = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.fixture
def txn(wire: WireClient) -> TransactionClient:
    client = TransactionClient(wire)
    client.find()
    return client


@pytest.mark.parametrize("version", range(1, 7))
def test_the_coordinator_is_found(wire: WireClient, wire_broker: Broker, version: int) -> None:
    response = TransactionClient(wire).find(version)
    found = response.coordinators[0] if version >= 4 else response
    assert (found.error_code, found.host, found.port) == (0, "127.0.0.1", wire_broker.port)


class TestInitProducerId:
    @pytest.mark.parametrize("version", range(7))
    def test_each_producer_gets_a_higher_epoch(self, txn: TransactionClient, version: int) -> None:
        first, second = txn.try_init(version), txn.try_init(version)
        assert (first.error_code, first.producer_epoch) == (0, 0)
        assert (second.error_code, second.producer_id, second.producer_epoch) == (0, first.producer_id, 1)

    @pytest.mark.parametrize("version", [3, 4, 5, 6])
    def test_a_producer_goes_on_after_an_error(self, txn: TransactionClient, version: int) -> None:
        first = txn.try_init(version)
        going_on = {"producer_id": first.producer_id, "epoch": first.producer_epoch}
        second = txn.try_init(version, **going_on)
        assert (second.producer_id, second.producer_epoch) == (first.producer_id, 1)
        again = txn.try_init(version, **going_on)
        assert (again.producer_id, again.producer_epoch) == (first.producer_id, 1)

    @pytest.mark.parametrize(("version", "code"), [(3, OLD_EPOCH), (4, FENCED), (5, FENCED), (6, FENCED)])
    def test_one_that_was_replaced_is_fenced(self, txn: TransactionClient, version: int, code: ErrorCode) -> None:
        first = txn.try_init()
        txn.try_init()
        refused = txn.try_init(version, producer_id=first.producer_id, epoch=first.producer_epoch)
        assert (refused.error_code, refused.producer_id, refused.producer_epoch) == (code, -1, -1)

    @pytest.mark.parametrize("version", range(7))
    @pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
    def test_a_time_out_that_is_too_long_is_refused(
        self, txn: TransactionClient, version: int, timeout_ms: int
    ) -> None:
        assert txn.try_init(version, timeout_ms=timeout_ms).error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT

    @pytest.mark.parametrize("version", range(7))
    def test_an_empty_id_is_refused(self, wire: WireClient, txn: TransactionClient, version: int) -> None:
        txn.name = ""
        assert txn.try_init(version).error_code == ErrorCode.INVALID_REQUEST

    @pytest.mark.parametrize(("producer_id", "epoch"), [(5, -1), (-1, 5)])
    def test_half_a_producer_is_refused(self, txn: TransactionClient, producer_id: int, epoch: int) -> None:
        assert txn.try_init(producer_id=producer_id, epoch=epoch).error_code == ErrorCode.INVALID_REQUEST

    def test_the_open_transaction_of_the_producer_before_is_aborted(self, wire: WireClient) -> None:
        topic = wire.create_topic()
        first = TransactionClient(wire).init()
        assert first.produce(topic, b"left open").error_code == 0
        second = TransactionClient(wire, first.name).init()
        assert (second.producer_id, second.epoch) == (first.producer_id, 2)
        assert second.describe().transaction_state == "Empty"
        assert wire.fetch(topic, isolation_level=1).last_stable_offset == 2
        assert first.produce(topic, b"late").error_code == OLD_EPOCH
        assert first.try_end().error_code == FENCED

    def test_before_the_coordinator_was_looked_for_there_is_none(self) -> None:
        with Broker() as broker, WireClient(broker.port) as client:
            assert TransactionClient(client).try_init().error_code == ErrorCode.NOT_COORDINATOR


class TestAddPartitionsToTxn:
    @pytest.mark.parametrize("version", range(4))
    def test_partitions_are_part_of_the_transaction(self, wire: WireClient, version: int) -> None:
        one, two = wire.create_topic(partitions=3), wire.create_topic()
        txn = TransactionClient(wire).init()
        places = (one, 0), (one, 2), (two, 0)
        assert txn.add(*places, version=version) == dict.fromkeys(places, 0)
        described = txn.describe()
        assert described.transaction_state == "Ongoing"
        assert {topic.topic: list(topic.partitions) for topic in described.topics} == {one: [0, 2], two: [0]}

    @pytest.mark.parametrize("version", range(4))
    def test_with_a_partition_that_does_not_exist_nothing_is_added(self, wire: WireClient, version: int) -> None:
        topic = wire.create_topic()
        GroupClient(wire, "g").find()
        txn = TransactionClient(wire).init()
        given = txn.add((topic, 0), (topic, 1), ("no-such-topic", 0), ("__consumer_offsets", 0), version=version)
        assert given == {
            (topic, 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
            (topic, 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("no-such-topic", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("__consumer_offsets", 0): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        }
        assert txn.describe().transaction_state == "Empty"

    @pytest.mark.parametrize(("version", "code"), [(0, OLD_EPOCH), (1, OLD_EPOCH), (2, FENCED), (3, FENCED)])
    def test_one_that_was_replaced_is_fenced(self, wire: WireClient, version: int, code: ErrorCode) -> None:
        topic = wire.create_topic()
        first = TransactionClient(wire).init()
        TransactionClient(wire, first.name).init()
        assert first.add((topic, 0), version=version) == {(topic, 0): code}

    @pytest.mark.parametrize("version", range(4))
    def test_a_producer_id_that_is_not_its_own_is_refused(self, wire: WireClient, version: int) -> None:
        topic = wire.create_topic()
        txn = TransactionClient(wire).init()
        txn.producer_id += 100_000
        assert txn.add((topic, 0), version=version) == {(topic, 0): ErrorCode.INVALID_PRODUCER_ID_MAPPING}
        stranger = TransactionClient(wire)
        stranger.use(5, 0)
        assert stranger.add((topic, 0), version=version) == {(topic, 0): ErrorCode.INVALID_PRODUCER_ID_MAPPING}

    @pytest.mark.parametrize("version", [4, 5])
    def test_brokers_ask_for_many_transactions_at_once(self, wire: WireClient, version: int) -> None:
        topic = wire.create_topic(partitions=2)
        one, two = TransactionClient(wire).init(), TransactionClient(wire).init()
        fenced = TransactionClient(wire).init()
        fenced.epoch += 1
        one.add((topic, 0))
        asked = [
            one.asked_of_brokers((topic, 0), (topic, 1), verify_only=True),
            two.asked_of_brokers((topic, 1), verify_only=False),
            fenced.asked_of_brokers((topic, 1), verify_only=False),
        ]
        response = wire.call(Api.ADD_PARTITIONS_TO_TXN, version, AddPartitionsToTxnRequest(transactions=asked))
        assert response.error_code == 0
        assert [result.transactional_id for result in response.results_by_transaction] == [
            one.name,
            two.name,
            fenced.name,
        ]
        assert codes_of_brokers(response) == [
            {(topic, 0): 0, (topic, 1): ErrorCode.TRANSACTION_ABORTABLE},
            {(topic, 1): 0},
            {(topic, 1): FENCED},
        ]
        assert [list(each.partitions) for each in one.describe().topics] == [[0]], "verified and not added"
        assert two.describe().transaction_state == "Ongoing"


class TestAddOffsetsToTxn:
    @pytest.mark.parametrize("version", range(5))
    def test_the_partition_of_the_group_is_part_of_the_transaction(self, wire: WireClient, version: int) -> None:
        txn = TransactionClient(wire).init()
        assert txn.add_offsets("g", version) == 0
        assert [(topic.topic, list(topic.partitions)) for topic in txn.describe().topics] == [
            ("__consumer_offsets", [103 % 50])
        ]

    @pytest.mark.parametrize(
        ("version", "code"), [(0, OLD_EPOCH), (1, OLD_EPOCH), (2, FENCED), (3, FENCED), (4, FENCED)]
    )
    def test_one_that_was_replaced_is_fenced(self, wire: WireClient, version: int, code: ErrorCode) -> None:
        first = TransactionClient(wire).init()
        TransactionClient(wire, first.name).init()
        assert first.add_offsets("g", version) == code

    @pytest.mark.parametrize("version", range(5))
    def test_a_group_without_a_name_is_refused(self, wire: WireClient, version: int) -> None:
        assert TransactionClient(wire).init().add_offsets("", version) == ErrorCode.INVALID_GROUP_ID


class TestEndTxn:
    @pytest.mark.parametrize("commit", [True, False])
    @pytest.mark.parametrize("version", range(6))
    def test_a_transaction_ends_and_the_next_one_begins(self, wire: WireClient, version: int, commit: bool) -> None:
        topic = wire.create_topic()
        txn = TransactionClient(wire).init()
        produce_version = 12 if version >= 5 else 11
        for number in range(2):
            if version < 5:
                assert txn.add((topic, 0)) == {(topic, 0): 0}
            assert txn.produce(topic, b"%d" % number, version=produce_version).error_code == 0
            before = txn.epoch
            txn.end(commit=commit, version=version)
            assert txn.epoch == (before + 1 if version >= 5 else before)
            assert txn.describe().transaction_state == ("CompleteCommit" if commit else "CompleteAbort")
        found = wire.fetch(topic, isolation_level=1)
        assert (found.high_watermark, found.last_stable_offset) == (4, 4)

    @pytest.mark.parametrize("version", range(6))
    def test_the_same_end_again_is_confirmed_and_the_other_one_refused(self, wire: WireClient, version: int) -> None:
        topic = wire.create_topic()
        txn = TransactionClient(wire).init()
        txn.add((topic, 0))
        ended = txn.try_end(version=version)
        for _ in range(1_000):
            if txn.describe().transaction_state == "CompleteCommit":
                break
        assert txn.try_end(version=version) == ended
        assert txn.try_end(commit=False, version=version).error_code == ErrorCode.INVALID_TXN_STATE

    @pytest.mark.parametrize(
        ("version", "code"), [(0, OLD_EPOCH), (1, OLD_EPOCH), (2, FENCED), (3, FENCED), (4, FENCED), (5, FENCED)]
    )
    def test_one_that_was_replaced_is_fenced(self, wire: WireClient, version: int, code: ErrorCode) -> None:
        first = TransactionClient(wire).init()
        TransactionClient(wire, first.name).init()
        if version >= 5:
            first.epoch -= 1  # one epoch below the present one is that of a repetition
        assert first.try_end(version=version).error_code == code

    @pytest.mark.parametrize("version", range(5))
    def test_a_transaction_that_has_not_begun_cannot_end(self, wire: WireClient, version: int) -> None:
        txn = TransactionClient(wire).init()
        for commit in (True, False):
            assert txn.try_end(commit=commit, version=version).error_code == ErrorCode.INVALID_TXN_STATE

    def test_from_version_5_on_an_abort_without_partitions_raises_the_epoch(self, wire: WireClient) -> None:
        txn = TransactionClient(wire).init()
        assert txn.try_end().error_code == ErrorCode.INVALID_TXN_STATE
        aborted = txn.try_end(commit=False)
        assert (aborted.error_code, aborted.producer_id, aborted.producer_epoch) == (0, txn.producer_id, 1)

    @pytest.mark.parametrize("version", range(6))
    def test_unknown_ids_are_refused(self, wire: WireClient, version: int) -> None:
        stranger = TransactionClient(wire)
        stranger.use(5, 0)
        assert stranger.try_end(version=version).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        stranger.name = ""
        assert stranger.try_end(version=version).error_code == ErrorCode.INVALID_REQUEST


class TestWriteTxnMarkers:
    @pytest.mark.parametrize("version", [1, 2])
    def test_each_partition_has_its_own_answer(self, wire: WireClient, version: int) -> None:
        topic, other = wire.create_topic(partitions=2), wire.create_topic()
        txn = TransactionClient(wire).init()
        assert txn.produce(topic, b"open").error_code == 0
        assert wire.fetch(topic, isolation_level=1).last_stable_offset == 0
        given = txn.markers((topic, 0), (topic, 1), (other, 0), (topic, 9), ("no-such-topic", 0), version=version)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert given == {
            (topic, 0): 0,
            (topic, 1): 0,
            (other, 0): 0,
            (topic, 9): unknown,
            ("no-such-topic", 0): unknown,
        }
        assert wire.fetch(topic, isolation_level=1).last_stable_offset == 2

    def test_a_marker_of_version_2_that_comes_again_is_confirmed(self, wire: WireClient) -> None:
        topic = wire.create_topic()
        txn = TransactionClient(wire).init()
        txn.produce(topic, b"open")
        for _ in range(2):
            given = txn.markers((topic, 0), producer_epoch=txn.epoch + 1, transaction_version=2)
            assert given == {(topic, 0): 0}
        assert wire.fetch(topic).high_watermark == 2

    @pytest.mark.parametrize("version", [1, 2])
    def test_what_is_older_than_the_last_one_is_refused(self, wire: WireClient, version: int) -> None:
        topic = wire.create_topic()
        txn = TransactionClient(wire).init()
        assert txn.markers((topic, 0), version=version, producer_epoch=3, coordinator_epoch=5) == {(topic, 0): 0}
        assert txn.markers((topic, 0), version=version, producer_epoch=2) == {(topic, 0): OLD_EPOCH}
        given = txn.markers((topic, 0), version=version, producer_epoch=3, coordinator_epoch=4)
        assert given == {(topic, 0): ErrorCode.TRANSACTION_COORDINATOR_FENCED}


class TestTxnOffsetCommit:
    @pytest.mark.parametrize("version", range(6))
    @pytest.mark.parametrize("commit", [True, False])
    def test_offsets_count_when_the_transaction_commits(self, wire: WireClient, version: int, commit: bool) -> None:
        topic = wire.create_topic(partitions=2)
        group = GroupClient(wire, f"g-{topic}")
        group.find()
        group.commit(topic, {0: 1})
        txn = TransactionClient(wire).init()
        if version < 5:
            assert txn.add_offsets(group.group) == 0
        assert txn.commit_offsets(group.group, topic, {0: 5, 1: 6}, version) == {0: 0, 1: 0}
        assert {index: offset for index, (offset, _) in group.committed(topic, [0, 1]).items()} == {0: 1, 1: -1}
        txn.end(commit=commit, version=5 if version == 5 else 3)
        expected = {0: 5, 1: 6} if commit else {0: 1, 1: -1}
        assert {index: offset for index, (offset, _) in group.committed(topic, [0, 1]).items()} == expected

    @pytest.mark.parametrize(
        ("version", "code"),
        [
            *((version, ErrorCode.INVALID_TXN_STATE) for version in range(4)),
            (4, ErrorCode.TRANSACTION_ABORTABLE),
        ],
    )
    def test_a_group_that_was_not_added_is_refused(self, wire: WireClient, version: int, code: ErrorCode) -> None:
        topic = wire.create_topic()
        group = GroupClient(wire, f"g-{topic}")
        group.find()
        txn = TransactionClient(wire).init()
        assert txn.commit_offsets(group.group, topic, {0: 5}, version) == {0: code}
        assert txn.describe().transaction_state == "Empty"
        assert group.committed(topic, [0]) == {0: (-1, "")}

    @pytest.mark.parametrize("version", range(6))
    def test_one_that_was_replaced_is_fenced(self, wire: WireClient, version: int) -> None:
        topic = wire.create_topic()
        GroupClient(wire, "g").find()
        first = TransactionClient(wire).init()
        TransactionClient(wire, first.name).init()
        assert first.commit_offsets("g", topic, {0: 5}, version) == {0: OLD_EPOCH}

    @pytest.mark.parametrize("version", range(6))
    def test_a_topic_that_does_not_exist_is_refused_alone(self, wire: WireClient, version: int) -> None:
        topic = wire.create_topic()
        GroupClient(wire, "g").find()
        txn = TransactionClient(wire).init()
        txn.add_offsets("g")
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert txn.commit_offsets("g", topic, {0: 5, 7: 5}, version) == {0: 0, 7: unknown}
        assert txn.commit_offsets("g", "no-such-topic", {0: 5}, version) == {0: unknown}

    @pytest.mark.parametrize("version", [3, 4, 5])
    def test_the_member_is_checked(self, wire: WireClient, version: int) -> None:
        topic = wire.create_topic()
        group = GroupClient(wire, f"g-{topic}")
        group.find()
        joined = group.stable()
        txn = TransactionClient(wire).init()
        txn.add_offsets(group.group)
        member = {"member_id": joined.member_id, "generation_id": joined.generation_id}
        assert txn.commit_offsets(group.group, topic, {0: 5}, version, **member) == {0: 0}
        stale = {**member, "generation_id": joined.generation_id - 1}
        given = txn.commit_offsets(group.group, topic, {0: 6}, version, **stale)
        assert given == {0: ErrorCode.ILLEGAL_GENERATION}
        stranger = {**member, "member_id": "somebody-else"}
        given = txn.commit_offsets(group.group, topic, {0: 6}, version, **stranger)
        assert given == {0: ErrorCode.UNKNOWN_MEMBER_ID}
        txn.end(version=5 if version == 5 else 3)
        assert group.committed(topic, [0]) == {0: (5, "")}

    @pytest.mark.parametrize("version", [7, 8, 9])
    def test_a_reader_that_wants_what_is_stable_is_told_to_wait(self, wire: WireClient, version: int) -> None:
        topic = wire.create_topic(partitions=2)
        group = GroupClient(wire, f"g-{topic}")
        group.find()
        group.commit(topic, {0: 1, 1: 2})
        txn = TransactionClient(wire).init()
        txn.commit_offsets(group.group, topic, {0: 5})
        asked = OffsetFetchRequestGroup(
            group_id=group.group, topics=[OffsetFetchRequestTopics(name=topic, partition_indexes=[0, 1])]
        )
        request = OffsetFetchRequest(
            group_id=group.group,
            topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=[0, 1])],
            groups=[asked],
            require_stable=True,
        )

        def fetched() -> list[tuple[int, int]]:
            response = wire.call(Api.OFFSET_FETCH, version, request)
            (answer,) = (response.groups[0] if version >= 8 else response).topics
            return [(one.committed_offset, one.error_code) for one in answer.partitions]

        assert fetched() == [(-1, ErrorCode.UNSTABLE_OFFSET_COMMIT), (2, 0)]
        txn.end()
        assert fetched() == [(5, 0), (2, 0)]


class TestViews:
    def test_a_transaction_is_described(self, wire: WireClient) -> None:
        topic = wire.create_topic(partitions=2)
        txn = TransactionClient(wire).init(timeout_ms=54_321)
        before = time.time_ns() // 1_000_000
        txn.add((topic, 1), (topic, 0))
        found = txn.describe()
        assert (found.error_code, found.transaction_state, found.transaction_timeout_ms) == (0, "Ongoing", 54_321)
        assert (found.producer_id, found.producer_epoch) == (txn.producer_id, txn.epoch)
        assert before <= found.transaction_start_time_ms <= time.time_ns() // 1_000_000
        assert [(each.topic, list(each.partitions)) for each in found.topics] == [(topic, [0, 1])]

    def test_each_id_has_its_own_answer(self, wire: WireClient, txn: TransactionClient) -> None:
        txn.init()
        request = DescribeTransactionsRequest(transactional_ids=["nobody", txn.name, ""])
        states = wire.call(Api.DESCRIBE_TRANSACTIONS, 0, request).transaction_states
        assert [(one.transactional_id, one.error_code, one.transaction_state) for one in states] == [
            ("nobody", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, ""),
            (txn.name, 0, "Empty"),
            ("", ErrorCode.INVALID_REQUEST, ""),
        ]

    @pytest.mark.parametrize("version", [0, 1, 2])
    def test_transactions_are_listed(self, wire: WireClient, version: int) -> None:
        topic = wire.create_topic()
        busy, idle = TransactionClient(wire, f"a-{topic}").init(), TransactionClient(wire, f"b-{topic}").init()
        busy.add((topic, 0))

        def listed(**filters: object) -> dict[str, tuple[int, str]]:
            request = ListTransactionsRequest(**filters)  # type: ignore[arg-type]
            response: ListTransactionsResponse = wire.call(Api.LIST_TRANSACTIONS, version, request)
            assert response.error_code == 0
            return {
                one.transactional_id: (one.producer_id, one.transaction_state)
                for one in response.transaction_states
                if one.transactional_id in (busy.name, idle.name)
            }

        ongoing, empty = (busy.producer_id, "Ongoing"), (idle.producer_id, "Empty")
        assert listed() == {busy.name: ongoing, idle.name: empty}
        assert listed(state_filters=["Ongoing"]) == {busy.name: ongoing}
        assert listed(state_filters=["Empty", "CompleteAbort"]) == {idle.name: empty}
        assert listed(producer_id_filters=[idle.producer_id]) == {idle.name: empty}
        if version >= 1:
            assert listed(duration_filter=3_600_000) == {}
            time.sleep(0.01)
            assert listed(duration_filter=1) == {busy.name: ongoing}
        if version >= 2:
            assert listed(transactional_id_pattern=f"b-{topic}") == {idle.name: empty}
            assert listed(transactional_id_pattern=f".-{topic}") == {busy.name: ongoing, idle.name: empty}

    @pytest.mark.parametrize("version", [0, 1, 2])
    def test_states_that_nobody_knows_are_named(self, wire: WireClient, version: int) -> None:
        request = ListTransactionsRequest(state_filters=["Ongoing", "Sleeping"])
        response: ListTransactionsResponse = wire.call(Api.LIST_TRANSACTIONS, version, request)
        assert (response.error_code, response.unknown_state_filters) == (0, ["Sleeping"])
        request = ListTransactionsRequest(state_filters=["Sleeping"])
        response = wire.call(Api.LIST_TRANSACTIONS, version, request)
        assert (response.transaction_states, response.unknown_state_filters) == ([], ["Sleeping"])

    def test_a_pattern_that_makes_no_sense_is_refused(self, wire: WireClient, txn: TransactionClient) -> None:
        txn.init()
        request = ListTransactionsRequest(transactional_id_pattern="(")
        assert wire.call(Api.LIST_TRANSACTIONS, 2, request).error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


# -- time and restarts ------------------------------------------------------------------


def until_ended(txn: TransactionClient) -> str:
    deadline = time.monotonic() + 10
    while not (state := txn.describe().transaction_state).startswith("Complete") and time.monotonic() < deadline:
        time.sleep(0.01)
    return state


class TestTwoPhaseCommit:
    """Version 6 of InitProducerId (KIP-939)."""

    @pytest.mark.parametrize("version", [4, 5])
    @pytest.mark.parametrize("commit", [True, False])
    def test_whoever_has_the_producer_id_ends_the_transaction(
        self, wire: WireClient, txn: TransactionClient, version: int, commit: bool
    ) -> None:
        topic = wire.create_topic()
        begun = txn.try_init(6, timeout_ms=1, enable2_pc=True)
        assert (begun.error_code, begun.ongoing_txn_producer_id, begun.ongoing_txn_producer_epoch) == (0, -1, -1)
        txn.use(begun.producer_id, begun.producer_epoch)
        if version < 5:
            assert txn.add((topic, 0)) == {(topic, 0): 0}
        assert txn.produce(topic, b"prepared", version=11 if version < 5 else 12).error_code == 0
        time.sleep(0.1)  # longer than the timeout that it named
        told = txn.describe()
        assert (told.transaction_state, told.transaction_timeout_ms) == ("Ongoing", 2**31 - 1)
        driver = TransactionClient(wire, txn.name)
        driver.use(txn.producer_id, txn.epoch)
        driver.end(commit=commit, version=version)
        again = txn.try_end(commit=commit, version=version)
        assert (again.error_code, txn.describe().transaction_state) == (
            0,
            "CompleteCommit" if commit else "CompleteAbort",
        )
        found = wire.fetch(topic, isolation_level=1)
        assert (found.last_stable_offset, bool(found.aborted_transactions)) == (2, not commit)

    def test_a_prepared_transaction_is_not_handed_over(self, wire: WireClient, txn: TransactionClient) -> None:
        """Kafka 4.3 refuses it as well."""
        topic = wire.create_topic()
        txn.init(6, enable2_pc=True)
        txn.produce(topic, b"prepared")
        refused = txn.try_init(6, enable2_pc=True, keep_prepared_txn=True)
        assert (refused.error_code, refused.producer_id) == (ErrorCode.UNSUPPORTED_VERSION, -1)
        assert txn.describe().transaction_state == "Ongoing"

    def test_another_producer_aborts_it(self, wire: WireClient, txn: TransactionClient) -> None:
        topic = wire.create_topic()
        txn.init(6, enable2_pc=True)
        txn.produce(topic, b"prepared")
        successor = TransactionClient(wire, txn.name).init(5)
        assert successor.epoch > txn.epoch
        assert txn.try_end().error_code == FENCED
        assert successor.describe().transaction_timeout_ms == 60_000
        assert wire.fetch(topic, isolation_level=1).aborted_transactions

    def test_a_broker_without_it_offers_the_versions_before(self) -> None:
        with Broker({"transaction.two.phase.commit.enable": "false"}) as broker, WireClient(broker.port) as wire:
            answer = wire.call(Api.API_VERSIONS, 0, ApiVersionsRequest())
            ranges = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
            assert ranges[Api.INIT_PRODUCER_ID] == (0, 5)
            txn = TransactionClient(wire)
            txn.find()
            assert txn.try_init(5, timeout_ms=2**31 - 1).error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
            wire.send(Api.INIT_PRODUCER_ID, 6, InitProducerIdRequest(transactional_id=txn.name, enable2_pc=True))
            assert wire.is_closed_by_broker()


def test_a_transaction_that_is_open_for_too_long_is_aborted(wire: WireClient) -> None:
    topic = wire.create_topic()
    txn = TransactionClient(wire).init(timeout_ms=200)
    assert txn.produce(topic, b"slow").error_code == 0
    assert until_ended(txn) == "CompleteAbort"
    assert wire.fetch(topic, isolation_level=1).last_stable_offset == 2
    assert txn.produce(topic, b"late").error_code == OLD_EPOCH
    assert txn.try_end(version=4).error_code == FENCED
    assert txn.try_end().error_code == ErrorCode.INVALID_TXN_STATE, "for all that is known, the abort was its own"
    assert txn.try_end(commit=False).error_code == 0
    assert txn.init().produce(topic, b"again").error_code == 0


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_goes_on_after_a_restart(tmp_path: Path, commit: bool) -> None:
    data = str(tmp_path / "data")
    with Broker(data=data) as broker, WireClient(broker.port) as wire:
        topic = wire.create_topic(name="kept")
        group = GroupClient(wire, "g")
        group.find()
        group.commit(topic, {0: 1})
        txn = TransactionClient(wire, "id").init()
        assert txn.produce(topic, b"before").error_code == 0
        assert txn.commit_offsets("g", topic, {0: 5}) == {0: 0}
    with Broker(data=data) as broker, WireClient(broker.port) as wire:
        txn.wire = group.wire = wire
        assert until_loaded(txn) == "Ongoing"
        assert wire.fetch(topic, isolation_level=1).last_stable_offset == 0
        assert txn.produce(topic, b"after").error_code == 0
        txn.end(commit=commit)
        found = wire.fetch(topic, isolation_level=1)
        assert (found.high_watermark, found.last_stable_offset) == (3, 3)
        assert group.committed(topic, [0])[0][0] == (5 if commit else 1)
        assert txn.produce(topic, b"the next").error_code == 0


def until_loaded(txn: TransactionClient) -> str:
    deadline = time.monotonic() + 10
    while (found := txn.describe()).error_code and time.monotonic() < deadline:
        time.sleep(0.01)
    assert found.error_code == 0
    return found.transaction_state


def test_a_time_out_passes_while_the_broker_is_down(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with Broker(data=data) as broker, WireClient(broker.port) as wire:
        topic = wire.create_topic(name="kept")
        txn = TransactionClient(wire, "id").init(timeout_ms=1_000)
        assert txn.produce(topic, b"before").error_code == 0
    time.sleep(1)
    with Broker(data=data) as broker, WireClient(broker.port) as wire:
        txn.wire = wire
        until_loaded(txn)
        assert until_ended(txn) == "CompleteAbort"
        assert wire.fetch(topic, isolation_level=1).last_stable_offset == 2


def test_values_of_a_committed_transaction_are_read(wire: WireClient) -> None:
    topic = wire.create_topic()
    txn = TransactionClient(wire).init()
    assert txn.produce(topic, b"a", b"b").error_code == 0
    open_ = wire.fetch(topic, isolation_level=1)
    assert (open_.high_watermark, open_.last_stable_offset, values(open_)) == (2, 0, [])
    assert values(wire.fetch(topic)) == [b"a", b"b"]
    assert wire.list_offset(topic, -1).offset == 2
    txn.end()
    assert values(wire.fetch(topic, isolation_level=1))[:2] == [b"a", b"b"]
