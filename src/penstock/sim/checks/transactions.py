"""The promises to transactional producers, compared with the final content of the logs.

A transaction is committed as a whole or not at all, in all partitions and with the offsets of its source. An
acknowledged commit stays, and a transaction without a commit request is never committed. So every row of a source
appears in the output once. Must not know: brokers, how logs were read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.sim.judges.history import Place, Violation
from penstock.sim.judges.transactions import Attempt, Begun, Ending, SentRecord, TransactionHistory
from penstock.sim.workload.reading.committed import Ended

WHOLE = "a transaction is whole"
STAYS = "a commit that was acknowledged stays"
ABORTED = "nothing aborted is committed"
OFFSETS = "offsets are committed with their transaction"
ONCE = "a row comes out once"
KEPT = "acknowledged commits are kept"
PREPARED = "a prepared transaction waits for its decision"
CONFIRMED = "a commit that is asked for again is confirmed"
READ = "records read as committed stay committed"


@dataclass(slots=True)
class _Found:
    """The records of one attempt in the logs."""

    attempt: Attempt
    committed: list[SentRecord] = field(default_factory=list)
    missing: list[SentRecord] = field(default_factory=list)
    """Records that were sent but are not committed."""

    @property
    def is_committed(self) -> bool:
        return bool(self.committed)


def check_transactions(
    history: TransactionHistory, final: Mapping[Place, Sequence[Ended]], read: Mapping[Place, int]
) -> None:
    """`final`: all records of each partition; `read`: the committed offset of each source."""
    _check_logs(history, final)
    found = _find(history, final)
    for one in found:
        _check_ending(one)
    again = _check_source_reads(history, found)
    for source, offset in read.items():
        _check_rows([one for one in found if one.attempt.source == source], source, offset, again.get(source, range(0)))
    _check_delivered(history, final)
    _check_repeats(history, found)
    _check_prepared(history, found)
    check_begun(history.begun)


def _check_logs(history: TransactionHistory, final: Mapping[Place, Sequence[Ended]]) -> None:
    """Every record in the logs, committed or not, was sent once, in order, and is at its acknowledged offset."""
    by_value = {sent.value: (attempt, sent) for attempt in history.attempts for sent in attempt.sent}
    offsets: dict[tuple[Place, bytes], int] = {}
    last: dict[tuple[Place, int], SentRecord] = {}
    for place, records in final.items():
        for record in sorted(records):
            known = by_value.get(record.value)
            if known is None or known[1].place != place:
                raise Violation("nothing is made up", f"{record.value!r} at {place}@{record.offset} was never sent")
            attempt, sent = known
            first = offsets.setdefault((place, record.value), record.offset)
            if first != record.offset:
                raise Violation("nothing comes twice", f"{record.value!r} is at {place}@{first} and {record.offset}")
            before = last.get((place, attempt.instance))
            if before is not None and before.number > sent.number:
                raise Violation(
                    "a lane is in order", f"{before.value!r} comes before {sent.value!r} at {place}@{record.offset}"
                )
            last[place, attempt.instance] = sent
    for _, sent in by_value.values():
        offset = offsets.get((sent.place, sent.value))
        if sent.offset >= 0 and sent.place in final and offset != sent.offset:
            raise Violation(KEPT, f"{sent.value!r} was acknowledged at {sent.place}@{sent.offset}, but is at {offset}")


def _find(history: TransactionHistory, final: Mapping[Place, Sequence[Ended]]) -> list[_Found]:
    committed = {record.value for records in final.values() for record in records if record.is_committed}
    found = []
    for attempt in history.attempts:
        one = _Found(attempt)
        for sent in attempt.sent:
            (one.committed if sent.value in committed else one.missing).append(sent)
        found.append(one)
    return found


def _check_ending(one: _Found) -> None:
    attempt = one.attempt
    if attempt.ending in (Ending.OPEN, Ending.ABORTED) and one.is_committed:
        raise Violation(
            ABORTED,
            f"{attempt.name} (epoch {attempt.epoch}) ended as {attempt.ending.value}, but {one.committed[0].value!r} "
            f"in {one.committed[0].place} is committed",
        )
    if attempt.ending is Ending.COMMITTED and not one.is_committed:
        raise Violation(
            STAYS,
            f"{attempt.name} (epoch {attempt.epoch}) was committed at {attempt.ended_s} s, but none of its records is",
        )
    if one.is_committed and one.missing:
        raise Violation(
            WHOLE,
            f"{attempt.name} (epoch {attempt.epoch}, {attempt.ending.value}): {one.committed[0].value!r} in "
            f"{one.committed[0].place} is committed, but {one.missing[0].value!r} in {one.missing[0].place} is not",
        )


def _check_rows(found: Sequence[_Found], source: Place, read: int, again: range) -> None:
    """The rows of committed transactions have no gaps up to the committed offset of the source. Each has one
    transaction; those in `again` may have several.
    """
    committed = [one.attempt for one in found if one.is_committed and one.attempt.rows]
    times = Counter(row for attempt in committed for row in attempt.rows)
    for row in range(max((*times, read - 1), default=-1) + 1):
        if times[row] == (1 if row < read else 0) or (row in again and row < read and times[row] > 1):
            continue
        names = [attempt.name for attempt in committed if row in attempt.rows]
        raise Violation(ONCE, f"row {row} of {source} is in {names or 'nothing'}; the committed offset is {read}")


def _check_source_reads(history: TransactionHistory, found: Sequence[_Found]) -> dict[Place, range]:
    """Every committed offset that was read comes from a committed transaction, and is recent enough.

    A coordinator that was replaced may return an older one until its lease is over. An instance that goes on from there
    transforms rows again, and its commit takes the offset back. Returns these rows.
    """
    again: dict[Place, range] = {}
    ends: dict[Place, dict[int, _Found]] = {}
    for one in found:
        if one.is_committed and one.attempt.rows:
            ends.setdefault(one.attempt.source, {})[one.attempt.rows.stop] = one
    for read in history.source_reads:
        known = ends.get(read.source, {})
        if read.offset and read.offset not in known:
            raise Violation(
                OFFSETS,
                f"the committed offset of {read.source} was {read.offset} at {read.ended_s:.3f} s, but no committed "
                "transaction has it",
            )
        for end, one in known.items():
            ended_s = one.attempt.ended_s
            is_known = one.attempt.ending is Ending.COMMITTED and ended_s is not None and ended_s < read.begun_s
            if not is_known or end <= read.offset:
                continue
            known_again = again.get(read.source, range(read.offset, read.offset))
            if read.is_excused:
                first, after = min(known_again.start, read.offset), max(known_again.stop, end)
                again[read.source] = range(first, after)
            elif end > known_again.stop or read.offset < known_again.start:
                raise Violation(
                    OFFSETS,
                    f"{one.attempt.name} committed {end} for {read.source} at {ended_s} s, but {read.offset} was read "
                    f"at {read.begun_s:.3f} s",
                )
    return again


def _check_delivered(history: TransactionHistory, final: Mapping[Place, Sequence[Ended]]) -> None:
    for place, delivered in history.delivered.items():
        committed = {record.offset: record.value for record in final.get(place, ()) if record.is_committed}
        for offset, record in delivered.items():
            if place in final and committed.get(offset) != record.value:
                raise Violation(
                    READ,
                    f"{record.reader} read {record.value!r} at {place}@{offset} at {record.at_s:.3f} s, but it is not "
                    "committed",
                )
    for place, offsets in history.audited.items():
        for one in final.get(place, ()):
            if one.is_committed and one.offset not in offsets:
                raise Violation(
                    "committed records are read",
                    f"{one.value!r} at {place}@{one.offset} is committed, and a reader of committed records was not "
                    "given it",
                )


def _check_repeats(history: TransactionHistory, found: Sequence[_Found]) -> None:
    """A repeated request for a successful commit is confirmed, unless another producer has started meanwhile."""
    for one in found:
        attempt = one.attempt
        if not attempt.refusal or not one.is_committed or attempt.asked_s is None or attempt.ended_s is None:
            continue
        if not _may_be_replaced(history, attempt, attempt.asked_s, attempt.ended_s):
            raise Violation(
                CONFIRMED,
                f"{attempt.name} (producer {attempt.producer_id}, epoch {attempt.epoch}) is committed, but a repeated "
                f"request got {attempt.refusal}",
            )


def _check_prepared(history: TransactionHistory, found: Sequence[_Found]) -> None:
    """A decision to commit is carried out, however late, unless another producer has begun meanwhile."""
    for one in found:
        attempt = one.attempt
        is_refused = attempt.ending is Ending.ABORTED or bool(attempt.refusal)
        if attempt.prepared_s is None or not attempt.is_decided_to_commit or one.is_committed or not is_refused:
            continue
        assert attempt.ended_s is not None
        if not _may_be_replaced(history, attempt, attempt.begun_s, attempt.ended_s):
            raise Violation(
                PREPARED,
                f"{attempt.name} (producer {attempt.producer_id}, epoch {attempt.epoch}) was prepared at "
                f"{attempt.prepared_s:.3f} s, and its commit was refused at {attempt.ended_s:.3f} s",
            )


def _may_be_replaced(history: TransactionHistory, attempt: Attempt, since_s: float, until_s: float) -> bool:
    """Whether a coordinator may have heard in that time that a producer wants to begin."""
    asked = history.asked.get(attempt.transactional_id, [])
    return any(one.at_s < until_s and one.until_s > since_s for one in asked)


def check_begun(begun: Sequence[Begun]) -> None:
    """No two instances get the same producer id and epoch."""
    owners: dict[tuple[int, int], Begun] = {}
    for one in begun:
        first = owners.setdefault((one.producer_id, one.epoch), one)
        if first.instance != one.instance:
            raise Violation(
                "an epoch belongs to one producer",
                f"{first.transactional_id}.{first.instance} and {one.transactional_id}.{one.instance} were both given "
                f"producer {one.producer_id} with epoch {one.epoch}",
            )
