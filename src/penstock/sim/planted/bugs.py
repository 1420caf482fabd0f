"""Defects to plant in the broker, to check that the simulation finds them.

Each replaces one thing in production code while planted, and breaks one promise. A simulation that does not find one
within a few hundred seeds is too kind. Defects of error paths are in `sim.planted.error_bugs`, those of
transactions in `sim.planted.transaction_bugs`.
Defects that other code makes harmless are not here, such as committing entries of older terms by counting: a term
begins with its own entry, which commits them.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

from penstock.sim.planted.bug import Bug
from penstock.sim.planted.error_bugs import ERROR_BUGS
from penstock.sim.planted.transaction_bugs import TRANSACTION_BUGS

PARTITION = "penstock.replica.partition:Partition"
FOLLOWERS = "penstock.core.partition.followers:Followers"
HIGH_WATERMARK = "penstock.core.partition.high_watermark"
SHARD = "penstock.coordination.hosted_shard:HostedShard"


def _everybody_is_a_peer(original: Any) -> Any:
    def begin(self: Any, *given: Any) -> None:
        original(self, *given)
        self.is_peer = True

    return begin


def _leader_alone(original: Any) -> Any:
    return lambda claimed, *_: claimed


def _claims_its_end(original: Any) -> Any:
    return lambda self: self.log.log_end_offset


def _votes_for_everybody(original: Any) -> Any:
    return lambda node, candidate: True


def _cuts_nothing(original: Any) -> Any:
    return lambda partition, epoch, end_offset: partition.log.log_end_offset


def _nothing_diverges(original: Any) -> Any:
    return lambda self, partition, asked, data: False


def _serves_its_end(original: Any) -> Any:
    return lambda self, offset, max_bytes, **_: self.read_to_end(offset, max_bytes)


def _decides_alone(original: Any) -> Any:
    return lambda self, isr: self.commit_isr(isr, self.partition_epoch)


def _everything_is_committed(original: Any) -> Any:
    def lead(self: Any) -> None:
        self.high_watermark = self.log.log_end_offset
        original(self)

    return lead


def _nothing_is_committed(original: Any) -> Any:
    def lead(self: Any) -> None:
        self.high_watermark = self.log.log_start_offset
        original(self)

    return lead


def _keeps_the_epoch(original: Any) -> Any:
    def change(partition: Any, record: Any) -> Any:
        return replace(original(partition, record), leader_epoch=partition.leader_epoch)

    return change


def _one_is_enough(original: Any) -> Any:
    return lambda metadata, configured: False


def _leads_on(original: Any) -> Any:
    return lambda self: True


def _anybody_is_up_to_date(original: Any) -> Any:
    return lambda self, last_index, last_term: True


def _says_so_at_once(original: Any) -> Any:
    def try_append(self: Any, write: Any) -> bool:
        is_appended: bool = original(self, write)
        while self._appended:
            self._attached.loop.call_soon(self._appended.popleft()[1])
        return is_appended

    return try_append


def _forgets_producers(original: Any) -> Any:
    def lead(self: Any) -> None:
        self.log.producers = type(self.log.producers)()
        original(self)

    return lead


def _anybody_may_lead(original: Any) -> Any:
    def change(topic: Any, partition: Any, wanted: Any, standing: Any, min_isr: int, *_: Any) -> Any:
        unclean = import_module("penstock.core.metadata.partition_change").Election.UNCLEAN
        return original(topic, partition, wanted, standing, min_isr, unclean)

    return change


def _answers_at_once(original: Any) -> Any:
    return lambda self, replies: self._release(replies)


def _one_too_far(original: Any) -> Any:
    def learn_keys(self: Any) -> None:
        original(self)
        for key in self._offsets:
            self._offsets[key] += 1

    return learn_keys


def _nothing_is_taken(original: Any) -> Any:
    return lambda self, member_id, topic_id, partition: False


def _waits_on(original: Any) -> Any:
    return lambda self, group, now_ms, out: None


def _drops_the_last(original: Any) -> Any:
    def snapshot(self: Any) -> Any:
        encode = import_module("penstock.core.metadata.records").encode_in_steps
        return encode(self.image.snapshot_records()[:-1])

    return snapshot


def _joins_too_early(original: Any) -> Any:
    def joined_by(self: Any, follower: Any, metadata: Any, needed_offset: int, *rest: Any) -> tuple[int, ...] | None:
        result: tuple[int, ...] | None = original(self, follower, metadata, 0, *rest)
        return result

    return joined_by


def _syncs_nothing(original: Any) -> Any:
    def flush(self: Any, files: Any, directories: Any, on_stable: Any) -> None:
        self._loop.call_later(0.001, on_stable, None)

    return flush


def _claims_what_came_meanwhile(original: Any) -> Any:
    def end_flush(self: Any, flush: Any, error: OSError | None) -> None:
        if flush.generation == self.generation:
            flush.end = self.end_position()
        original(self, flush, error)

    return end_flush


def _knows_the_last_batch(original: Any) -> Any:
    return lambda data, start, count: ([(-1, [])] * count, [])


def _one_has_arrived(original: Any) -> Any:
    def complete(wanted: Any) -> None:
        arrived = tuple(replica for replica in wanted.isr if replica not in wanted.removing)
        if (wanted.adding or wanted.removing) and arrived:
            wanted.replicas = tuple(replica for replica in wanted.replicas if replica not in wanted.removing)
            wanted.isr, wanted.adding, wanted.removing = arrived, (), ()

    return complete


def _follows_its_own_end(original: Any) -> Any:
    def append_fetched(self: Any, data: Any, leader_epoch: int, high_watermark: int, *rest: Any) -> None:
        original(self, data, leader_epoch, 1 << 62, *rest)

    return append_fetched


def _cuts_to_its_watermark(original: Any) -> Any:
    def apply_state(self: Any, state: Any) -> None:
        is_new_epoch = state.leader_epoch > self.leader_epoch
        original(self, state)
        if is_new_epoch and not self.is_leader and self.log.offline is None:
            self.truncate_to(self.high_watermark)

    return apply_state


def _forgets_its_vote(original: Any) -> Any:
    def stored(self: Any) -> Any:
        found = original(self)
        term = found.entries[-1].term if found.entries else found.snapshot.term if found.snapshot else 0
        return replace(found, hard_state=type(found.hard_state)(term))

    return stored


def _always_knows_the_end(original: Any) -> Any:
    def look_up(version: Any, partition: Any, *rest: Any) -> None:
        start, partition.epoch_start_offset = partition.epoch_start_offset, 0
        try:
            original(version, partition, *rest)
        finally:
            partition.epoch_start_offset = start

    return look_up


def _who_loses_its_vote_gives_up(original: Any) -> Any:
    return property(lambda self: self.is_voter)


def _asks_itself_again(original: Any) -> Any:
    def restart_retry_timer(self: Any) -> None:
        original(self)
        if self.election_deadline_ms is None:
            self.election_deadline_ms = self.now_ms

    return restart_retry_timer


BUGS: dict[str, Bug] = {
    bug.name: bug
    for bug in (
        Bug(
            "acknowledges-alone",
            "the leader's high watermark does not wait for the in-sync replicas",
            "the high watermark waits for every in-sync replica",
            ((f"{HIGH_WATERMARK}:held_by_all", _leader_alone),),
        ),
        Bug(
            "claims-unflushed",
            "replicas of durable topics acknowledge records that they have not made stable",
            "committed records are on every platter",
            ((f"{PARTITION}.claimed_offset", _claims_its_end),),
        ),
        Bug(
            "votes-twice",
            "a voter gives its vote to every candidate of a term",
            "a voter votes once per term",
            (("penstock.core.raft.election:is_vote_free", _votes_for_everybody),),
        ),
        Bug(
            "never-truncates",
            "a follower keeps records that its new leader does not have",
            "a follower cuts records its leader does not have",
            (("penstock.replica.divergence:truncation_point", _cuts_nothing),),
        ),
        Bug(
            "hides-divergence",
            "a leader does not tell a follower that their logs diverge",
            "committed records do not change",
            (("penstock.api.fetch.fetch_findings:Findings.diverges", _nothing_diverges),),
        ),
        Bug(
            "serves-uncommitted",
            "consumers get records above the high watermark",
            "nothing above the high watermark is served",
            ((f"{PARTITION}.read", _serves_its_end),),
        ),
        Bug(
            "shrinks-isr-alone",
            "a leader changes its in-sync replicas without asking the controller",
            "in-sync replicas are the controller's",
            ((f"{PARTITION}.propose_isr", _decides_alone),),
        ),
        Bug(
            "commits-on-election",
            "a new leader takes all records in its log for committed",
            "the high watermark waits for every in-sync replica",
            ((f"{PARTITION}._lead", _everything_is_committed),),
        ),
        Bug(
            "watermark-goes-back",
            "a new leader starts its high watermark from the beginning",
            "the high watermark only grows",
            ((f"{PARTITION}._lead", _nothing_is_committed),),
        ),
        Bug(
            "keeps-the-epoch",
            "a change of leader does not bump the leader epoch",
            "an epoch has one leader",
            (("penstock.core.metadata.image:_change", _keeps_the_epoch),),
        ),
        Bug(
            "commits-below-minimum",
            "the high watermark moves while fewer than min.insync.replicas are in sync",
            "the high watermark waits for min.insync.replicas",
            ((f"{HIGH_WATERMARK}:is_under_min_isr", _one_is_enough),),
        ),
        Bug(
            "elects-the-outdated",
            "voters do not check how far the log of a candidate goes",
            "a controller has everything committed",
            (("penstock.core.raft.log:RaftLog.is_at_most", _anybody_is_up_to_date),),
        ),
        Bug(
            "metadata-unflushed",
            "a voter acknowledges entries of the metadata log before they are stable",
            "metadata is on most platters",
            (("penstock.cluster.raft_store:RaftStore._try_append", _says_so_at_once),),
        ),
        Bug(
            "forgets-producers",
            "a new leader has no producer state",
            "no record appears twice",
            ((f"{PARTITION}._lead", _forgets_producers),),
        ),
        Bug(
            "remembers-one-batch",
            "after a restart only the last batch of a producer is remembered",
            "a repeated batch is recognised",
            (("penstock.storage.producers.producer_snapshot:read_our_part", _knows_the_last_batch),),
        ),
        Bug(
            "unclean-election",
            "a replica that is not in sync is elected although unclean election is off",
            "an elected leader was in sync or eligible",
            (("penstock.core.metadata.partition_change:change_partition", _anybody_may_lead),),
        ),
        Bug(
            "answers-before-commit",
            "a coordinator answers before its records are replicated",
            "committed offsets are kept",
            ((f"{SHARD}._await_commit", _answers_at_once),),
        ),
        Bug(
            "compacts-too-much",
            "compaction drops the last record of a key",
            "in-sync replicas hold committed records",
            (("penstock.storage.cleaner.rewrite:_Cleaning.learn_keys", _one_too_far),),
        ),
        Bug(
            "gives-twice",
            "a group member (KIP-848) gets a partition that another member has not yet given up",
            "a partition has one owner",
            (("penstock.core.group.consumer_group:ConsumerGroup.is_taken_from", _nothing_is_taken),),
        ),
        Bug(
            "join-never-ends",
            "a rebalance of a classic group waits forever",
            "a healed cluster makes progress",
            (("penstock.core.group.rebalance:Rebalance.complete_join", _waits_on),),
        ),
        Bug(
            "loses-in-snapshot",
            "a snapshot of the metadata lacks its last record",
            "a snapshot equals the result of its entries",
            (("penstock.cluster.metadata_machine:MetadataMachine.snapshot", _drops_the_last),),
        ),
        Bug(
            "joins-too-early",
            "a follower joins the in-sync replicas before it has everything committed",
            "the high watermark waits for every in-sync replica",
            ((f"{FOLLOWERS}.joined_by", _joins_too_early),),
        ),
        Bug(
            "syncs-nothing",
            "flushes are reported as done but never happen",
            "metadata is on most platters",
            (("penstock.sim.machine.threads:SimFlusher.flush", _syncs_nothing),),
        ),
        Bug(
            "drops-replicas-early",
            "a reassignment ends when the first of the new replicas is in sync",
            "a replica is removed when new ones are in sync",
            (("penstock.core.metadata.partition_change:_complete_reassignment", _one_has_arrived),),
        ),
        Bug(
            "flush-ticket",
            "records written during a flush count as flushed by it",
            "committed records are on every platter",
            (("penstock.storage.log:Log.end_flush", _claims_what_came_meanwhile),),
        ),
        Bug(
            "watermark-unbounded",
            "a follower takes all records it fetched for committed",
            "a follower's high watermark is a leader's",
            ((f"{PARTITION}.append_fetched", _follows_its_own_end),),
        ),
        Bug(
            "cuts-committed",
            "a follower of a new leader cuts its log to its own high watermark, as Kafka did before KIP-101",
            "nothing committed is cut",
            ((f"{PARTITION}.apply_state", _cuts_to_its_watermark),),
        ),
        Bug(
            "forgets-its-vote",
            "after a restart a node takes the term of its last entry for the latest term it voted in",
            "a vote outlives a restart",
            (("penstock.cluster.raft_store:RaftStore.stored", _forgets_its_vote),),
        ),
        Bug(
            "leads-for-ever",
            "a leader that hears nothing from the controller goes on",
            "a leader without a controller stops",
            (("penstock.cluster.broker_lifecycle:BrokerLifecycle.may_lead", _leads_on),),
        ),
        Bug(
            "shows-less",
            "a new leader reports the end of a partition before it knows the end (KIP-207)",
            "a high watermark that was shown does not go back",
            (("penstock.api.handlers.list_offsets:_look_up", _always_knows_the_end),),
        ),
        Bug(
            "gives-up-with-its-vote",
            "a node that is to lose its vote does not campaign, although no other may have the entry that removes it",
            "a healed quorum has a controller",
            (("penstock.core.raft.node:RaftNode.may_campaign", _who_loses_its_vote_gives_up),),
        ),
        Bug(
            "impatient-alone",
            "the only voter begins the next term before its vote for itself is stable",
            "a candidate waits for its votes",
            (("penstock.core.raft.node:RaftNode.restart_retry_timer", _asks_itself_again),),
        ),
        *ERROR_BUGS,
        *TRANSACTION_BUGS,
        Bug(
            "hears-strangers",
            "every connection counts as a node that has shown the cluster's secret",
            "only nodes are heard as nodes",
            (("penstock.net.connection:Connection.__init__", _everybody_is_a_peer),),
        ),
    )
}
