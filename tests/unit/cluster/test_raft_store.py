"""The disk of a Raft server after it stopped, was killed, or lost power in the middle of a write."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import dataclass, field
from random import Random

import pytest

from penstock.cluster.raft_files import QUORUM_STATE, read_quorum_state
from penstock.cluster.raft_store import DIRECTORY, TOPIC_ID, QuorumLane, RaftStore
from penstock.core.raft.configuration import Configuration
from penstock.core.raft.exchange import HardState, Outcome, Stored
from penstock.core.raft.messages import Entry, EntryKind, Snapshot
from penstock.core.raft.terms import HEALED_TERM, LAST_TERM
from penstock.model.errors import StorageError
from penstock.records.batch import iterate_headers
from penstock.records.builder import Record, build_batch
from penstock.sim.machine.disk import NEED_A_DESCRIPTOR, SimCrash, SimDisk
from penstock.sim.machine.world import SimPorts, SimWorld
from penstock.storage.files import write_whole
from penstock.storage.group_commit import GroupCommit, flush_blocking
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig

DATA = "/data"
LOGS = f"{DATA}/{DIRECTORY}"
VOTERS = Configuration((1, 2, 3))
FIRST_TERM = HardState(1)
EMPTY = Stored(HardState(is_new=True))


class Clock:
    def now_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic(self) -> float:
        return 0.0


def new_disk(seed: int = 1) -> SimDisk:
    disk = SimDisk(Random(seed))
    disk.make_directory(DATA)
    disk.sync_directory("")
    return disk


def entry(index: int, term: int = 1, text: str = "") -> Entry:
    return Entry(index, term, EntryKind.DATA, (text or f"entry {index} of {term}").encode())


def attach(
    store: RaftStore, ports: SimPorts, *, failed: list[Exception] | None = None, stalled: list[Exception] | None = None
) -> None:
    """The lists have the errors."""
    lane = QuorumLane(GroupCommit(ports.loop.call_soon, ports.flusher), ports.workers)
    store.attach(
        ports.loop,
        lane,
        on_failed=([] if failed is None else failed).append,
        on_stalled=([] if stalled is None else stalled).append,
    )


def begun(disk: SimDisk) -> RaftStore:
    """As with a core: the first term is stored before its first entry."""
    store = RaftStore(disk, DATA, Clock())
    store.store_blocking(Outcome(hard_state=FIRST_TERM))
    return store


def reopened(disk: SimDisk) -> Stored:
    return RaftStore(disk, DATA, Clock()).stored()


def log_names(disk: SimDisk) -> list[str]:
    return [name for name in disk.list_directory(LOGS) if name.endswith(".log")]


# ---- one after the other


def test_what_was_stored_is_there_after_a_crash() -> None:
    disk = new_disk()
    store = RaftStore(disk, DATA, Clock())
    assert store.stored() == EMPTY
    assert not store.has_history
    store.first_voters = (1, 2, 3)
    kinds = [
        Entry(1, 1, EntryKind.NO_OP),
        Entry(2, 1, EntryKind.CONFIGURATION, VOTERS.encode()),
        entry(3),
        Entry(4, 2, EntryKind.DATA, b""),
    ]
    store.store_blocking(Outcome(hard_state=HardState(2, 3), append=kinds))
    disk.crash()
    assert reopened(disk) == Stored(HardState(2, 3), None, tuple(kinds))
    assert read_quorum_state(disk, LOGS) == (HardState(2, 3), (1, 2, 3))
    assert RaftStore(disk, DATA, Clock()).has_history


def test_a_topic_id_that_a_crash_took_is_written_again() -> None:
    """Of a log of data it would be asked whose it is; there is no other metadata log."""
    disk = new_disk()
    begun(disk).store_blocking(Outcome(append=[entry(1)]))
    disk.remove(f"{LOGS}/partition.metadata")
    assert reopened(disk).entries == (entry(1),)
    disk.crash()
    assert disk.exists(f"{LOGS}/partition.metadata")
    assert reopened(disk).entries == (entry(1),)


def test_truncation_then_other_entries() -> None:
    disk = new_disk()
    store = begun(disk)
    store.store_blocking(Outcome(append=[entry(index) for index in range(1, 6)]))
    store.store_blocking(Outcome(hard_state=HardState(2), truncate_from=3, append=[entry(3, 2), entry(4, 2)]))
    disk.crash()
    assert reopened(disk).entries == (entry(1), entry(2), entry(3, 2), entry(4, 2))


def test_a_leaders_snapshot_replaces_the_log() -> None:
    disk = new_disk()
    store = begun(disk)
    store.store_blocking(Outcome(append=[entry(index) for index in range(1, 6)]))
    snapshot = Snapshot(100, 7, VOTERS, b"everything\nand more")
    store.store_blocking(Outcome(snapshot_to_store=snapshot, truncate_from=1))
    assert reopened(disk) == Stored(FIRST_TERM, snapshot, ())
    store = RaftStore(disk, DATA, Clock())
    store.store_blocking(Outcome(append=[entry(101, 7)]))
    disk.crash()
    assert reopened(disk) == Stored(FIRST_TERM, snapshot, (entry(101, 7),))


def test_a_snapshot_frees_the_space_of_what_it_covers() -> None:
    disk = new_disk()
    store = begun(disk)
    sizes = []
    for round_ in range(6):
        first = round_ * 100 + 1
        store.store_blocking(Outcome(append=[entry(index, text="x" * 500) for index in range(first, first + 100)]))
        snapshot = Snapshot(first + 99, 1, VOTERS, b"state %d" % round_)
        store.store_blocking(Outcome(snapshot_to_store=snapshot, compact_to=first + 79))
        sizes.append(sum(disk.open(f"{LOGS}/{name}").size() for name in log_names(disk)))
    assert max(sizes) < 3 * sizes[0]
    assert [name for name in disk.list_directory(LOGS) if name.endswith(".checkpoint")] == [
        "00000000000000000600-0000000001.checkpoint"
    ]
    disk.crash()
    found = reopened(disk)
    assert found.snapshot == Snapshot(600, 1, VOTERS, b"state 5")
    assert found.entries[0].index <= 581
    assert found.entries[-1].index == 600


def test_directories_of_before_raft_open_with_nothing_lost() -> None:
    disk = new_disk()
    log = Log.open(disk, LOGS, LogConfig(), now_ms=0, topic_id=TOPIC_ID)
    for values in ([b'{"type":"cluster"}'], [b'{"type":"topic"}', b'{"type":"config"}'], [b'{"type":"ids"}']):
        batch = build_batch([Record(None, value) for value in values])
        [(_, header)] = iterate_headers(batch, LOGS)
        log.append(header, batch, 0, 0)
        flush_blocking(disk, log)
    log.close(clean=True)
    store = RaftStore(disk, DATA, Clock())
    assert store.has_history
    assert store.first_voters is None
    found = store.stored()
    assert [(each.index, each.term, each.kind) for each in found.entries] == [
        (index, 0, EntryKind.DATA) for index in (1, 2, 3, 4)
    ]
    assert [each.data for each in found.entries] == [
        b'{"type":"cluster"}',
        b'{"type":"topic"}',
        b'{"type":"config"}',
        b'{"type":"ids"}',
    ]
    store.store_blocking(Outcome(hard_state=HardState(1, 1), append=[Entry(5, 1, EntryKind.NO_OP)]))
    disk.crash()
    assert [each.index for each in reopened(disk).entries] == [1, 2, 3, 4, 5]


# ---- damage


def grown(disk: SimDisk) -> None:
    store = begun(disk)
    for index in range(1, 11):
        store.store_blocking(Outcome(append=[entry(index)]))


def test_a_torn_tail_is_cut() -> None:
    disk = new_disk()
    grown(disk)
    path = f"{LOGS}/{log_names(disk)[0]}"
    size = disk.open(path).size()
    disk.open(path).truncate(size - 3)
    assert [each.index for each in reopened(disk).entries] == list(range(1, 10))


@pytest.mark.parametrize("place", [0.0, 0.3, 0.6])
def test_damage_in_the_middle_is_refused(place: float) -> None:
    disk = new_disk()
    grown(disk)
    path = f"{LOGS}/{log_names(disk)[0]}"
    disk.flip_bit(path, int(disk.open(path).size() * place) + 70)
    with pytest.raises(StorageError, match="damage and not a torn tail"):
        RaftStore(disk, DATA, Clock())


def test_a_missing_segment_is_refused() -> None:
    disk = new_disk()
    store = RaftStore(disk, DATA, Clock())
    for first in (1, 11, 21):
        store.store_blocking(Outcome(append=[entry(index) for index in range(first, first + 10)]))
        store.store_blocking(Outcome(snapshot_to_store=Snapshot(first, 1, VOTERS)))
    names = log_names(disk)
    assert len(names) == 4
    disk.remove(f"{LOGS}/{names[1]}")
    with pytest.raises(StorageError, match="are missing"):
        RaftStore(disk, DATA, Clock())


def test_a_hole_in_what_was_never_stable_is_a_torn_tail() -> None:
    """Several writes were under way when the power went; a later one reached the disk and an earlier one did not."""
    disk = new_disk()
    grown(disk)
    store = RaftStore(disk, DATA, Clock())
    before = store.log.end_position().position
    store._append([entry(11)])
    store._append([entry(12)])
    path = f"{LOGS}/{log_names(disk)[0]}"
    disk.flip_bit(path, before + 70)
    assert [each.index for each in reopened(disk).entries] == list(range(1, 11))


@pytest.mark.parametrize("data", [b"", b"{", b'{"leaderEpoch": 1}', b"[]"])
def test_a_damaged_vote_is_refused(data: bytes) -> None:
    disk = new_disk()
    RaftStore(disk, DATA, Clock()).store_blocking(Outcome(hard_state=HardState(3, 1)))
    write_whole(disk, f"{LOGS}/{QUORUM_STATE}", data, sync=True)
    with pytest.raises(StorageError, match="vote twice"):
        RaftStore(disk, DATA, Clock())


@pytest.mark.parametrize("has_log", [True, False])
def test_a_lost_vote_is_not_taken_for_a_directory_of_before_raft(has_log: bool) -> None:
    disk = new_disk()
    store = begun(disk)
    store.store_blocking(Outcome(append=[entry(1), entry(2)]))
    if not has_log:
        store.store_blocking(Outcome(snapshot_to_store=Snapshot(9, 1, VOTERS, b"all"), truncate_from=1))
    disk.remove(f"{LOGS}/{QUORUM_STATE}")
    with pytest.raises(
        StorageError, match=r"quorum-state is missing, but the log beside it belongs to a quorum; .* restore"
    ):
        RaftStore(disk, DATA, Clock())


def test_a_damaged_snapshot_is_refused() -> None:
    disk = new_disk()
    store = RaftStore(disk, DATA, Clock())
    store.store_blocking(Outcome(snapshot_to_store=Snapshot(9, 1, VOTERS, b"data"), truncate_from=1))
    path = f"{LOGS}/00000000000000000009-0000000001.checkpoint"
    disk.flip_bit(path, disk.open(path).size() - 1)
    with pytest.raises(StorageError, match="checksum"):
        RaftStore(disk, DATA, Clock())


# ---- a crash at every change of the disk


@dataclass
class Model:
    """Possible contents of a disk: the last stable write, and every prefix of the ones after it."""

    state: Stored = field(default_factory=Stored)
    possible: list[Stored] = field(default_factory=lambda: [EMPTY])

    def ask(self, outcome: Outcome) -> None:
        for step in _steps(outcome):
            self.state = step(self.state)
            self.possible.append(self.state)

    def stable(self) -> None:
        self.possible = [self.state]


def _steps(outcome: Outcome):
    hard_state, snapshot, truncate_from = outcome.hard_state, outcome.snapshot_to_store, outcome.truncate_from
    if hard_state is not None:
        yield lambda was: Stored(hard_state, was.snapshot, was.entries)
    if snapshot is not None:
        yield lambda was: Stored(was.hard_state, snapshot, was.entries)
    if truncate_from is not None:
        # Entry by entry from the end, segment by segment: a crash may come anywhere in between.
        for _ in range(100):
            yield lambda was: Stored(
                was.hard_state,
                was.snapshot,
                was.entries[:-1] if was.entries and was.entries[-1].index >= truncate_from else was.entries,
            )
    for each in outcome.append:
        yield lambda was, each=each: Stored(was.hard_state, was.snapshot, (*was.entries, each))


def history(random: Random) -> list[Outcome]:
    """Outcomes as a core might give them: appends, new terms, truncations, snapshots of both kinds."""
    outcomes, last, term, committed, snapshot_index = [Outcome(hard_state=FIRST_TERM)], 0, 1, 0, 0
    for _ in range(random.randrange(3, 12)):
        outcome, kind = Outcome(), random.randrange(10)
        if kind == 0:
            term += 1
            outcome.hard_state = HardState(term, random.choice([None, 1, 2]))
        if kind == 1 and last > committed:
            cut = random.randrange(committed + 1, last + 1)
            term += 1
            outcome.hard_state, outcome.truncate_from = HardState(term), cut
            last = cut - 1
        if kind == 2:
            last = last + random.randrange(1, 50)
            outcome.snapshot_to_store = Snapshot(last, term, VOTERS, random.randbytes(20))
            outcome.truncate_from = 1
            snapshot_index = committed = last
        if kind == 3 and last > snapshot_index:
            snapshot_index = committed = random.randrange(snapshot_index + 1, last + 1)
            outcome.snapshot_to_store = Snapshot(snapshot_index, term, VOTERS, random.randbytes(20))
            outcome.compact_to = snapshot_index - 2 if snapshot_index > 2 else None
        if kind > 2:
            count = random.randrange(1, 5)
            outcome.append = [entry(index, term) for index in range(last + 1, last + 1 + count)]
            last += count
        outcomes.append(outcome)
    return outcomes


def _matches(found: Stored, possible: Stored) -> bool:
    """The same but for entries that a snapshot covers, which are deleted by the segment."""
    base = possible.snapshot.index if possible.snapshot is not None else 0
    if (found.hard_state, found.snapshot) != (possible.hard_state, possible.snapshot):
        return False
    return [e for e in found.entries if e.index > base] == [e for e in possible.entries if e.index > base]


@pytest.mark.parametrize("seed", range(150))
def test_a_crash_anywhere_leaves_a_prefix_of_what_was_asked_for(seed: int) -> None:
    random = Random(seed)
    disk, model = new_disk(seed), Model()
    disk.crash_after = disk.changes + random.randrange(1, 120)
    try:
        store = RaftStore(disk, DATA, Clock())
        for outcome in history(random):
            model.ask(outcome)
            store.store_blocking(outcome)
            model.stable()
    except SimCrash:
        pass
    disk.crash_after = None
    disk.crash()
    found = reopened(disk)
    assert any(_matches(found, possible) for possible in model.possible), (found, model.possible)


@pytest.mark.parametrize("truncate_from", [1, 5])
@pytest.mark.parametrize("seed", range(100))
def test_a_crash_while_several_segments_are_cut_is_no_damage(seed: int, truncate_from: int) -> None:
    disk, model = new_disk(seed), Model(Stored(FIRST_TERM))
    store = begun(disk)
    outcomes = [
        Outcome(append=[entry(index) for index in range(first, first + 10)], snapshot_to_store=snapshot)
        for first, snapshot in [(1, None), (11, Snapshot(2, 1, VOTERS)), (21, Snapshot(3, 1, VOTERS))]
    ]
    replaced = Outcome(truncate_from=truncate_from, hard_state=HardState(2))
    if truncate_from == 1:
        replaced.snapshot_to_store = Snapshot(25, 2, VOTERS, b"of the leader")
    else:
        replaced.append = [entry(truncate_from, 2)]
    for outcome in outcomes:
        model.ask(outcome)
        store.store_blocking(outcome)
    assert len(log_names(disk)) == 3
    model.stable()
    disk.crash_after = disk.changes + 1 + seed % 30
    try:
        model.ask(replaced)
        store.store_blocking(replaced)
        model.stable()
    except SimCrash:
        pass
    disk.crash_after = None
    disk.crash()
    found = reopened(disk)
    assert any(_matches(found, possible) for possible in model.possible), (found, model.possible)
    snapshot = found.snapshot
    assert snapshot is not None
    assert not found.entries or found.entries[0].index <= snapshot.index + 1, "a core would refuse this log"


# ---- on a loop


@pytest.mark.parametrize("seed", range(60))
def test_writes_on_a_loop_become_stable_in_order_and_survive(seed: int) -> None:
    with SimWorld(seed) as world:
        random, model = Random(seed), Model()
        told: list[int] = []

        async def program(ports: SimPorts) -> None:
            ports.disk.make_directory(DATA)
            ports.disk.sync_directory("")
            store = RaftStore(ports.disk, DATA, ports.clock)
            attach(store, ports)
            done: list[Stored] = []
            for number, outcome in enumerate(history(random)):
                model.ask(outcome)
                done.append(model.state)

                def stable(number: int = number) -> None:
                    told.append(number)
                    state = done[number]
                    model.possible = model.possible[model.possible.index(state) :]

                store.store(outcome, stable)
                if random.random() < 0.4:
                    await asyncio.sleep(random.random() * 0.01)
            await store.settled()
            assert told == list(range(len(done)))

        async def main() -> None:
            machine = world.machine("node-1")
            if random.random() < 0.8:
                machine.crash_after(random.randrange(5, 120))
            running = machine.start(program)
            await asyncio.wait([running])
            if machine.is_running:
                machine.crash()
            assert told == sorted(told)
            found = RaftStore(machine.disk, DATA, Clock()).stored()
            assert any(_matches(found, possible) for possible in model.possible), (found, model.possible)

        world.run(main(), timeout_s=60)


def test_a_full_disk_is_waited_out() -> None:
    with SimWorld(5) as world:

        async def program(ports: SimPorts) -> None:
            ports.disk.make_directory(DATA)
            store = RaftStore(ports.disk, DATA, ports.clock)
            stalled: list[Exception] = []
            told: list[str] = []
            attach(store, ports, stalled=stalled)
            store.store(Outcome(append=[entry(1)]), lambda: told.append("entry 1"))
            await store.settled()
            ports.disk.capacity = 0
            store.store(Outcome(append=[entry(2)]), lambda: told.append("entry 2"))
            store.store(Outcome(hard_state=HardState(5, 1)), lambda: told.append("vote"))
            await asyncio.sleep(5)
            assert store.is_stalled
            assert len(stalled) == 1
            assert told == ["entry 1"]
            ports.disk.capacity = None
            await asyncio.sleep(3)
            assert told == ["entry 1", "entry 2", "vote"]
            assert not store.is_stalled

        async def main() -> None:
            await world.machine("node-1").start(program)

        world.run(main(), timeout_s=60)


@pytest.mark.parametrize("step", range(1, 9))
@pytest.mark.parametrize("kind", ["truncate", "replace", "compact"])
def test_want_of_descriptors_is_waited_out(kind: str, step: int) -> None:
    snapshot = Snapshot(5, 1, VOTERS, b"state")
    outcome = {
        "truncate": Outcome(truncate_from=3),
        "replace": Outcome(snapshot_to_store=Snapshot(20, 2, VOTERS, b"state"), truncate_from=1),
        "compact": Outcome(snapshot_to_store=snapshot, compact_to=4),
    }[kind]
    with SimWorld(7) as world:

        async def program(ports: SimPorts) -> None:
            ports.disk.make_directory(DATA)
            store = RaftStore(ports.disk, DATA, ports.clock, segment_bytes=150)
            failed: list[Exception] = []
            told: list[str] = []
            attach(store, ports, failed=failed)
            store.store(Outcome(hard_state=FIRST_TERM), lambda: None)
            for index in range(1, 9):
                store.store(Outcome(append=[entry(index)]), lambda: None)
                await store.settled()
            calls = 0

            def no_descriptor(call: str, path: str) -> int | None:
                nonlocal calls
                calls += call in NEED_A_DESCRIPTOR
                return errno.EMFILE if call in NEED_A_DESCRIPTOR and step <= calls < step + 2 else None

            ports.disk.fail_call = no_descriptor
            store.store(outcome, lambda: told.append("done"))
            await asyncio.sleep(10)
            ports.disk.fail_call = None
            assert calls > step
            assert (failed, store.log.offline, told) == ([], None, ["done"])
            expected = store.stored()
            ports.disk.crash()
            found = RaftStore(ports.disk, DATA, Clock()).stored()
            assert found.snapshot == expected.snapshot
            indexes = [one.index for one in found.entries]
            if kind == "compact":  # whole segments go, and may go later
                assert indexes == list(range(indexes[0], 9))
                assert indexes[0] <= 5
            else:
                assert indexes == ([1, 2] if kind == "truncate" else [])

        async def main() -> None:
            await world.machine("node-1").start(program)

        world.run(main(), timeout_s=60)


def test_a_failed_sync_is_the_end() -> None:
    with SimWorld(6) as world:

        async def program(ports: SimPorts) -> None:
            ports.disk.make_directory(DATA)
            store = RaftStore(ports.disk, DATA, ports.clock)
            failed: list[Exception] = []
            told: list[str] = []
            attach(store, ports, failed=failed)
            ports.disk.fail_sync = lambda path: path.endswith(".log")
            store.store(Outcome(append=[entry(1)]), lambda: told.append("entry 1"))
            store.store(Outcome(append=[entry(2)]), lambda: told.append("entry 2"))
            await store.settled()
            await asyncio.sleep(5)
            assert len(failed) == 1
            assert told == []

        async def main() -> None:
            await world.machine("node-1").start(program)

        world.run(main(), timeout_s=60)


@pytest.mark.parametrize(
    ("part", "outcome"),
    [("_settle", Outcome(hard_state=HardState(2))), ("_append", Outcome(append=[entry(1)]))],
)
def test_a_defect_while_writing_is_the_end(part: str, outcome: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    defect = RuntimeError("a defect")

    def fail(_: object) -> None:
        raise defect

    with SimWorld(7) as world:

        async def program(ports: SimPorts) -> None:
            ports.disk.make_directory(DATA)
            store = RaftStore(ports.disk, DATA, ports.clock)
            failed: list[Exception] = []
            told: list[str] = []
            attach(store, ports, failed=failed)
            monkeypatch.setattr(store, part, fail)
            store.store(outcome, lambda: told.append("stored"))
            await store.settled()
            assert (failed, store.failure, told) == ([defect], defect, [])

        async def main() -> None:
            await world.machine("node-1").start(program)

        world.run(main(), timeout_s=60)


@pytest.mark.parametrize("seed", range(20))
def test_what_a_start_has_found_stays_after_a_power_failure(seed: int) -> None:
    """A killed process may leave an entry in the page cache alone. The next start counts it, so it must stay."""
    disk = new_disk(seed)
    first = begun(disk)
    first.store_blocking(Outcome(append=[entry(1)]))
    first._append([entry(2)])  # no flush
    disk.kill()
    found = reopened(disk).entries
    assert len(found) == 2
    disk.crash()
    assert reopened(disk).entries == found


# ---- terms that cannot be


def test_a_term_that_no_quorum_reaches_is_healed(caplog: pytest.LogCaptureFixture) -> None:
    disk = new_disk()
    store = begun(disk)
    store.first_voters = (1, 2, 3)
    store.store_blocking(Outcome(append=[entry(1)]))
    store.store_blocking(Outcome(hard_state=HardState(2**31 - 1, 2)))
    found = RaftStore(disk, DATA, Clock())
    found.heal_term()
    assert "has term 2147483647, which no quorum can reach" in caplog.text
    assert reopened(disk) == Stored(HardState(HEALED_TERM), None, (entry(1),)), "on the disk, and the vote is forgotten"
    assert found.first_voters == (1, 2, 3)
    caplog.clear()
    RaftStore(disk, DATA, Clock()).heal_term()
    assert not caplog.text


def test_a_log_of_such_a_term_is_refused_with_what_to_do() -> None:
    disk = new_disk()
    store = begun(disk)
    store.store_blocking(Outcome(hard_state=HardState(2**31 - 1), append=[entry(1, 2**31 - 1)]))
    with pytest.raises(StorageError, match="has entries of term 2147483647, which no quorum can reach"):
        RaftStore(disk, DATA, Clock()).heal_term()


def test_a_term_within_reach_stays() -> None:
    disk = new_disk()
    store = begun(disk)
    store.store_blocking(Outcome(hard_state=HardState(LAST_TERM, 2)))
    store.heal_term()
    assert reopened(disk).hard_state == HardState(LAST_TERM, 2)


# ---- a disk that began empty


def test_a_disk_that_began_empty_says_so_until_it_is_told_otherwise() -> None:
    disk = new_disk()
    assert RaftStore(disk, DATA, Clock()).stored().hard_state == HardState(is_new=True)
    store = RaftStore(disk, DATA, Clock())
    store.store_blocking(Outcome(hard_state=HardState(3, None, True)))
    assert reopened(disk).hard_state == HardState(3, None, True)
    store.store_blocking(Outcome(hard_state=HardState(3, 2)))
    assert reopened(disk).hard_state == HardState(3, 2)
