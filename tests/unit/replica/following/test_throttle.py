"""The debt of a throttled follower, and who is throttled."""

from __future__ import annotations

import pytest

from penstock.config.topic import TopicConfig
from penstock.replica.throttle import UNLIMITED, ReplicationQuota, is_throttled


def test_what_was_taken_is_waited_for() -> None:
    quota = ReplicationQuota(rate=1000)
    assert quota.wait_s(10.0) == 0
    quota.record(500, 10.0)
    assert quota.wait_s(10.0) == pytest.approx(0.5)
    assert quota.wait_s(10.3) == pytest.approx(0.2)
    quota.record(100, 10.3)
    assert quota.wait_s(10.3) == pytest.approx(0.3)
    assert quota.wait_s(11.0) == 0


def test_what_was_not_used_is_not_saved_up() -> None:
    quota = ReplicationQuota(rate=1000)
    quota.wait_s(0.0)
    quota.record(1000, 500.0)
    assert quota.wait_s(500.0) == pytest.approx(1.0)


def test_no_rate_no_wait_and_none_at_all_no_end_of_it() -> None:
    quota = ReplicationQuota()
    quota.record(1 << 40, 1.0)
    assert quota.wait_s(1.0) == 0
    quota.rate = 0
    assert quota.wait_s(1.0) == float("inf")
    quota.rate = UNLIMITED
    assert quota.wait_s(1.0) == 0


@pytest.mark.parametrize(
    ("listed", "throttled"), [("", False), ("*", True), ("3:2", True), ("3:1,3:2", True), ("3:1,2:2", False)]
)
def test_who_is_listed(listed: str, throttled: bool) -> None:
    config = TopicConfig.resolve({"follower.replication.throttled.replicas": listed} if listed else {})
    assert is_throttled(config, 3, 2) is throttled
