"""Tracks which brokers are alive, on the active controller.

A broker is fenced if it was silent for `broker.session.timeout.ms`, or if its connection broke, or was refused, and did
not come back within `penstock.broker.lost.grace.ms`, unless it has sent a heartbeat since. A killed process closes its
sockets at once, so its leaders move within a fraction of a second. A broker that was never reached proves nothing: this
process may have just begun. Silence counts from the moment this node became the controller.
Must not know: what fencing means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from penstock.cluster.running_config import RunningConfig
from penstock.core.metadata.image import MetadataImage
from penstock.ports.clock import Clock

INTERVAL_S = 0.5


class Fencing(Protocol):
    """The part of `cluster.controller.Controller` that the watch uses."""

    def fence(self, broker_id: int) -> None:
        """Runs soon, not within the call."""
        ...

    def move_leaders_back(self) -> None:
        """Runs soon, not within the call."""
        ...


class BrokerWatch:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        node_id: int,
        image: MetadataImage,
        running: RunningConfig,
        clock: Clock,
        lost_since: Callable[[int], float | None],
    ) -> None:
        self._loop = loop
        self._node_id = node_id
        self._image = image
        self._running = running
        self._clock = clock
        self._lost_since = lost_since
        self._heard_s: dict[int, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._broken: dict[int, float] = {}  # since when, without a heartbeat since
        self._balanced_s = clock.monotonic()
        self._controller: Fencing | None = None
        self._started_s = 0.0

    def start(self, controller: Fencing) -> None:
        """This node is the controller now."""
        self._controller = controller
        self._started_s = self._clock.monotonic()
        self._heard_s = dict.fromkeys(self._image.brokers, self._started_s)
        self._look_within(0.0)

    def stop(self) -> None:
        self._controller = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # # -- heartbeats and losses ------------------------------------------------------------

    def heard(self, broker_id: int) -> None:
        self._heard_s[broker_id] = self._clock.monotonic()
        self._broken.pop(broker_id, None)
        self._look_within(INTERVAL_S)

    def forget(self, broker_id: int) -> None:
        self._heard_s.pop(broker_id, None)

    def peer_lost(self, peer: int) -> None:
        """A connection broke, or was refused: check when the grace period ends, unless it comes back."""
        self._broken.setdefault(peer, self._clock.monotonic())
        if peer in self._image.brokers:
            self._look_within(self._running.current.penstock_broker_lost_grace_ms / 1000)

    def is_heard_of(self, broker_id: int) -> bool:
        """Whether a broker with this id seems to be running."""
        if broker_id in self._broken or self._lost_since(broker_id) is not None:
            return False  # a process that is back at once is a new one, until the old one sends a heartbeat
        heard_s = self._heard_s.get(broker_id)
        if heard_s is None:
            return False
        return (self._clock.monotonic() - heard_s) * 1000 < self._running.current.broker_session_timeout_ms

    def silences_s(self) -> dict[int, float]:
        """How long ago each broker sent its last heartbeat; empty while another node is the controller."""
        now_s = self._clock.monotonic()
        return {} if self._controller is None else {broker: now_s - at_s for broker, at_s in self._heard_s.items()}

    def reason_to_fence(self, broker_id: int) -> str | None:
        return self._judge(broker_id)[0]

    def _judge(self, broker_id: int) -> tuple[str | None, float]:
        """The reason to fence it now, or else in how many seconds to check again."""
        now_s, config = self._clock.monotonic(), self._running.current
        heard_s = self._heard_s.setdefault(broker_id, now_s)
        if (now_s - heard_s) * 1000 >= config.broker_session_timeout_ms:
            return f"it sent no heartbeat for {now_s - heard_s:.1f} s", 0.0
        lost_s, broken_s = self._lost_since(broker_id), self._broken.get(broker_id)
        if lost_s is None or broken_s is None:
            return None, INTERVAL_S
        # The last heartbeat of a killed broker may be read after its end; the refused connections are reported again.
        lost_s = max(lost_s, broken_s)
        # A connection lost long before this node became the controller: most likely that of the former controller.
        if heard_s > max(lost_s, self._started_s):
            return None, INTERVAL_S
        left_s = lost_s + config.penstock_broker_lost_grace_ms / 1000 - now_s
        if left_s <= 0:
            return "its connections broke and did not come back", 0.0
        return None, left_s

    # # -- checks -------------------------------------------------------------------------

    def _look_within(self, delay_s: float) -> None:
        """A sole broker has no others to watch, and no timer."""
        if self._controller is None or not any(broker != self._node_id for broker in self._image.brokers):
            return
        due_s = self._loop.time() + delay_s
        if self._timer is not None:
            if self._due_s <= due_s:
                return
            self._timer.cancel()
        self._due_s = due_s
        self._timer = self._loop.call_later(delay_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._controller is None:
            return
        again_s = INTERVAL_S
        for broker in self._image.brokers.values():
            if broker.is_fenced or broker.broker_id == self._node_id:
                continue
            reason, left_s = self._judge(broker.broker_id)
            if reason is None:
                again_s = min(again_s, left_s)
            else:
                self._controller.fence(broker.broker_id)
        self._balance(self._clock.monotonic())
        self._look_within(again_s)

    def _balance(self, now_s: float) -> None:
        config = self._running.current
        if now_s - self._balanced_s >= config.leader_imbalance_check_interval_seconds:
            self._balanced_s = now_s
            if config.auto_leader_rebalance_enable and self._controller is not None:
                self._controller.move_leaders_back()
