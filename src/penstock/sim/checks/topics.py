"""Promises to operators: acknowledged changes hold in the end.

The existence of a topic, its partition count, replicas and settings are registers: each has the last acknowledged
value, or one of unknown outcome, which may have taken effect at any later moment.
Must not know: brokers, faults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from penstock.sim.judges.history import AdminAction, History, Outcome, Violation

EXISTS = "already exists."
NO_SUCH_TOPIC = "This server does not host this topic-partition."
NOTHING_TO_CALL_OFF = "No partition reassignment is in progress."


class TopicFacts(NamedTuple):
    """A topic in the final metadata."""

    replicas: tuple[tuple[int, ...], ...]
    """By partition."""
    configs: Mapping[str, str]


Key = tuple[str, str]
"""A topic, and a part of it: a partition or a setting."""


def check_topics(history: History, topics: Mapping[str, TopicFacts]) -> None:
    _check_existence(history.admin, topics)
    # A topic that an operator wanted to delete is judged by existence only.
    gone = {action.topic: None for action in history.admin if action.verb == "delete"}
    lasting = [action for action in history.admin if action.topic not in gone and action.topic in topics]
    _check_growth(lasting, topics)
    for (name, setting), actions in _by_key(lasting, "configure").items():
        _check_setting(name, setting, actions, topics[name].configs)
    for (name, index), actions in _by_key(lasting, "reassign").items():
        _check_replicas(f"{name}-{index}", actions, topics[name].replicas[int(index)])


def _check_existence(actions: Sequence[AdminAction], topics: Mapping[str, TopicFacts]) -> None:
    for name, told in _by_topic(actions, "create", "delete").items():
        last = _last_acknowledged(told)
        if last is None or any(_may_have_happened(action) for action in told):
            continue
        if last.verb == "create" and name not in topics:
            raise Violation("an acknowledged topic is kept", f"{name} is gone")
        if last.verb == "delete" and name in topics:
            raise Violation("a deleted topic stays deleted", f"{name} is there")


def _may_have_happened(action: AdminAction) -> bool:
    """Includes refusals because the change was made already: a broker that repeats the request may have made it, as in
    Kafka.
    """
    is_repeat = action.refusal.endswith(EXISTS if action.verb == "create" else NO_SUCH_TOPIC)
    return action.outcome in (Outcome.UNKNOWN, Outcome.OPEN) or is_repeat


def _check_growth(actions: Sequence[AdminAction], topics: Mapping[str, TopicFacts]) -> None:
    for name, told in _by_topic(actions, "create", "grow").items():
        found = len(topics[name].replicas)
        promised = [int(action.value) for action in told if action.outcome is Outcome.ACKNOWLEDGED]
        # Includes refused changes: a broker that repeats its request may get the answer that its new partitions exist.
        asked = [int(action.value) for action in told]
        if found < max(promised, default=0) or found not in asked:
            raise Violation("acknowledged partitions are there", f"{name} has {found}, promised were {promised}")


def check_brokers(history: History, prefix: str, configs: Mapping[str, Mapping[str, str]]) -> None:
    """`prefix`: prefix of broker names; `configs`: by the rest of the name."""
    of_brokers = [action for action in history.admin if action.topic.startswith(prefix)]
    for (name, setting), actions in _by_key(of_brokers, "configure").items():
        _check_setting(name, setting, actions, configs.get(name.removeprefix(prefix), {}))


def _check_setting(name: str, setting: str, actions: Sequence[AdminAction], configs: Mapping[str, str]) -> None:
    """An unset setting equals an empty one."""
    last, found = _last_acknowledged(actions), configs.get(setting, "")
    if last is not None and found not in (last.value, *_uncertain(actions)):
        raise Violation("acknowledged settings are kept", f"{name}: {setting} was set to {last.value}, but is {found}")


def _check_replicas(name: str, actions: Sequence[AdminAction], found: tuple[int, ...]) -> None:
    last, uncertain = _last_acknowledged(actions), _uncertain(actions)
    if last is None or "" in uncertain or any(action.refusal == NOTHING_TO_CALL_OFF for action in actions):
        return  # nothing was promised, or a repeated request of a broker may have cancelled it
    now = ",".join(map(str, found))
    if last.value and now not in (last.value, *uncertain):
        raise Violation("an acknowledged reassignment ends", f"{name}: {last.value} was acknowledged, but it has {now}")
    moves = [action.value for action in actions if action.value and action.outcome is Outcome.ACKNOWLEDGED]
    is_off = not last.value and not uncertain and moves.count(now) == 1
    if is_off and now == moves[-1]:
        raise Violation("a cancelled reassignment is over", f"{name} was moved to {now}")


def _last_acknowledged(actions: Iterable[AdminAction]) -> AdminAction | None:
    """The operator makes one change after the other."""
    return next((action for action in reversed(list(actions)) if action.outcome is Outcome.ACKNOWLEDGED), None)


def _uncertain(actions: Iterable[AdminAction]) -> list[str]:
    return [action.value for action in actions if action.outcome in (Outcome.UNKNOWN, Outcome.OPEN)]


def _by_topic(actions: Iterable[AdminAction], *verbs: str) -> dict[str, list[AdminAction]]:
    found: dict[str, list[AdminAction]] = {}
    for action in actions:
        if action.verb in verbs:
            found.setdefault(action.topic, []).append(action)
    return found


def _by_key(actions: Iterable[AdminAction], verb: str) -> dict[Key, list[AdminAction]]:
    found: dict[Key, list[AdminAction]] = {}
    for action in actions:
        if action.verb == verb:
            found.setdefault((action.topic, action.key), []).append(action)
    return found
