"""Promises to groups: committed offsets are kept, and no partition belongs to two members at once.

A committed offset is a register. A read is correct if it returns a commit that began before the read ended and was not
certainly overwritten before the read began; or nothing, while nothing was acknowledged or it was deleted. A member that
no longer owns a partition cannot overwrite a commit of the next owner, however late its own commit arrives. Must not
know: coordinators.
"""

from __future__ import annotations

from penstock.sim.judges.history import NOTHING, Commit, History, OffsetRead, Outcome, Owned, Place, Violation


def check_groups(history: History) -> None:
    check_assignments(history)
    check_owners(history)
    commits: dict[tuple[str, Place], list[Commit]] = {}
    for commit in history.commits:
        commits.setdefault((commit.group, commit.place), []).append(commit)
    for read in history.offset_reads:
        _check_read(read, commits.get((read.group, read.place), []))


def check_assignments(history: History) -> None:
    owners: dict[tuple[str, int, Place], str] = {}
    for assigned in history.assigned:
        for place in assigned.places:
            owner = owners.setdefault((assigned.group, assigned.generation, place), assigned.member)
            if owner != assigned.member:
                raise Violation(
                    "a partition has one owner",
                    f"{assigned.group}, generation {assigned.generation}: {place} belongs to {owner} and to "
                    f"{assigned.member}",
                )


def check_owners(history: History) -> None:
    """A partition held by one member is held by no other, also across generations."""
    last: dict[tuple[str, Place], Owned] = {}
    for owned in sorted(history.owned, key=lambda owned: owned.begun_s):
        if owned.until_s <= owned.begun_s:
            continue
        key = owned.group, owned.place
        before = last.get(key)
        if before is not None and before.member != owned.member and owned.begun_s < before.until_s:
            raise Violation(
                "a partition has one owner",
                f"{owned.group}: {owned.place} belongs to {before.member} from {before.begun_s:.3f} to "
                f"{before.until_s:.3f} s and is given to {owned.member} at {owned.begun_s:.3f} s",
            )
        if before is None or before.until_s < owned.until_s:
            last[key] = owned


def _check_read(read: OffsetRead, commits: list[Commit]) -> None:
    done = [
        commit
        for commit in commits
        if commit.outcome is Outcome.ACKNOWLEDGED and commit.ended_s is not None and commit.ended_s < read.begun_s
    ]
    # Commits that ended before the youngest of these began were overwritten.
    youngest = max(done, key=lambda commit: commit.begun_s, default=None)
    if read.offset == NOTHING and youngest is None:
        return
    for commit in commits:
        if commit.offset != read.offset or commit.begun_s > read.ended_s or commit.outcome is Outcome.REFUSED:
            continue
        if youngest is None or not _is_overwritten(commit, youngest):
            return
    if youngest is None:
        raise Violation("committed offsets are kept", f"{read.group} {read.place}: {read.offset} was never committed")
    raise Violation("committed offsets are kept", _story(read, youngest))


def _is_overwritten(commit: Commit, youngest: Commit) -> bool:
    if commit.outcome is Outcome.ACKNOWLEDGED and commit.ended_s is not None:
        return commit.ended_s < youngest.begun_s
    # Unknown: it may arrive at any time, and be refused.
    return commit.member != youngest.member and commit.begun_s < youngest.begun_s


def _story(read: OffsetRead, youngest: Commit) -> str:
    return (
        f"{read.group} {read.place}: {youngest.offset} of {youngest.member} (generation {youngest.generation}) was "
        f"acknowledged at {youngest.ended_s:.3f} s, and {read.offset} was read at {read.begun_s:.3f} s"
    )
