"""How long `penstock consume` waits while no records arrive, and the messages it prints meanwhile."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import click

from penstock.cli.reach.connection import Target
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from penstock.sdk import BlockingConsumer

LOOK_S = 3.0
SHORT_LOOK_S = 1.0
SESSION_TIMEOUT_S = 45.0  # Kafka's default, for members that set none
REBALANCING = ("PreparingRebalance", "CompletingRebalance")


class IdleWatch(Protocol):
    def heard(self) -> None:
        """A record arrived."""

    def wait(self) -> None:
        """No record arrived during one poll."""


class Patience:
    """Ends a read that has an end, even if the broker stops answering."""

    def __init__(self, target: Target, topic: str) -> None:
        self._target = target
        self._topic = topic
        self.heard_at = time.monotonic()

    def heard(self) -> None:
        self.heard_at = time.monotonic()

    def wait(self) -> None:
        if time.monotonic() - self.heard_at > self._target.timeout_s:
            self._target.check()
            raise PenstockError(f"no records from {self._topic} for {self._target.timeout_s:g} s before its end")


class GroupPatience:
    """Waits longer during a rebalance: a group assigns nothing until the session of a lost member times out."""

    def __init__(self, target: Target, topic: str, consumer: BlockingConsumer, group_id: str) -> None:
        self._target = target
        self._topic = topic
        self._assigned = Patience(target, topic)
        self._consumer = consumer
        self._group_id = group_id
        self._looked_at = self._assigned.heard_at
        self._has_told = False
        self._has_partitions = False

    def heard(self) -> None:
        self._assigned.heard()

    def wait(self) -> None:
        if self._consumer.assignment():
            if not self._has_partitions:
                self._has_partitions = True
                self.heard()
            self._assigned.wait()
            return
        self._has_partitions = False
        now = time.monotonic()
        if now - self._looked_at < min(LOOK_S, self._target.timeout_s / 2):
            return
        self._looked_at = now
        waited_s = now - self._assigned.heard_at
        # The time that is left. A rebalance that waits for a member may take longer.
        left_s = self._target.timeout_s - waited_s
        target = replace(self._target, timeout_s=max(left_s, SHORT_LOOK_S) if left_s > 0 else LOOK_S)
        with target.admin() as admin:
            group = admin.group(self._group_id)
        if group.state in REBALANCING:
            if waited_s > SESSION_TIMEOUT_S + self._target.timeout_s:
                raise PenstockError(
                    f"group {self._group_id} has waited {waited_s:.0f} s for a member that does not answer: "
                    f"`penstock groups explain --group {self._group_id}` shows more"
                )
            # A sole member waits for no other: a new group waits a moment for its first members to join.
            if not self._has_told and len(group.members) > 1:
                self._has_told = True
                _tell(
                    f"group {self._group_id} is waiting for a member that does not answer; the rebalance continues "
                    f"when that member's session times out ({SESSION_TIMEOUT_S:g} s by default)"
                )
        elif waited_s > self._target.timeout_s:
            raise PenstockError(
                f"group {self._group_id} assigned no partition of {self._topic} to this member: "
                f"its {len(group.members)} members have them all (`penstock groups describe --group {self._group_id}`)"
            )


class OutageWatch:
    """Reports with --follow that the broker or the topic is gone, and that it is back."""

    def __init__(
        self, target: Target, consumer: BlockingConsumer, topic: str, partitions: tuple[int, ...] | None = None
    ) -> None:
        """`partitions`: the partitions read without a group; empty for all, None with a group."""
        self._target = target
        self._consumer = consumer
        self._topic = topic
        self._partitions = partitions
        self._looked_at = time.monotonic()
        self._gone = ""

    def heard(self) -> None:
        self._looked_at = time.monotonic()
        self._now(gone="")

    def wait(self) -> None:
        if time.monotonic() - self._looked_at < LOOK_S:
            return
        from penstock.sdk import TimedOut, UnknownTopic, Unreachable

        was_deleted = self._gone == f"topic {self._topic}"
        try:
            found = self._consumer.partitions(self._topic)
        except UnknownTopic:
            self._now(gone=f"topic {self._topic}")
        except (Unreachable, TimedOut):
            self._now(gone=f"the broker at {self._target.servers}")
        else:
            self._now(gone="")
            if was_deleted and self._partitions is not None:
                # A new topic of the same name: read all of it. In a group the coordinator reassigns.
                wanted = [one for one in found if not self._partitions or one.partition in self._partitions]
                self._consumer.assign(*wanted, at="earliest")
        self._looked_at = time.monotonic()

    def _now(self, gone: str) -> None:
        if gone and not self._gone:
            _tell(f"{gone} is gone: waiting for it")
        elif self._gone and not gone:
            _tell(f"{self._gone} is back")
        self._gone = gone


def _tell(sentence: str) -> None:
    click.echo(f"penstock: {sentence}", err=True)
