"""The progress of reassignments: the bytes that new replicas have and need, and the brokers that they wait for."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from penstock.cli.cluster.plans import ids
from penstock.cli.output import show_table

if TYPE_CHECKING:
    from penstock.wire_client.blocking.cluster_admin import ClusterAdmin
    from penstock.wire_client.requests.replicas import ReplicaMove

LOOK_EVERY_S = 1.0


class MoveProgress(NamedTuple):
    move: ReplicaMove
    moved_bytes: int
    needed_bytes: int
    is_led: bool
    down: tuple[int, ...]
    """Brokers among the new replicas that are down."""

    @property
    def share(self) -> float:
        return self.moved_bytes / self.needed_bytes if self.needed_bytes else 1.0

    def as_object(self) -> dict[str, object]:
        return {
            "topic": self.move.topic,
            "partition": self.move.partition,
            "replicas": list(self.move.replicas),
            "adding": list(self.move.adding),
            "removing": list(self.move.removing),
            "moved_bytes": self.moved_bytes,
            "needed_bytes": self.needed_bytes,
        }


def progress_of(admin: ClusterAdmin) -> list[MoveProgress]:
    moves = admin.moves()
    up = [one.node_id for one in admin.nodes().brokers if not one.is_fenced] if moves else []
    keys = [(one.topic, one.partition) for one in moves]
    sizes = admin.sizes(keys)
    leaders = {(one.topic, one.partition): one.leader for one in admin.partitions(dict.fromkeys(t for t, _ in keys))}
    found: list[MoveProgress] = []
    for key, one in zip(keys, moves, strict=True):
        by_broker = sizes.get(key, {})
        old = [by_broker.get(replica, 0) for replica in one.replicas if replica not in one.adding]
        leader = leaders.get(key)
        whole = max(old, default=0) if leader is None else by_broker.get(leader, 0)
        moved = sum(min(by_broker.get(replica, 0), whole) for replica in one.adding)
        down = tuple(replica for replica in one.replicas if replica not in one.removing and replica not in up)
        found.append(MoveProgress(one, moved, whole * len(one.adding), leader is not None, down))
    return found


def show_progress(found: Sequence[MoveProgress]) -> None:
    show_table(
        ("TOPIC", "PARTITION", "ADDING", "REMOVING", "MOVED", "NEEDED", "DONE"),
        [
            (
                one.move.topic,
                one.move.partition,
                ids(one.move.adding),
                ids(one.move.removing),
                one.moved_bytes,
                one.needed_bytes,
                f"{one.share:.0%}",
            )
            for one in found
        ],
    )


def watch_moves(admin: ClusterAdmin, *, as_json: bool) -> None:
    """Watches until no reassignment is under way. Prints a line or a JSON object each second."""
    last: dict[tuple[str, int], MoveProgress] = {}
    stuck: dict[str, None] = {}
    said = ""
    while found := progress_of(admin):
        _tell_stuck(found, stuck)
        last.update({(one.move.topic, one.move.partition): one for one in found})
        under_way = {(one.move.topic, one.move.partition) for one in found}
        # A reassignment that is done has moved all the bytes that it needed.
        moved = sum(one.moved_bytes if key in under_way else one.needed_bytes for key, one in last.items())
        said = _say(said, len(last) - len(found), len(last), moved, _needed(last), as_json)
        time.sleep(LOOK_EVERY_S)
    if last:
        _say(said, len(last), len(last), _needed(last), _needed(last), as_json)
    elif as_json:
        _say("", 0, 0, 0, 0, as_json)
    else:
        click.echo("No reassignments under way.", err=True)


def _tell_stuck(found: Sequence[MoveProgress], told: dict[str, None]) -> None:
    """Says once what a reassignment waits for: it may wait for ever."""
    for one in found:
        name = f"{one.move.topic}-{one.move.partition}"
        if not one.is_led:
            what = f"{name} has no leader: it waits for a broker that has its records"
        elif one.down:
            what = (
                f"{name} waits for brokers that are down: {ids(one.down)}. All its new replicas must be in sync first"
            )
        else:
            continue
        if what not in told:
            told[what] = None
            click.echo(f"{what} (`penstock cluster describe`)", err=True)


def _needed(progress: dict[tuple[str, int], MoveProgress]) -> int:
    return sum(one.needed_bytes for one in progress.values())


def _say(said: str, done: int, count: int, moved: int, needed: int, as_json: bool) -> str:
    """Prints a line unless it repeats the last one."""
    if as_json:
        line = json.dumps({"done": done, "partitions": count, "moved_bytes": moved, "needed_bytes": needed})
    else:
        share = f"{moved / needed:.0%}" if needed else "100%"
        line = f"{done} of {count} partitions done, {moved} of {needed} bytes moved ({share})"
    if line != said:
        click.echo(line)
    return line
