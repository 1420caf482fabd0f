"""What a group was promised: offsets that were committed are kept, and no partition belongs to two members at once.

A committed offset is a register. A read of it is right if it returns a commit that began before the read ended and was
not certainly overwritten before the read began; nothing at all only while nothing was acknowledged. Must not know:
coordinators.
"""

from __future__ import annotations

from penstock.sim.history import Commit, History, OffsetRead, Outcome, Place, Violation


def check_groups(history: History) -> None:
    check_assignments(history)
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


def _check_read(read: OffsetRead, commits: list[Commit]) -> None:
    done = [
        commit
        for commit in commits
        if commit.outcome is Outcome.ACKNOWLEDGED and commit.ended_s is not None and commit.ended_s < read.begun_s
    ]
    # Whatever ended before the youngest of these began was overwritten.
    youngest = max(done, key=lambda commit: commit.begun_s, default=None)
    if read.offset < 0:
        if youngest is not None:
            raise Violation("committed offsets are kept", _story(read, youngest))
        return
    for commit in commits:
        if commit.offset != read.offset or commit.begun_s > read.ended_s or commit.outcome is Outcome.REFUSED:
            continue
        is_acknowledged = commit.outcome is Outcome.ACKNOWLEDGED and commit.ended_s is not None
        is_overwritten = is_acknowledged and youngest is not None and (commit.ended_s or 0.0) < youngest.begun_s
        if not is_overwritten:
            return
    if youngest is None:
        raise Violation("committed offsets are kept", f"{read.group} {read.place}: nobody committed {read.offset}")
    raise Violation("committed offsets are kept", _story(read, youngest))


def _story(read: OffsetRead, youngest: Commit) -> str:
    return (
        f"{read.group} {read.place}: {youngest.offset} of {youngest.member} (generation {youngest.generation}) was "
        f"acknowledged at {youngest.ended_s:.3f} s, and {read.offset} was read at {read.begun_s:.3f} s"
    )
