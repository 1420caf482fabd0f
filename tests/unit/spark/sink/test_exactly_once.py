"""Exactly-once batches on a real broker, with processes that die at every step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("pyspark")

from batches import PARTITIONS, Died, Query, cluster_of

from penstock.spark.sink.deciding import DecidedButAborted, NotOpen
from penstock.spark.sink.decisions import PARTITION, Decisions, UnreadableDecision, sink_group
from penstock.spark.sink.steps import Step
from penstock.testing import Broker
from penstock.wire.apis import Api
from penstock.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from penstock.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.blocking.transaction_admin import TransactionAdmin
from penstock.wire_client.blocking.transactions import Transactions
from penstock.wire_client.requests.errors import check
from penstock.wire_client.requests.groups import GROUP_KEY, CoordinatorKey

SETTINGS = {"num.partitions": PARTITIONS, "transaction.state.log.num.partitions": 4}
OF_TASKS = (Step.TASK_BEGUN, Step.TASK_WRITING, Step.TASK_FLUSHED)
OF_ABORT = (Step.ABORT_CALLED, Step.ABORTED)
OF_COMMIT = tuple(step for step in Step if step not in (*OF_TASKS, *OF_ABORT))

numbers = itertools.count()
NewQuery = Callable[..., Query]


@pytest.fixture(scope="module", params=["version 2", "version 0", "no two-phase commit"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    two_phase = {"transaction.two.phase.commit.enable": request.param != "no two-phase commit"}
    with Broker({**SETTINGS, **two_phase}) as running:
        if request.param == "version 0":
            set_transaction_version(running, 0)
        yield running


@pytest.fixture(scope="module")
def plain_broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as running:
        yield running


@pytest.fixture
def new_query(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> NewQuery:
    return lambda **options: Query(broker, monkeypatch, f"query-{next(numbers)}.", f"out-{next(numbers)}", **options)


@pytest.fixture
def query(plain_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Query:
    return Query(plain_broker, monkeypatch, f"query-{next(numbers)}.", f"out-{next(numbers)}")


def set_transaction_version(broker: Broker, level: int) -> None:
    with_level = FeatureUpdateKey(feature="transaction.version", max_version_level=level, upgrade_type=2)
    request = UpdateFeaturesRequest(timeout_ms=10_000, feature_updates=[with_level])
    cluster = cluster_of(broker)
    cluster.ask(
        Api.UPDATE_FEATURES,
        request,
        UpdateFeaturesResponse,
        lambda answer: check(answer.error_code, answer.error_message),
    )
    assert Transactions(cluster).version() == level
    cluster.close()


@pytest.mark.parametrize("step", OF_COMMIT)
def test_a_driver_may_die_at_every_step_of_a_commit(new_query: NewQuery, step: Step) -> None:
    query = new_query()
    query.run(0)
    messages = query.tasks(1, 2)
    with query.dying_at(step), pytest.raises(Died):
        query.commit(1, messages)
    query.restart()
    query.run(1, tasks=3)  # as after a change of the source's partitions
    query.run(2)
    assert query.committed() == query.expected(3)
    assert query.open_ids() == []


@pytest.mark.parametrize("step", OF_TASKS)
def test_a_worker_may_die_at_every_step_of_a_task(new_query: NewQuery, step: Step) -> None:
    query = new_query()
    query.run(0)
    messages = [query.attempt(1, 0, 2)]
    with query.dying_at(step), pytest.raises(Died):
        query.attempt(1, 1, 2)
    messages.append(query.attempt(1, 1, 2))  # Spark's next attempt
    query.commit(1, messages)
    query.run(2)
    assert query.committed() == query.expected(3)
    assert query.open_ids() == []


@pytest.mark.parametrize("step", [None, *OF_ABORT])
def test_a_failed_batch_is_aborted_and_repeated(query: Query, step: Step | None) -> None:
    query.run(0)
    messages = query.tasks(1, 2)
    with query.dying_at(Step.DECISION_WRITTEN), pytest.raises(Died):
        query.commit(1, messages)
    if step is None:
        query.abort(1, messages)
        assert query.open_ids() == []
    else:
        with query.dying_at(step), pytest.raises(Died):
            query.abort(1, messages)
    query.restart()
    query.run(1)
    assert query.committed() == query.expected(2)
    assert query.open_ids() == []


@pytest.mark.parametrize("step", [Step.DECIDED, Step.ENDED_ONE, Step.FINISHED])
def test_abort_leaves_alone_what_is_decided(query: Query, step: Step) -> None:
    """Spark calls abort also after a commit that has raised."""
    messages = query.tasks(0, 3)
    with query.dying_at(step), pytest.raises(Died):
        query.commit(0, messages)
    query.abort(0, messages)
    query.restart()
    again = query.tasks(0, 2)
    assert all(one.is_repeat and one.transaction is None for one in again)
    query.commit(0, again)
    assert query.committed() == query.expected(1)


def test_of_two_attempts_of_a_task_one_counts(query: Query) -> None:
    """Speculation: both have finished, and Spark hands over the result of one."""
    messages = query.tasks(0, 2)
    query.attempt(0, 1, 2)
    query.commit(0, messages)
    assert query.committed() == query.expected(1)
    assert query.open_ids() == []


def test_a_late_attempt_begins_nothing_once_the_batch_is_decided(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = query.tasks(0, 2)

    def commit_meanwhile(reached: Step) -> None:
        if reached is Step.TASK_BEGUN:
            monkeypatch.undo()
            query.commit(0, messages)

    monkeypatch.setattr("penstock.spark.sink.exactly_once.reach", commit_meanwhile)
    late = query.attempt(0, 1, 2)
    assert (late.transaction, late.is_repeat, late.records) == (None, True, 0)
    assert query.committed() == query.expected(1)
    assert query.open_ids() == []


def test_two_drivers_of_one_checkpoint_decide_a_batch_once(query: Query) -> None:
    query.run(0)
    older, newer = query.tasks(1, 2, "run-1"), query.tasks(1, 3, "run-2")
    query.commit(1, newer)
    query.commit(1, older)  # finds that the batch is decided
    assert query.committed() == query.expected(2)
    assert query.open_ids() == []


def test_a_driver_that_is_fenced_while_it_decides_looks_again(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    older, newer = query.tasks(0, 2, "run-1"), query.tasks(0, 2, "run-2")
    other = query.decider

    def the_other_decides(reached: Step) -> None:
        if reached is Step.DECISION_WRITTEN:
            monkeypatch.undo()
            other.commit(0, [one.transaction for one in newer if one.transaction is not None])

    monkeypatch.setattr("penstock.spark.sink.decisions.reach", the_other_decides)
    query.commit(0, older)
    assert query.committed() == query.expected(1)
    assert query.open_ids() == []


def test_a_slow_driver_does_not_abort_what_a_later_one_decides(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = query.tasks(0, 2)

    def the_other_decides_the_next_batch(reached: Step) -> None:
        if reached is Step.FINISHED:
            monkeypatch.undo()
            query.restart()
            query.run(0)
            later = query.tasks(1, 2)
            with query.dying_at(Step.DECIDED), pytest.raises(Died):
                query.commit(1, later)

    monkeypatch.setattr("penstock.spark.sink.deciding.reach", the_other_decides_the_next_batch)
    query.commit(0, messages)  # it only aborts leftovers now
    query.restart()
    query.run(1)
    assert query.committed() == query.expected(2)
    assert query.open_ids() == []


def test_a_driver_does_not_decide_for_what_another_one_is_about_to_abort(query: Query) -> None:
    messages = query.tasks(0, 2)
    later = query.tasks(1, 2, "run-2")
    with query.dying_at(Step.FINISHED), pytest.raises(Died):
        query.commit(0, messages)
    with pytest.raises(NotOpen, match="rejected by another driver"):
        query.commit(1, later)
    query.abort(1, later)
    query.run(1)
    assert query.committed() == query.expected(2)
    assert query.open_ids() == []


def test_a_first_batch_that_fails_leaves_nothing_open(query: Query) -> None:
    messages = query.tasks(0, 2)
    query.attempt(0, 1, 2)  # of which the driver knows nothing
    query.abort(0, messages)
    assert query.open_ids() == []
    query.restart()
    query.run(0)
    assert query.committed() == query.expected(1)


@pytest.mark.parametrize("is_aborted", [True, False])
def test_a_decision_may_be_finished_again_while_the_next_batch_runs(query: Query, is_aborted: bool) -> None:
    for batch_id in range(3):
        query.run(batch_id)
    messages = query.tasks(3, 2)
    if is_aborted:
        query.abort(3, messages)
    decision = Decisions(query.cluster, query.query_id).last()
    assert decision is not None
    query.decider.finish(decision)
    if is_aborted:
        messages = query.tasks(3, 2)
    query.commit(3, messages)
    assert query.committed() == query.expected(4)


def test_workers_use_their_ids_again(query: Query) -> None:
    named = set()
    for batch_id in range(6):
        messages = query.tasks(batch_id, 2)
        named |= {one.transaction.transactional_id for one in messages if one.transaction is not None}
        query.commit(batch_id, messages)
    # Two of a batch, whose transactions may be open, and two that the decision before lists.
    assert len(named) == 4
    assert query.committed() == query.expected(6)


def test_an_id_whose_transaction_is_undecided_is_not_used_by_another_run(query: Query) -> None:
    """The first run may still decide: its driver is slow, not dead."""
    messages = query.tasks(0, 2)
    query.restart(with_new_workers=False)
    again = query.tasks(0, 2)
    ids = [one.transaction.transactional_id for one in (*messages, *again) if one.transaction is not None]
    assert len(set(ids)) == 4
    query.commit(0, messages)
    query.commit(0, again)
    assert query.committed() == query.expected(1)
    query.run(1)
    query.restart(with_new_workers=False)
    reused = query.tasks(2, 2)
    assert {one.transaction.transactional_id for one in reused if one.transaction is not None} <= set(ids)


def test_batches_without_rows_need_no_decision(query: Query) -> None:
    query.ROWS = 0
    query.run(0)
    assert Decisions(query.cluster, query.query_id).last() is None
    query.ROWS = 30
    query.run(1)
    decision = Decisions(query.cluster, query.query_id).last()
    assert decision is not None
    assert decision.batch_id == 1


def test_a_transaction_that_was_aborted_before_the_decision_fails_the_batch(query: Query) -> None:
    messages = query.tasks(0, 2)
    assert messages[0].transaction is not None
    TransactionAdmin(query.cluster).fence(messages[0].transaction.transactional_id)
    with pytest.raises(NotOpen, match=r"is no longer open .*Start the query again"):
        query.commit(0, messages)
    query.abort(0, messages)
    query.restart()
    query.run(0)
    assert query.committed() == query.expected(1)


def test_a_decided_transaction_that_was_aborted_is_told_loudly(query: Query) -> None:
    messages = query.tasks(0, 2)
    with query.dying_at(Step.DECIDED), pytest.raises(Died):
        query.commit(0, messages)
    assert messages[1].transaction is not None
    TransactionAdmin(query.cluster).fence(messages[1].transaction.transactional_id)
    for _ in range(2):  # as often as the query is started
        query.restart()
        with pytest.raises(DecidedButAborted, match=r"1 of its 2 transactions were aborted .* lack their records"):
            query.run(0)
    query.decider.accept_loss()
    query.restart()
    query.run(0)
    query.run(1)
    lost = set(query.values(0)[1::2])
    assert query.committed() == [value for value in query.expected(2) if value not in lost]


def test_a_decision_is_found_when_the_groups_offsets_have_expired(query: Query) -> None:
    query.run(0)
    messages = query.tasks(1, 2)
    with query.dying_at(Step.DECIDED), pytest.raises(Died):
        query.commit(1, messages)
    delete_group(query.cluster, sink_group(query.query_id))
    query.restart()
    query.run(1)
    query.run(2)
    assert query.committed() == query.expected(3)
    assert query.open_ids() == []


def delete_group(cluster: BlockingCluster, group: str) -> None:
    request = DeleteGroupsRequest(groups_names=[group])
    answer = cluster.at_coordinator(
        CoordinatorKey(GROUP_KEY, group),
        lambda connection, timeout_s: connection.call(Api.DELETE_GROUPS, request, DeleteGroupsResponse, timeout_s),
    )
    check(answer.results[0].error_code)


def test_a_marker_without_its_decision_is_refused(query: Query) -> None:
    query.run(0)
    query.cluster.commit_offsets(sink_group(query.query_id), {PARTITION: 9}, "123")
    with pytest.raises(UnreadableDecision, match="batch 8 is decided, but topic __penstock_sinks does not have"):
        query.run(1)


def test_longest_timeout_without_two_phase_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**SETTINGS, "transaction.two.phase.commit.enable": False, "transaction.max.timeout.ms": 123_456}
    with Broker(settings) as broker:
        query = Query(broker, monkeypatch, "q", "out")
        (message,) = query.tasks(0, 1)
        assert message.transaction is not None
        assert not message.transaction.is_two_phase
        described = Transactions(query.cluster).describe([message.transaction.transactional_id])
        assert [one.timeout_ms for one in described.values()] == [123_456]
        shorter = Query(broker, monkeypatch, "r", "out", **{"kafka.transaction.timeout.ms": "60000"})
        (message,) = shorter.tasks(0, 1)
        assert message.transaction is not None
        described = Transactions(query.cluster).describe([message.transaction.transactional_id])
        assert [one.timeout_ms for one in described.values()] == [60_000]
