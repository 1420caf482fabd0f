"""An operator of simulated clusters changes every dynamic setting, and what it is set to is allowed."""

from __future__ import annotations

import pytest

from penstock.config.keys import KeyTable
from penstock.config.settings import BROKER_KEYS
from penstock.config.topic import TOPIC_KEYS
from penstock.sim import tuning
from penstock.sim.tuning import Values


def test_every_dynamic_setting_is_changed_or_left_alone_for_a_reason() -> None:
    assert tuning.forgotten() == []
    assert all(tuning.LEFT_ALONE.values())


@pytest.mark.parametrize(
    ("table", "values"),
    [
        (TOPIC_KEYS, tuning.TOPIC_VALUES),
        (TOPIC_KEYS, tuning.ON_COMPACTED),
        (TOPIC_KEYS, tuning.ON_TRIMMED),
        (TOPIC_KEYS, tuning.ON_UNCLEAN),
        (TOPIC_KEYS, tuning.FLUSHES),
        (BROKER_KEYS, tuning.BROKER_VALUES),
        (BROKER_KEYS, tuning.BROKER_FLUSHES),
    ],
)
def test_what_a_setting_is_changed_to_is_allowed(table: KeyTable, values: dict[str, Values]) -> None:
    for name, texts in values.items():
        assert len(dict.fromkeys(texts)) > 1, f"{name} never changes"
        for text in texts:
            table.parse(name, text)


def test_logs_are_flushed_less_only_where_no_power_fails() -> None:
    def names(*, may_flush_less: bool) -> list[str]:
        made = tuning.tuning(
            {"keyed": {}, "data": {}, "unclean": {}},
            compacted="keyed",
            trimmed="trimmed",
            unclean="unclean",
            offsets="offsets",
            brokers=("all", {}),
            may_flush_less=may_flush_less,
            tombstones_go=False,
        )
        assert "internal.segment.bytes" in made.topics["keyed"]
        assert "internal.segment.bytes" not in made.topics["data"]
        assert "delete.retention.ms" not in made.topics["keyed"]
        assert list(made.topics["unclean"]) == ["unclean.leader.election.enable"]
        return [*made.topics["data"], *made.brokers]

    assert "flush.messages" in names(may_flush_less=True)
    assert "log.flush.interval.messages" in names(may_flush_less=True)
    assert not [name for name in names(may_flush_less=False) if name in ("flush.messages", *tuning.BROKER_FLUSHES)]
