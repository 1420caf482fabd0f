"""While nothing comes: how long `penstock consume` goes on, and what it says meanwhile."""

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
SESSION_TIMEOUT_S = 45.0  # that of members which do not say otherwise
REBALANCING = ("PreparingRebalance", "CompletingRebalance")


class Waiting(Protocol):
    def heard(self) -> None:
        """A record came."""

    def wait(self) -> None:
        """None came for a moment."""


class Patience:
    """Reading to an end must end, whatever becomes of the broker."""

    def __init__(self, target: Target, topic: str) -> None:
        self._target = target
        self._topic = topic
        self._heard_at = time.monotonic()

    def heard(self) -> None:
        self._heard_at = time.monotonic()

    def wait(self) -> None:
        if time.monotonic() - self._heard_at > self._target.timeout_s:
            self._target.check()
            raise PenstockError(f"nothing came from {self._topic} for {self._target.timeout_s:g} s before its end")


class GroupPatience(Patience):
    """A group that lost a member without a word gives nobody anything until that member's session is over."""

    def __init__(self, target: Target, topic: str, consumer: BlockingConsumer, group_id: str) -> None:
        super().__init__(target, topic)
        self._consumer = consumer
        self._group_id = group_id
        self._looked_at = self._heard_at
        self._has_told = False
        self._has_partitions = False

    def wait(self) -> None:
        if self._consumer.assignment():
            if not self._has_partitions:
                self._has_partitions = True
                self.heard()
            super().wait()
            return
        self._has_partitions = False
        now = time.monotonic()
        if now - self._looked_at < min(LOOK_S, self._target.timeout_s / 2):
            return
        self._looked_at = now
        waited_s = now - self._heard_at
        # Of the time that is left; members that are waited for may take longer than that.
        left_s = self._target.timeout_s - waited_s
        target = replace(self._target, timeout_s=max(left_s, SHORT_LOOK_S) if left_s > 0 else LOOK_S)
        with target.admin() as admin:
            group = admin.group(self._group_id)
        if group.state in REBALANCING:
            if waited_s > SESSION_TIMEOUT_S + self._target.timeout_s:
                raise PenstockError(
                    f"group {self._group_id} has waited {waited_s:.0f} s for a member that does not answer: "
                    f"`penstock groups explain --group {self._group_id}` tells more"
                )
            # Alone it waits for nobody: a group's first members are given a moment to come together.
            if not self._has_told and len(group.members) > 1:
                self._has_told = True
                _tell(
                    f"group {self._group_id} is waiting for a member that does not answer; it goes on when that "
                    f"member's session is over ({SESSION_TIMEOUT_S:g} s unless it said otherwise)"
                )
        elif waited_s > self._target.timeout_s:
            raise PenstockError(
                f"group {self._group_id} gave this member no partition of {self._topic}: "
                f"its {len(group.members)} members have them (`penstock groups describe --group {self._group_id}`)"
            )


class Watch:
    """Tells those who follow when the broker or the topic is gone, and when it is back."""

    def __init__(
        self, target: Target, consumer: BlockingConsumer, topic: str, partitions: tuple[int, ...] | None = None
    ) -> None:
        """`partitions`: those that are read without a group, none for all."""
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
                # Another topic of the same name: all of it is new. A group is told by its coordinator.
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
