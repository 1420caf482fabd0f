"""A deposed leader learns of it in time: without contact to the controller it accepts no writes for longer than one
session after another leader was elected, or two sessions if a controller answered in between (one about to be deposed,
or a new one just before it reads the decision).

Writes accepted until then are acknowledged with acks=1 and lost, as promised; later ones must not be. A suspended
machine gets the time that it could not notice. And a leader without contact to a controller for a session, by its own
clock, accepts nothing at all, whether or not another broker leads. Must not know: nodes, clients, faults.
"""

from __future__ import annotations

from penstock.sim.judges.history import Violation

SLACK_S = 0.5
"""A controller may answer a heartbeat and be deposed, and its last decision may be committed later."""

Key = tuple[str, int]
"""Topic id and partition."""


class LeaseChecker:
    def __init__(self) -> None:
        self._begun: dict[Key, list[tuple[int, float]]] = {}  # leader epochs and their times
        self._leaders: dict[Key, list[tuple[int, float]]] = {}  # in the order of these epochs: broker, since when
        self._answered: dict[str, float] = {}  # process -> send time of its last answered heartbeat

    def decided(self, key: Key, leader_epoch: int, leaders: tuple[int, int], now_s: float) -> None:
        """Called by the first node that applies the decision. `leaders`: the former one and the new one."""
        begun = self._begun.setdefault(key, [])
        if not begun or begun[-1][0] < leader_epoch:
            begun.append((leader_epoch, now_s))
            self._leaders.setdefault(key, [(leaders[0], 0.0)]).append((leaders[1], now_s))

    def may_not_know(self, key: Key, node: int, now_s: float, session_s: float) -> bool:
        """Whether this broker has led, and was replaced so recently that it may still think that it leads."""
        replaced_s: float | None = None
        for leader, since_s in reversed(self._leaders.get(key, [])):
            if leader == node:
                return replaced_s is not None and now_s - replaced_s <= 2 * session_s + SLACK_S
            replaced_s = since_s
        return False

    def appended(self, node: int, name: str, key: Key, leader_epoch: int, now_s: float, session_s: float) -> None:
        """`now_s` excludes the time for which the machine was suspended."""
        for epoch, since_s in reversed(self._begun.get(key, [])):
            if epoch <= leader_epoch:
                break
            if now_s - since_s > 2 * session_s + SLACK_S:
                raise Violation(
                    "a leader that was replaced stops in time",
                    f"{name}: {node} accepts a batch as leader of epoch {leader_epoch}, but epoch {epoch} was "
                    f"decided {now_s - since_s:.1f} s ago; its session is {session_s:g} s",
                )

    def answered(self, process: str, sent_s: float) -> None:
        """A controller counts on the broker since `sent_s`, by the broker's clock."""
        self._answered[process] = max(sent_s, self._answered.get(process, 0.0))

    def takes_in(self, process: str, name: str, now_s: float, session_s: float) -> None:
        silent_s = now_s - self._answered.get(process, now_s)
        if silent_s > session_s + SLACK_S:
            raise Violation(
                "a leader without a controller stops",
                f"{name}: {process} accepts a batch, but no controller has answered it for {silent_s:.1f} s; its "
                f"session is {session_s:g} s",
            )
