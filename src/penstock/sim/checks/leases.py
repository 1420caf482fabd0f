"""Who was replaced finds out in time: a leader that hears nothing of the controller takes in nothing for longer than a
session after another was made leader, or two, if it was answered in between: by a controller that was about to be
deposed, or by a new one a moment before it reads what was decided.

What it takes in until then is acknowledged to acks=1 and lost, as promised; later nobody may be told such a thing. A
machine that was suspended is given the time that it could not know of. And whoever has heard nothing of a controller
for a session takes in nothing at all: by its own clock, whether or not another leads by then. Must not know: nodes,
clients, faults.
"""

from __future__ import annotations

from penstock.sim.judges.history import Violation

SLACK_S = 0.5
"""A controller may answer a heartbeat and be deposed, and its last decision come through later."""

Key = tuple[str, int]
"""Topic id and partition."""


class LeaseChecker:
    def __init__(self) -> None:
        self._begun: dict[Key, list[tuple[int, float]]] = {}  # leader epochs and when they were decided
        self._answered: dict[str, float] = {}  # process -> when its last heartbeat was sent that was answered

    def decided(self, key: Key, leader_epoch: int, now_s: float) -> None:
        """By whoever applies it first."""
        begun = self._begun.setdefault(key, [])
        if not begun or begun[-1][0] < leader_epoch:
            begun.append((leader_epoch, now_s))

    def appended(self, node: int, name: str, key: Key, leader_epoch: int, now_s: float, session_s: float) -> None:
        """`now_s` without the time for which the machine was suspended."""
        for epoch, since_s in reversed(self._begun.get(key, [])):
            if epoch <= leader_epoch:
                break
            if now_s - since_s > 2 * session_s + SLACK_S:
                raise Violation(
                    "a leader that was replaced stops in time",
                    f"{name}: {node} takes a batch in as the leader of epoch {leader_epoch}, and epoch {epoch} was "
                    f"decided {now_s - since_s:.1f} s ago; its session is {session_s:g} s",
                )

    def answered(self, process: str, sent_s: float) -> None:
        """A controller counts on it, since `sent_s` by its own clock."""
        self._answered[process] = max(sent_s, self._answered.get(process, 0.0))

    def takes_in(self, process: str, name: str, now_s: float, session_s: float) -> None:
        silent_s = now_s - self._answered.get(process, now_s)
        if silent_s > session_s + SLACK_S:
            raise Violation(
                "a leader without a controller stops",
                f"{name}: {process} takes a batch in, and no controller has answered it for {silent_s:.1f} s; its "
                f"session is {session_s:g} s",
            )
