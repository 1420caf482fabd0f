"""Metrics of this broker: traffic, requests, connections, flushes, sessions, compaction.

Kafka's metrics have the names of the usual configuration of the Prometheus JMX exporter;
metrics that Kafka does not have are named `penstock_*`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence

from penstock.api.dispatch import Dispatcher
from penstock.api.handlers.fetch import FetchHandler
from penstock.api.request_times import BOUNDS_S, RequestTimes
from penstock.api.traffic import TopicTraffic, Traffic
from penstock.net.listener import Listener
from penstock.net.request_memory import RequestMemory
from penstock.observability.exposition import Family, HistogramSample, Sample, counter, gauge, histogram
from penstock.replica.cleaning import LogCleaning
from penstock.replica.disk_watch import DiskWatch
from penstock.replica.hosting import HostedPartitions
from penstock.storage.group_commit import GroupCommit
from penstock.wire.apis import api


class TrafficMetrics:
    def __init__(self, traffic: Traffic, partitions: HostedPartitions) -> None:
        self._traffic = traffic
        self._partitions = partitions

    async def families(self) -> AsyncIterator[Family]:
        by_topic = self._traffic.by_topic
        for gone in [topic for topic in by_topic if topic not in self._partitions.by_name]:
            del by_topic[gone]
        found = list(by_topic.items())

        def each(name: str, help_text: str, number: Callable[[TopicTraffic], int]) -> Family:
            return counter(name, help_text, ("topic",), (((topic,), number(traffic)) for topic, traffic in found))

        yield each(
            "kafka_server_brokertopicmetrics_messagesin_total",
            "Records written by producers.",
            lambda traffic: traffic.records_in,
        )
        yield each(
            "kafka_server_brokertopicmetrics_bytesin_total",
            "Bytes of record batches written by producers, as received (compressed).",
            lambda traffic: traffic.bytes_in,
        )
        yield each(
            "kafka_server_brokertopicmetrics_bytesout_total",
            "Bytes of record batches fetched.",
            lambda traffic: traffic.bytes_out,
        )
        yield each(
            "penstock_messages_out_total",
            "Records fetched, counted by offsets.",
            lambda traffic: traffic.records_out,
        )
        yield each("penstock_batches_in_total", "Record batches written.", lambda traffic: traffic.batches_in)


class RequestMetrics:
    def __init__(self, dispatcher: Dispatcher, times: RequestTimes) -> None:
        self._dispatcher = dispatcher
        self._times = times

    async def families(self) -> AsyncIterator[Family]:
        yield counter(
            "kafka_network_requestmetrics_requests_total",
            "Requests received, by API.",
            ("request",),
            [((api(key).name,), count) for key, count in self._dispatcher.requests.items()],
        )
        yield counter(
            "penstock_wide_requests_total",
            "Requests with so many elements that they were processed in several turns of the event loop.",
            (),
            _one(self._dispatcher.wide_requests),
        )
        yield histogram(
            "penstock_request_duration_seconds",
            "Time from a request to its response, by API, including long polls and flushes. "
            "Produce requests are sampled, and the samples weighted.",
            ("request",),
            [
                HistogramSample((api(key).name,), BOUNDS_S, list(times.counts), times.sum_s)
                for key, times in self._times.by_api.items()
            ],
        )


class ServerMetrics:
    def __init__(
        self,
        listeners: Sequence[Listener],
        commit: GroupCommit,
        fetch: FetchHandler,
        cleaning: LogCleaning,
        disk_watch: DiskWatch,
        brokers: Callable[[], int],
        memory: RequestMemory,
    ) -> None:
        self._memory = memory
        self._listeners = listeners
        self._commit = commit
        self._fetch = fetch
        self._cleaning = cleaning
        self._disk_watch = disk_watch
        self._brokers = brokers

    async def families(self) -> AsyncIterator[Family]:
        fetch, cleaning = self._fetch, self._cleaning
        yield gauge("kafka_brokers", "Number of brokers in the cluster.", (), _one(self._brokers()))
        yield gauge(
            "penstock_connections",
            "Open connections, by listener.",
            ("listener",),
            [((listener.name,), len(listener.connections)) for listener in self._listeners],
        )
        yield counter(
            "penstock_connections_accepted_total",
            "Connections accepted, by listener.",
            ("listener",),
            [((listener.name,), listener.accepted) for listener in self._listeners],
        )
        yield counter(
            "penstock_strangers_refused_total",
            "Connections closed because they sent requests for nodes only and had not presented the cluster's secret, "
            "by listener.",
            ("listener",),
            [((listener.name,), listener.strangers) for listener in self._listeners],
        )
        yield counter(
            "penstock_connections_refused_total",
            "Connections refused because of a connection limit, by listener.",
            ("listener",),
            [((listener.name,), listener.refused) for listener in self._listeners],
        )
        yield counter(
            "penstock_connections_closed_for_errors_total",
            "Connections closed because of invalid data from the client, by listener.",
            ("listener",),
            [((listener.name,), listener.closed_for_errors) for listener in self._listeners],
        )
        yield gauge(
            "penstock_request_memory_bytes",
            "Memory for incoming requests of all connections.",
            (),
            _one(self._memory.used_bytes),
        )
        yield counter(
            "penstock_request_memory_waits_total",
            "Number of times a connection had to wait for request memory.",
            (),
            _one(self._memory.waits),
        )
        yield counter("penstock_log_flushes_total", "Flushes of logs to disk.", (), _one(self._commit.flushes))
        for family in self._disk():
            yield family
        yield gauge("penstock_fetch_sessions", "Open fetch sessions.", (), _one(len(fetch.sessions)))
        yield counter(
            "penstock_fetch_sessions_evicted_total",
            "Fetch sessions evicted to make room for others.",
            (),
            _one(fetch.sessions.evicted),
        )
        yield counter(
            "penstock_cold_reads_total",
            "Fetches that read from disk because the data was not in memory or not verified yet.",
            (),
            _one(fetch.answers.cold_reads),
        )
        yield counter(
            "penstock_cold_lookups_total",
            "Offset lookups that a worker made in the log, because memory had no answer.",
            (),
            _one(fetch.answers.cold_lookups),
        )
        yield counter("penstock_compactions_total", "Compactions of logs.", (), _one(cleaning.cleanings))
        yield counter(
            "penstock_compaction_read_bytes_total", "Bytes read by compaction.", (), _one(cleaning.bytes_read)
        )
        yield counter(
            "penstock_compaction_written_bytes_total", "Bytes written by compaction.", (), _one(cleaning.bytes_written)
        )
        yield gauge(
            "penstock_uncleanable_partitions",
            "Partitions that compaction skips because of damage.",
            (),
            _one(cleaning.uncleanable_count),
        )

    def _disk(self) -> Iterator[Family]:
        watch = self._disk_watch
        of_directory = ("log_dir",)

        def one(number: float) -> list[Sample]:
            return [((watch.directory,), number)]

        yield gauge(
            "penstock_disk_hung",
            "1 while flushes to the log directory hang: this broker gives up every partition that another replica can "
            "lead.",
            of_directory,
            one(int(watch.is_hung)),
        )
        yield gauge(
            "penstock_disk_oldest_flush_seconds",
            "Age of the oldest flush in progress; 0 if there is none.",
            of_directory,
            one(watch.waited_s),
        )
        yield counter(
            "penstock_disk_hangs_total", "Number of times the disk hung.", of_directory, one(watch.times_hung)
        )


def _one(number: float) -> list[Sample]:
    return [((), number)]
