"""The rule for the high watermark: which offsets each replica holds, and which replicas count.

    a replica holds      its stable log, on a durable topic; its written log, if flushing is left to the system
    the leader           moves the mark to the offset that all counted replicas hold, if enough of them are in sync
    a sole replica       moves it to its own offset
    a follower           takes the leader's mark, up to the end of its own log
    a truncation         takes the mark back to the end of the log

The current and the proposed in-sync replicas count. Whichever of the two the controller has, a member that lacks a
record keeps the mark below that record. Replicas that are about to join count, too. Otherwise a replica as fast as the
leader could never meet the condition to join, because the mark would always be a little ahead of it.

Plain functions over offsets; the caller keeps the mark. Must not know: logs, clocks, requests.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from penstock.core.metadata.image import PartitionState
from penstock.core.partition.follower import Brokers, Follower, is_eligible


def claimed_offset(stable_offset: int, log_end_offset: int, *, is_durable: bool) -> int:
    """A replica counts as holding everything below."""
    return stable_offset if is_durable else log_end_offset


def promised_offset(stable_offset: int, log_end_offset: int, durable_from: int, *, is_durable: bool) -> int:
    """Others may count on a replica for everything below. Up to `durable_from`, the log end when the topic became
    durable, written records count, stable or not.
    """
    return max(stable_offset, min(durable_from, log_end_offset)) if is_durable else log_end_offset


def joining_offset(high_watermark: int, epoch_start_offset: int) -> int:
    """The offset a follower needs to join the ISR. It covers records committed before this leader's time: the mark of a
    new leader may be behind that of the last one.
    """
    return max(high_watermark, epoch_start_offset)


def is_under_min_isr(metadata: PartitionState, configured: int) -> bool:
    """The minimum is never more than the number of replicas."""
    in_sync = len(metadata.isr)
    return in_sync < configured and in_sync < metadata.effective_min_isr(configured)  # fast check first


def maximal_isr(isr: tuple[int, ...], pending: tuple[int, ...] | None) -> tuple[int, ...]:
    """The current ISR and the proposed one."""
    if pending is None:
        return isr
    return (*isr, *(one for one in pending if one not in isr))


def held_by_all(
    claimed: int, counted: Container[int], followers: Iterable[Follower], leader_end: int, now_ms: int, brokers: Brokers
) -> int:
    """All counted replicas hold everything below, and the leader, which itself holds the log below `claimed`."""
    result = claimed
    for follower in followers:
        if follower.end_offset < result and (
            follower.broker_id in counted or _is_about_to_join(follower, leader_end, now_ms, brokers)
        ):
            result = follower.end_offset
    return result


def _is_about_to_join(follower: Follower, leader_end: int, now_ms: int, brokers: Brokers) -> bool:
    return (
        not follower.is_kept_out(now_ms)
        and follower.is_caught_up(leader_end, now_ms, brokers.lag_time_max_ms)
        and is_eligible(follower, brokers.broker_epoch_of(follower.broker_id))
    )


def of_follower(known: int, leaders_mark: int, log_end_offset: int) -> int:
    """The leader's mark never moves a follower's mark back: a new leader may know less than the last one."""
    return max(known, min(leaders_mark, log_end_offset))


def within_log(known: int, log_start_offset: int, log_end_offset: int) -> int:
    """The last known mark, limited to the opened log."""
    return min(max(known, log_start_offset), log_end_offset)
