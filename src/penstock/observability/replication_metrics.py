"""Replicas on this broker: leadership, lag of followers, and replication from other leaders.

The leader reports a partition, so sums over the brokers of a cluster are correct. A sample for each lagging replica
would fill the page on a bad day, so only the worst are reported (`MOST_LAGS`), and the maximum as one number.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from heapq import nlargest

from penstock.api.handlers.fetch import FetchHandler
from penstock.observability.exposition import Family, Sample, counter, gauge
from penstock.replica.fetchers import ReplicaFetchers
from penstock.replica.hosting import HostedPartitions
from penstock.replica.partition import Partition
from penstock.replica.revival import Revivals

MOST_LAGS = 100
_REPLICA = ("topic", "partition", "replica")


def is_under_replicated(partition: Partition) -> bool:
    """Whether a replica is not in sync. Replicas added by a reassignment need not be in sync yet."""
    return any(one not in partition.isr and one not in partition.adding for one in partition.replicas)


class ReplicationMetrics:
    def __init__(
        self, partitions: HostedPartitions, fetchers: ReplicaFetchers, fetch: FetchHandler, revivals: Revivals
    ) -> None:
        self._revivals = revivals
        self._partitions = partitions
        self._fetchers = fetchers
        self._fetch = fetch

    async def families(self) -> AsyncIterator[Family]:
        hosted = list(self._partitions)
        led = [partition for partition in hosted if partition.is_leader]
        for family in self._leading(hosted, led):
            yield family
        for family in self._following():
            yield family

    def _leading(self, hosted: list[Partition], led: list[Partition]) -> Iterator[Family]:
        def count(name: str, help_text: str, number: float) -> Family:
            return gauge(f"kafka_server_replicamanager_{name}", help_text, (), [((), number)])

        in_sync = [(len(partition.isr), partition.effective_min_isr) for partition in led]
        yield count("partitioncount", "Partitions with a replica on this broker.", len(hosted))
        yield count("leadercount", "Partitions led by this broker.", len(led))
        yield count(
            "underreplicatedpartitions",
            "Partitions led by this broker with a replica that is not in sync.",
            sum(map(is_under_replicated, led)),
        )
        yield count(
            "underminisrpartitioncount",
            "Partitions led by this broker with fewer in-sync replicas than min.insync.replicas: acks=all writes are "
            "refused.",
            sum(found < least for found, least in in_sync),
        )
        yield count(
            "atminisrpartitioncount",
            "Partitions led by this broker with exactly min.insync.replicas in-sync replicas: if one more fails, "
            "acks=all is refused.",
            sum(found == least for found, least in in_sync),
        )
        yield count(
            "offlinereplicacount",
            "Replicas on this broker whose log failed or could not be opened.",
            sum(partition.log.offline is not None for partition in hosted),
        )
        yield counter(
            "penstock_log_revivals_total",
            "Logs that went offline and were opened again without a restart.",
            (),
            [((), self._revivals.revived)],
        )
        moving = [partition for partition in led if partition.is_reassigning]
        yield count("reassigningpartitions", "Partitions led by this broker that are being reassigned.", len(moving))
        yield gauge(
            "penstock_reassignment_left_bytes",
            "Estimated bytes that reassigned partitions led by this broker still have to copy to new replicas.",
            (),
            [((), sum(map(_left_bytes, moving)))],
        )
        host = self._partitions.host
        yield counter(
            "kafka_server_replicamanager_isrshrinks_total",
            "ISR changes of partitions led by this broker that removed replicas.",
            (),
            [((), host.isr_shrinks)],
        )
        yield counter(
            "kafka_server_replicamanager_isrexpands_total",
            "ISR changes of partitions led by this broker that added replicas.",
            (),
            [((), host.isr_expands)],
        )
        yield counter(
            "kafka_server_brokertopicmetrics_replicationbytesout_total",
            "Bytes of record batches fetched by followers.",
            (),
            [((), self._fetch.throttle.replicated_bytes)],
        )
        lags = (sample for partition in led for sample in _lags_of_out_of_sync(partition))
        yield gauge(
            "penstock_out_of_sync_replica_lag",
            "Records that an out-of-sync replica lacks, as seen by its leader; only the largest lags.",
            _REPLICA,
            nlargest(MOST_LAGS, lags, key=lambda sample: sample[1]),
        )

    def _following(self) -> Iterator[Family]:
        fetchers = self._fetchers
        lags = [(partition, lag) for partition, lag in fetchers.lags() if not partition.is_deleted]
        yield gauge(
            "kafka_server_replicafetchermanager_maxlag",
            "Largest number of committed records that a replica on this broker lacks.",
            (),
            [((), max((lag for _, lag in lags), default=0))],
        )
        yield gauge(
            "kafka_server_fetcherlagmetrics_consumerlag",
            "Committed records that a replica on this broker lacks; only the largest lags.",
            ("topic", "partition"),
            [
                ((partition.topic, str(partition.index)), lag)
                for partition, lag in nlargest(MOST_LAGS, lags, key=lambda found: found[1])
            ],
        )
        yield counter(
            "kafka_server_brokertopicmetrics_replicationbytesin_total",
            "Bytes of record batches fetched by this broker as a follower.",
            (),
            [((), fetchers.bytes_fetched)],
        )
        yield counter(
            "penstock_replica_fetch_errors_total",
            "Fetches from leaders that were refused or returned data that could not be appended.",
            (),
            [((), fetchers.errors)],
        )
        yield counter(
            "penstock_replica_fetch_reconnects_total",
            "Number of times a connection to a leader broke or could not be opened.",
            (),
            [((), fetchers.reconnects)],
        )
        yield counter(
            "penstock_replica_repairs_total",
            "Damaged parts of logs replaced with data from other replicas.",
            (),
            [((), fetchers.repairs.repaired)],
        )
        yield counter(
            "penstock_replica_repairs_refused_total",
            "Reports of damage where the leader had the same bytes, so nothing was truncated.",
            (),
            [((), fetchers.repairs.refused)],
        )
        yield gauge(
            "penstock_replica_repairs_in_progress",
            "Damaged replicas that are being repaired or wait for an intact copy.",
            (),
            [((), len(fetchers.repairs.under_way))],
        )
        yield gauge(
            "penstock_replica_set_aside_directories",
            "Directories with data that repair removed from logs, kept until these replicas are in sync.",
            (),
            [((), fetchers.repairs.set_aside_count)],
        )


def _lags_of_out_of_sync(partition: Partition) -> Iterator[Sample]:
    followers = partition.followers
    if followers is None:
        return
    log = partition.log
    for one, follower in followers.by_id.items():
        if one not in partition.isr:
            held = max(follower.end_offset, log.log_start_offset)  # never fetched: it lacks everything
            yield (partition.topic, str(partition.index), str(one)), max(log.log_end_offset - held, 0)


def _left_bytes(partition: Partition) -> int:
    """Estimated by the share of missing offsets, which is cheaper than looking up positions in files."""
    followers, log = partition.followers, partition.log
    count = log.log_end_offset - log.log_start_offset
    if followers is None or count <= 0:
        return 0
    left = 0
    for one in partition.adding:
        follower = followers.by_id.get(one)
        held = log.log_start_offset if follower is None else max(follower.end_offset, log.log_start_offset)
        left += log.size_bytes * max(log.log_end_offset - held, 0) // count
    return left
