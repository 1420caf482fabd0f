"""Defects on error paths, to be planted: leftovers of a failed step, a crash, a repair or a changed setting.

Most existed once and are planted as they were. See `sim.planted.bugs`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from penstock.sim.planted.bug import Bug

LOG = "penstock.storage.log:Log"
HOUSEKEEPING = "penstock.replica.housekeeping:Housekeeping"
REPAIRS = "penstock.replica.repair:Repairs"
HELD = "in-sync replicas hold committed records"


def _goes_by_its_policy(original: Any) -> Any:
    return property(lambda self: self._config.compact or self.cleaned_offset > 0)


def _is_clean_for_good(original: Any) -> Any:
    return property(lambda self: self.stable_version == 0 < self.version)


def _is_clean_before_it_is_stable(original: Any) -> Any:
    def make_stable(self: Any) -> None:
        if self._epochs is not None:
            self._epochs.epochs.stable_version = self._epochs.version
        original(self)

    return make_stable


def _keeps_its_cleaned_offset(original: Any) -> Any:
    async def lower(self: Any, partition: Any, offset: int) -> None:
        owner = partition.log
        async with self._checkpointing:
            if owner.persisted_recovery_point > offset or self._may_lag_disk:
                owner.persisted_recovery_point = min(owner.persisted_recovery_point, offset)
                await self._persist_offsets()

    return lower


def _lowers_nothing(original: Any) -> Any:
    async def lower(self: Any, partition: Any, offset: int) -> None:
        return None

    return lower


def _deletes_on_the_loop(original: Any) -> Any:
    async def finish(self: Any, partition: Any, owner: Any, deletion: Any) -> int:
        deletion.run()
        return len(owner.end_deletion(deletion))

    return finish


def _waits(original: Any) -> Any:
    return lambda self: self.start()


def _cuts_at_once(original: Any) -> Any:
    async def cut(self: Any, partition: Any, found: Any) -> None:
        await self._cut(partition, found.offset)

    return cut


def _begins_with_all_committed(original: Any) -> Any:
    def init(self: Any, *parts: Any, high_watermark: int | None = None) -> None:
        original(self, *parts, high_watermark=None)

    return init


def _promises_its_end(original: Any) -> Any:
    def checkpoint(self: Any, producers: Any, log_end_offset: int, stable_offset: int, *, closing: bool) -> Any:
        return original(self, producers, log_end_offset, log_end_offset, closing=closing)

    return checkpoint


def _undoes_every_swap(original: Any) -> Any:
    def settle(disk: Any, directory: str, names: list[str]) -> list[int]:
        for name in names:
            if name.endswith((".cleaned", ".swap")):
                disk.remove(f"{directory}/{name}")
        return []

    return settle


def _keeps_its_minimum(original: Any) -> Any:
    def apply_config(self: Any, config: Any, **named: Any) -> None:
        original(self, config._replace(min_insync_replicas=self.config.min_insync_replicas), **named)

    return apply_config


def _tries_the_sync_again(original: Any) -> Any:
    return lambda error: True


def _renames_what_is_not_stable(original: Any) -> Any:
    def write_atomic(disk: Any, path: str, data: Any) -> None:
        temporary = f"{path}.tmp"
        file = disk.open(temporary, create=True)
        file.truncate(0)
        file.write(0, (data,))
        file.close()
        disk.rename(temporary, path)
        disk.sync_directory(path.rpartition("/")[0])

    return write_atomic


def _nothing_passes(original: Any) -> Any:
    return lambda error: False


def _asks_once(original: Any) -> Any:
    return lambda partition, plan: True


def _durable_from_the_start(original: Any) -> Any:
    def register(image: Any, *args: Any, **named: Any) -> Any:
        before = [(topic, topic.durable_from_epoch) for topic in image.topics.values()]
        for topic, _ in before:
            topic.durable_from_epoch = 0
        try:
            return original(image, *args, **named)
        finally:
            for topic, epoch in before:
                topic.durable_from_epoch = epoch

    return register


def _votes_at_once(original: Any) -> Any:
    return lambda self, last_index: True


def _believes_one_reader(original: Any) -> Any:
    async def ask(*_: Any) -> Any:
        module = import_module("penstock.replica.second_opinion")
        return module.Opinion(module.Judgement.DAMAGED)

    return ask


def _may_be_repeated(original: Any) -> Any:
    return True


def _looks_once(original: Any) -> Any:
    async def is_still_damaged(self: Any, partition: Any, found: Any) -> bool:
        return True

    return is_still_damaged


def _walks_from_the_start(original: Any) -> Any:
    def find(self: Any, offset: int, *, may_have_gaps: bool = True, may_wait: bool = True) -> Any:
        found = original(self, offset, may_have_gaps=may_have_gaps)
        if found is None or found[1].base_offset > offset:  # compaction, or a wrong header
            self.check_checksums(0, self.size if found is None else found[0])
        return found

    return find


def _forgets_in_no_time(original: Any) -> Any:
    return lambda self, now_ms, expiration_ms: original(self, now_ms, expiration_ms // 1000)


def _cuts_at_the_damage(original: Any) -> Any:
    return lambda partition, damaged: damaged


def _checks_nothing(original: Any) -> Any:
    return lambda self, *args: None


def _speaks_of_nobody(original: Any) -> Any:
    return lambda self, key: False


ERROR_BUGS = (
    Bug(
        "mends-half-a-compacted-log",
        "repair fetches a compacted log again from the damage on, without tombstones that the leader has dropped",
        "a replica with a deleted record has its tombstone",
        (("penstock.replica.repair:_cut_from", _cuts_at_the_damage),),
    ),
    Bug(
        "takes-the-second-batch",
        "a batch is appended although an earlier one of its producer came before the partition was led here",
        "a repeated batch is recognised",
        (("penstock.api.produce.early_batches:EarlyBatches.check", _checks_nothing),),
    ),
    Bug(
        "inherits-offsets",
        "a topic is written while files on disk still belong to a deleted topic of the same name",
        "leader epochs are those of the batches",
        (("penstock.replica.offset_files:OffsetFiles.speaks_of_former", _speaks_of_nobody),),
    ),
    Bug(
        "forgets-in-no-time",
        "producers are forgotten after a thousandth of producer.id.expiration.ms",
        "no record appears twice",
        (("penstock.storage.producers.producer_state:ProducerStates.expire", _forgets_in_no_time),),
    ),
    Bug(
        "forgets-gaps",
        "whether a log may have gaps is decided by its current cleanup policy",
        "intact data is not taken for damaged",
        ((f"{LOG}.may_have_gaps", _goes_by_its_policy),),
    ),
    Bug(
        "clean-for-good",
        "once leader epochs were stored, later ones count as stored too",
        "leader epochs are kept before a recovery point passes them",
        (("penstock.storage.leader_epochs:LeaderEpochs.is_dirty", _is_clean_for_good),),
    ),
    Bug(
        "clean-too-early",
        "leader epochs count as stored before their checkpoint is stable, and a step of the checkpoint fails",
        "leader epochs are kept before a recovery point passes them",
        (("penstock.storage.durability:LogCheckpoint.make_stable", _is_clean_before_it_is_stable),),
    ),
    Bug(
        "keeps-its-cleaned-offset",
        "a truncation lowers the recovery point but not the cleaned offset",
        "a cut first lowers the checkpoints of recovery",
        ((f"{HOUSEKEEPING}.lower_recovery_point", _keeps_its_cleaned_offset),),
    ),
    Bug(
        "cuts-before-lowering",
        "a log is truncated while the recovery point on its disk is above the new end",
        "a cut first lowers the checkpoints of recovery",
        ((f"{HOUSEKEEPING}.lower_recovery_point", _lowers_nothing),),
    ),
    Bug(
        "deletes-on-the-loop",
        "retention waits for the disk on the event loop, once for each segment",
        "the loop never waits",
        ((f"{HOUSEKEEPING}._finish_deletion", _deletes_on_the_loop),),
    ),
    Bug(
        "waits-for-its-disk",
        "a leader whose disk hangs goes on leading",
        "other brokers take over from a hung disk",
        (("penstock.replica.disk_watch:DiskWatch._tick", _waits),),
    ),
    Bug(
        "repairs-in-sync",
        "a damaged replica is cut while it counts as in sync",
        "a replica leaves the in-sync replicas before it is repaired",
        ((f"{REPAIRS}._replace", _cuts_at_once),),
    ),
    Bug(
        "begins-with-all-committed",
        "after a restart everything in a log counts as committed",
        "a follower's high watermark is a leader's",
        (("penstock.replica.partition:Partition.__init__", _begins_with_all_committed),),
    ),
    Bug(
        "promises-its-end",
        "a checkpoint tells recovery to trust records that are not stable yet",
        "a recovery point is on the platter",
        (("penstock.storage.checkpoint_builder:CheckpointBuilder.prepare", _promises_its_end),),
    ),
    Bug(
        "undoes-every-swap",
        "recovery removes a compacted segment that was being put in place, even if the old segments are gone",
        HELD,
        (("penstock.storage.recovery:settle_swaps", _undoes_every_swap),),
    ),
    Bug(
        "keeps-its-minimum",
        "a changed min.insync.replicas takes effect only after a restart",
        "the high watermark waits for min.insync.replicas",
        (("penstock.replica.partition:Partition.apply_config", _keeps_its_minimum),),
    ),
    Bug(
        "syncs-again",
        "a failed sync is repeated, and the second result is trusted",
        "committed records are on every platter",
        (("penstock.storage.group_commit:is_passing", _tries_the_sync_again),),
    ),
    Bug(
        "offline-for-want",
        "a flush that finds no descriptor takes its log offline, until a restart",
        "missing descriptors take nothing offline",
        (
            ("penstock.storage.group_commit:is_passing", _nothing_passes),
            ("penstock.storage.log:is_passing_at_open", _nothing_passes),
            ("penstock.storage.cut:is_passing", _nothing_passes),
        ),
    ),
    Bug(
        "asks-once",
        "whether tombstones may go is decided when a cleaning begins, and not again when a replica is added meanwhile",
        "a replica with a deleted record has its tombstone",
        (("penstock.replica.cleaning:_is_still_allowed", _asks_once),),
    ),
    Bug(
        "eligible-unflushed",
        "a broker that crashes before the first flush of a topic that became durable stays eligible to lead",
        "an eligible replica has everything committed",
        (("penstock.core.metadata.brokers:register", _durable_from_the_start),),
    ),
    Bug(
        "votes-emptied",
        "a voter that has lost its votes and its log votes at once",
        "an emptied voter does not vote before it has caught up",
        (("penstock.core.raft.node:RaftNode.may_vote_for", _votes_at_once),),
    ),
    Bug(
        "gives-a-vote-again",
        "a request to add a voter is sent again after its answer was lost, even if the voter was removed meanwhile",
        "a vote is given once per request",
        (("penstock.api.handlers.add_raft_voter:AddRaftVoterHandler.is_repeatable", _may_be_repeated),),
    ),
    Bug(
        "believes-one-reader",
        "a repair truncates on the report of one reader, without checking here or against the leader's copy",
        "repair cuts no intact replica",
        (
            ("penstock.replica.repair:ask", _believes_one_reader),
            (f"{REPAIRS}._is_still_damaged", _looks_once),
        ),
    ),
    Bug(
        "walks-from-the-start",
        "a lookup of an offset that compaction removed reads and checks its segment from the start, on the loop",
        "the loop never waits",
        (("penstock.storage.segments.segment:Segment.find", _walks_from_the_start),),
    ),
    Bug(
        "renames-unsynced",
        "a vote is renamed into place before its file is stable",
        "a vote is on the platter",
        (("penstock.cluster.raft_store:write_atomic", _renames_what_is_not_stable),),
    ),
)
