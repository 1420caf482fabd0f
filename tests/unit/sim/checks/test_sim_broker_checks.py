"""The judge that watches brokers: fed with replicas that do what no replica may."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from penstock.core.metadata.image import RESOURCE_TOPIC, MetadataImage, PartitionState
from penstock.core.metadata.records import TopicCreated, decode_entry, encode_entry
from penstock.sim.checks.brokers import BrokerChecker
from penstock.sim.checks.elections import check_elected
from penstock.sim.checks.leases import LeaseChecker
from penstock.sim.checks.quorum import QuorumChecker
from penstock.sim.checks.snapshots import SnapshotChecker
from penstock.sim.judges.history import Violation
from penstock.sim.judges.judging import AFTERMATH_S, Judging
from penstock.sim.machine.loop import StepLimit

ID = b"0123456789abcdef"


@dataclass
class FakeLog:
    log_end_offset: int = 10
    log_start_offset: int = 0


@dataclass
class FakeReplica:
    topic: str = "data"
    topic_id: bytes = ID
    index: int = 0
    is_leader: bool = False
    leader_epoch: int = 3
    partition_epoch: int = 5
    isr: tuple[int, ...] = (1, 2)
    replicas: tuple[int, ...] = (1, 2)
    high_watermark: int = 10
    log: FakeLog = field(default_factory=FakeLog)


def leader(**changes: object) -> FakeReplica:
    return replace(FakeReplica(is_leader=True, log=FakeLog()), **changes)  # type: ignore[arg-type]


@pytest.fixture
def checker() -> BrokerChecker:
    return BrokerChecker()


def broken(checker: BrokerChecker, replicas: dict[int, FakeReplica]) -> str:
    with pytest.raises(Violation) as raised:
        checker.look({node: [replica] for node, replica in replicas.items()})
    return raised.value.what


def test_a_leader_and_its_follower_are_fine(checker: BrokerChecker) -> None:
    one, two = leader(), FakeReplica(high_watermark=8)
    checker.look({1: [one], 2: [two]})
    one.high_watermark = one.log.log_end_offset = two.log.log_end_offset = 12
    checker.look({1: [one], 2: [two]})


def test_two_leaders_of_an_epoch(checker: BrokerChecker) -> None:
    assert broken(checker, {1: leader(), 2: leader()}) == "an epoch has one leader"


def test_a_leader_of_the_past_beside_a_new_one_is_fine(checker: BrokerChecker) -> None:
    checker.look({1: [leader()], 2: [leader(leader_epoch=4, partition_epoch=6)]})


@pytest.mark.parametrize("changes", [{"leader_epoch": 2}, {"partition_epoch": 4}])
def test_an_epoch_that_goes_back(checker: BrokerChecker, changes: dict[str, int]) -> None:
    replica = FakeReplica(high_watermark=0)
    checker.look({1: [replica]})
    vars(replica).update(changes)
    assert broken(checker, {1: replica}) == "epochs only grow"


def test_a_high_watermark_that_goes_back_and_one_of_a_new_process(checker: BrokerChecker) -> None:
    replica = FakeReplica()
    checker.look({1: [replica], 2: [leader()]})
    replica.high_watermark = 9
    assert broken(checker, {1: replica}) == "the high watermark only grows"
    checker.forget(1)
    checker.look({1: [FakeReplica(high_watermark=4)]})


def test_a_high_watermark_beyond_the_log(checker: BrokerChecker) -> None:
    assert broken(checker, {1: FakeReplica(high_watermark=11)}) == "the high watermark is within the log"
    below = FakeReplica(high_watermark=2, log=FakeLog(log_start_offset=3))
    assert broken(checker, {2: below}) == "the high watermark is within the log"


def test_a_high_watermark_that_does_not_wait(checker: BrokerChecker) -> None:
    behind = FakeReplica(high_watermark=8, log=FakeLog(9))
    assert broken(checker, {1: leader(), 2: behind}) == "the high watermark waits for every in-sync replica"
    checker.excused[2] = None
    BrokerChecker().look({1: [leader(isr=(1,))], 2: [behind]})


def test_a_follower_that_knows_more_than_any_leader(checker: BrokerChecker) -> None:
    checker.look({1: [leader(high_watermark=8)], 2: [FakeReplica(high_watermark=8)]})
    assert broken(checker, {2: FakeReplica(high_watermark=9)}) == "a follower's high watermark is a leader's"


def test_a_sole_replica_goes_by_the_end_of_its_log() -> None:
    BrokerChecker().look({2: [FakeReplica(high_watermark=9, log=FakeLog(9), isr=(), replicas=(2,))]})


def test_a_follower_that_heard_it_from_a_leader_who_died_since(checker: BrokerChecker) -> None:
    one, two = leader(high_watermark=8), FakeReplica(high_watermark=8)
    checker.look({1: [one], 2: [two]})
    one.high_watermark = two.high_watermark = 9
    checker.moved(2, two)
    checker.moved(1, one)
    checker.look({2: [two]})


def test_a_leader_whose_log_shrinks(checker: BrokerChecker) -> None:
    one = leader(high_watermark=8)
    checker.look({1: [one]})
    one.log.log_end_offset = 9
    assert broken(checker, {1: one}) == "a leader's log only grows"


def test_a_leader_of_the_past_may_be_cut(checker: BrokerChecker) -> None:
    one = leader(high_watermark=8)
    checker.look({1: [one]})
    one.is_leader, one.leader_epoch, one.partition_epoch, one.log.log_end_offset = False, 4, 6, 8
    checker.look({1: [one]})


def test_a_log_start_that_goes_back(checker: BrokerChecker) -> None:
    one = leader(log=FakeLog(log_start_offset=4))
    checker.look({1: [one]})
    one.log.log_start_offset = 3
    assert broken(checker, {1: one}) == "a log start only grows"


def test_what_is_committed_is_not_cut_by_a_replica_in_sync(checker: BrokerChecker) -> None:
    one, two = leader(), FakeReplica(high_watermark=8)
    checker.look_at_image(1, "data", ID, [FakeState()])
    checker.look({1: [one], 2: [two]})
    two.log.log_end_offset = 9
    checker.cut(2, two)
    two.log.log_end_offset = 10  # fetched again before anybody looks
    assert broken(checker, {1: one, 2: two}) == "nothing committed is cut"


def test_who_has_left_the_in_sync_replicas_may_cut(checker: BrokerChecker) -> None:
    one, two = leader(), FakeReplica(high_watermark=8)
    checker.look_at_image(1, "data", ID, [FakeState()])
    checker.look({1: [one], 2: [two]})
    two.log.log_end_offset = 9
    checker.cut(2, two)
    checker.look_at_image(1, "data", ID, [FakeState(partition_epoch=6, isr=(1,))])
    checker.look({2: [two]})


def test_a_leader_without_what_was_committed(checker: BrokerChecker) -> None:
    checker.look({1: [leader()], 2: [FakeReplica()]})
    short = leader(leader_epoch=4, partition_epoch=6, high_watermark=7, log=FakeLog(9), isr=(2,))
    assert broken(checker, {2: short}) == "a leader has everything committed"


def test_a_leader_that_was_replaced_may_lack_it_also_when_all_who_know_are_down(checker: BrokerChecker) -> None:
    checker.look({1: [leader()], 2: [FakeReplica()]})
    checker.look_at_image(1, "data", ID, [FakeState(leader=1, leader_epoch=5, partition_epoch=7)])
    short = leader(leader_epoch=4, partition_epoch=6, high_watermark=7, log=FakeLog(9), isr=(2,))
    checker.look({2: [short]})


def test_in_sync_replicas_that_nobody_decided(checker: BrokerChecker) -> None:
    checker.look_at_image(1, "data", ID, [FakeState()])
    checker.look({1: [leader()]})
    assert broken(checker, {1: leader(isr=(1,))}) == "in-sync replicas are the controller's"


@dataclass
class FakeState:
    index: int = 0
    leader: int = 1
    leader_epoch: int = 3
    partition_epoch: int = 5
    isr: tuple[int, ...] = (1, 2)
    replicas: tuple[int, ...] = (1, 2, 3)
    adding: tuple[int, ...] = ()


def test_images_that_differ(checker: BrokerChecker) -> None:
    checker.look_at_image(1, "data", ID, [FakeState()])
    with pytest.raises(Violation, match="images are equal"):
        checker.look_at_image(2, "data", ID, [FakeState(leader=2)])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (FakeState(replicas=(4, 1, 2, 3), adding=(4,)), FakeState(isr=(4,), replicas=(4,), partition_epoch=6)),
        (FakeState(replicas=(4, 1, 2, 3), adding=(4,)), FakeState(partition_epoch=6)),  # called off
        (FakeState(), FakeState(isr=(1, 2), replicas=(2, 1), partition_epoch=6)),
        (FakeState(), FakeState(isr=(1,), replicas=(4, 1, 2, 3), adding=(4,), partition_epoch=6)),
    ],
)
def test_replicas_that_may_go(checker: BrokerChecker, before: FakeState, after: FakeState) -> None:
    checker.look_at_image(1, "data", ID, [before])
    checker.look_at_image(1, "data", ID, [after])


def test_a_replica_that_goes_too_early(checker: BrokerChecker) -> None:
    checker.look_at_image(1, "data", ID, [FakeState(replicas=(4, 1, 2, 3), adding=(4,))])
    with pytest.raises(Violation, match="a replica is removed when"):
        checker.look_at_image(1, "data", ID, [FakeState(isr=(1, 2), replicas=(4, 1, 2), partition_epoch=6)])


# -- the quorum -------------------------------------------------------------------------


def test_terms_and_entries_that_are_fine() -> None:
    quorum = QuorumChecker()
    quorum.look(1, 1, True)
    quorum.look(2, 1, False)
    quorum.look(2, 2, True)
    for node in (1, 2):
        quorum.applied(node, 1, b"one")
    quorum.forget(1)
    quorum.look(1, 1, False)
    quorum.applied(1, 1, b"one")
    assert (quorum.terms, quorum.last_index) == (2, 1)


def test_what_raft_rules_out() -> None:
    quorum = QuorumChecker()
    quorum.look(1, 2, True)
    quorum.applied(1, 1, b"one")
    with pytest.raises(Violation, match="a term has one leader"):
        quorum.look(2, 2, True)
    with pytest.raises(Violation, match="terms only grow"):
        quorum.look(1, 1, False)
    with pytest.raises(Violation, match="an index has one entry"):
        quorum.applied(2, 1, b"two")
    with pytest.raises(Violation, match="entries are applied once"):
        quorum.applied(1, 1, b"one")


def test_a_damaged_follower_may_go_back_and_a_leader_never(checker: BrokerChecker) -> None:
    follower, one = FakeReplica(), leader()
    checker.look({1: [follower], 2: [one]})
    checker.excused[1] = None
    follower.high_watermark = 9
    checker.look({1: [follower]})
    checker.excused[2] = None
    one.high_watermark = 9
    assert broken(checker, {2: one}) == "the high watermark only grows"


def test_a_vote_that_a_restart_forgets() -> None:
    quorum = QuorumChecker()
    quorum.voted(1, 3, 2)
    quorum.look(2, 4, True)
    for node, term in ((1, 3), (2, 5), (3, 0)):
        quorum.forget(node)
        quorum.started(node, term)
    with pytest.raises(Violation, match="a vote outlives a restart"):
        quorum.started(1, 2)
    with pytest.raises(Violation, match="a vote outlives a restart"):
        quorum.started(2, 3)


# -- snapshots of the metadata ----------------------------------------------------------


def entry(*names: str) -> bytes:
    return encode_entry(TopicCreated(name, ID.hex()[:-1] + name, ((1, 2),)) for name in names)


def test_a_snapshot_is_what_its_entries_make() -> None:
    snapshots = SnapshotChecker()
    image = MetadataImage()
    made: dict[int, bytes] = {}
    for index, data in ((2, entry("1")), (3, entry("2", "3")), (5, entry("4"))):
        snapshots.applied(index, data)
        for record in decode_entry(data):
            image.replay(record)
        made[index] = encode_entry(image.snapshot_records())
    for node, index in ((1, 3), (2, 5), (3, 2), (4, 4), (5, 5)):
        snapshots.restored(node, index, made[3 if index == 4 else index])
    with pytest.raises(Violation, match="a snapshot equals the result of its entries"):
        snapshots.restored(1, 5, made[3])


def test_a_leader_that_was_replaced_stops_in_time() -> None:
    leases = LeaseChecker()
    leases.decided(("aa", 0), 4, (1, 1), now_s=10.0)
    leases.decided(("aa", 0), 5, (1, 2), now_s=20.0)
    leases.decided(("aa", 0), 5, (1, 2), now_s=29.0)  # another node hears of it
    leases.appended(1, "t-0", ("aa", 0), 5, now_s=90.0, session_s=2.0)
    leases.appended(2, "t-0", ("aa", 0), 4, now_s=24.4, session_s=2.0)
    leases.appended(2, "t-1", ("aa", 1), 0, now_s=90.0, session_s=2.0)
    with pytest.raises(Violation, match="stops in time"):
        leases.appended(2, "t-0", ("aa", 0), 4, now_s=24.6, session_s=2.0)
    with pytest.raises(Violation, match=r"epoch 4 was decided 4\.6 s ago"):
        leases.appended(3, "t-0", ("aa", 0), 3, now_s=14.6, session_s=2.0)


def test_a_leader_that_was_replaced_may_not_know_for_a_while() -> None:
    leases = LeaseChecker()
    leases.decided(("aa", 0), 5, (1, 2), now_s=20.0)
    leases.decided(("aa", 0), 6, (2, 3), now_s=30.0)
    assert leases.may_not_know(("aa", 0), 1, now_s=24.4, session_s=2.0)
    assert not leases.may_not_know(("aa", 0), 1, now_s=24.6, session_s=2.0)
    assert leases.may_not_know(("aa", 0), 2, now_s=34.4, session_s=2.0)
    assert not leases.may_not_know(("aa", 0), 3, now_s=30.1, session_s=2.0), "it leads"
    assert not leases.may_not_know(("aa", 0), 4, now_s=30.1, session_s=2.0), "it has never led"
    assert not leases.may_not_know(("aa", 1), 1, now_s=24.4, session_s=2.0)


def test_who_hears_nothing_of_a_controller_takes_nothing_in() -> None:
    leases = LeaseChecker()
    leases.takes_in("node-1#1", "t-0", now_s=90.0, session_s=2.0)  # a lone broker has no controller to hear of
    leases.answered("node-1#1", 10.0)
    leases.answered("node-1#1", 9.0)  # an answer that was long under way
    leases.takes_in("node-1#1", "t-0", now_s=12.4, session_s=2.0)
    with pytest.raises(Violation, match=r"a leader without a controller stops.* for 2\.6 s"):
        leases.takes_in("node-1#1", "t-0", now_s=12.6, session_s=2.0)


def test_a_vote_is_given_once_a_term() -> None:
    quorum = QuorumChecker()
    for node, term, candidate in ((1, 2, 3), (1, 2, 3), (1, 3, 2), (2, 2, 2)):
        quorum.voted(node, term, candidate)
    quorum.forget(1)
    with pytest.raises(Violation, match="a voter votes once per term"):
        quorum.voted(1, 3, 1)


def test_a_controller_that_lacks_what_was_committed() -> None:
    quorum = QuorumChecker()
    quorum.committed(7, 2)
    quorum.committed(9, 4)
    quorum.elected(1, 3, 7)  # its votes came late: of term 4 it need not know
    quorum.elected(2, 5, 9)
    with pytest.raises(Violation, match=r"a controller has everything committed.* entry 9"):
        quorum.elected(3, 6, 8)
    with pytest.raises(Violation, match="a term has one leader"):
        quorum.elected(3, 5, 9)


def test_a_candidate_that_does_not_wait() -> None:
    quorum = QuorumChecker()
    for term in range(1, 30):
        quorum.campaigns(1, term, term * 0.1)
    for term in range(30, 36):
        quorum.campaigns(1, term, 3.0)
    with pytest.raises(Violation, match="a candidate waits for its votes"):
        quorum.campaigns(1, 36, 3.0)


# -- elections of partition leaders -----------------------------------------------------


def elected(leader: int, *asked: int, **settings: str) -> None:
    image, state = MetadataImage(), PartitionState(0, (1, 2, 3, 4, 5), -1, 3, (1,), elr=(2,), last_known_elr=(3,))
    image.configs[RESOURCE_TOPIC, "data"] = {name.replace("_", "."): value for name, value in settings.items()}
    check_elected(image, "data", state, asked, leader)


@pytest.mark.parametrize("leader", [1, 2, 3])
def test_who_may_be_elected(leader: int) -> None:
    elected(leader)


def test_who_may_not_be_elected() -> None:
    with pytest.raises(Violation, match="an elected leader was in sync or eligible"):
        elected(4)
    with pytest.raises(Violation):
        elected(4, unclean_leader_election_enable="false")
    elected(4, 1, 4)
    elected(4, unclean_leader_election_enable="true")


# -- what is said when several speak ----------------------------------------------------


def test_the_verdict_is_that_of_the_judge_who_knows_what_is_wrong() -> None:
    now_s = 5.0
    judging = Judging(lambda: now_s, lambda: 0)
    assert (judging.verdict, judging.is_over) == (None, False)
    with judging.judging():
        raise Violation("brokers have no defects", "a traceback")
    judging.failed(StepLimit("spins"))
    judging.failed(ValueError("of nobody"))
    assert judging.verdict is not None
    assert judging.verdict.what == "brokers have no defects"
    for story in ("first", "second"):
        judging.failed(Violation("an epoch has one leader", story))
    assert (judging.verdict.what, judging.verdict.story) == ("an epoch has one leader", "first")
    assert [breach.what for breach in judging.breaches] == [
        "brokers have no defects",
        "histories come to an end",
        "no error goes unhandled",
        "an epoch has one leader",
    ]
    assert not judging.is_over
    now_s += AFTERMATH_S
    assert judging.is_over


def test_a_voter_whose_disk_was_lost() -> None:
    quorum = QuorumChecker()
    quorum.voted(1, 3, 2)
    quorum.committed(7, 3)
    quorum.emptied(1)
    quorum.started(1, 0)
    with pytest.raises(Violation, match="an emptied voter does not vote before it has caught up"):
        quorum.voted(1, 4, 2)
    quorum.restored(1, 7)
    quorum.voted(1, 5, 2)
    quorum.forget(1)  # a restart: what it has caught up with is on its disk
    quorum.started(1, 5)
    quorum.voted(1, 6, 2)
