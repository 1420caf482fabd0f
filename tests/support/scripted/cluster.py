"""Brokers of a cluster that a test scripts: what operators' commands ask is answered from a few lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.model.errors import ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages import alter_partition_reassignments as alter
from penstock.wire.messages import describe_configs as describing
from penstock.wire.messages import describe_log_dirs as log_dirs
from penstock.wire.messages import describe_quorum as quorum
from penstock.wire.messages import describe_topic_partitions as described
from penstock.wire.messages import elect_leaders as electing
from penstock.wire.messages import incremental_alter_configs as altering
from penstock.wire.messages import list_partition_reassignments as listing
from penstock.wire.messages.add_raft_voter import AddRaftVoterResponse
from penstock.wire.messages.describe_cluster import DescribeClusterBroker, DescribeClusterResponse
from penstock.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from penstock.wire.messages.remove_raft_voter import RemoveRaftVoterResponse
from penstock.wire.messages.unregister_broker import UnregisterBrokerResponse
from penstock.wire.primitives import Message
from support.scripted.broker import ScriptedBroker

PARTITION_BYTES = 1_000
TOPIC, BROKER = 2, 4
OWN = {TOPIC: 1, BROKER: 2}
"""The source of a setting made at run time, by kind of resource."""
Settings = dict[tuple[int, str], dict[str, str]]


class Partition:
    def __init__(self, leader: int, replicas: list[int], isr: list[int], elr: list[int] | None = None) -> None:
        self.leader, self.replicas, self.isr, self.elr = leader, replicas, isr, elr or []


class ScriptedCluster:
    """Brokers 1 to 4, of which 4 is fenced and has no replicas. `looks`: called before each answer about moves."""

    def __init__(self) -> None:
        self.brokers = {1: ScriptedBroker(), 2: ScriptedBroker(), 3: ScriptedBroker()}
        self.fenced = [4]
        self.racks = {1: "a", 2: "b", 3: "a", 4: None}
        self.topics = {
            "events": [
                Partition(1, [1, 2], [1, 2]),
                Partition(2, [2, 3], [2, 3]),
            ]
        }
        self.leader_epoch = -1
        """Of every partition, in the metadata."""
        self.moves: dict[tuple[str, int], tuple[list[int], list[int]]] = {}
        self.sizes: dict[tuple[int, str, int], int] = {}
        self.voters = [1, 2]
        self.silent_ms = 1_500
        self.looks: Iterator[Callable[[], None]] = iter(())
        self.refusals: dict[Api, tuple[ErrorCode, str]] = {}
        for node_id, broker in self.brokers.items():
            broker.scripts |= {
                Api.METADATA: self._metadata,
                Api.DESCRIBE_CLUSTER: self._describe,
                Api.DESCRIBE_QUORUM: self._quorum,
                Api.DESCRIBE_TOPIC_PARTITIONS: self._partitions,
                Api.LIST_PARTITION_REASSIGNMENTS: self._moves,
                Api.ALTER_PARTITION_REASSIGNMENTS: self._alter,
                Api.ELECT_LEADERS: self._elect,
                Api.UNREGISTER_BROKER: lambda _: UnregisterBrokerResponse(**self._verdict(Api.UNREGISTER_BROKER)),
                Api.ADD_RAFT_VOTER: lambda _: AddRaftVoterResponse(**self._verdict(Api.ADD_RAFT_VOTER)),
                Api.REMOVE_RAFT_VOTER: lambda _: RemoveRaftVoterResponse(**self._verdict(Api.REMOVE_RAFT_VOTER)),
                Api.DESCRIBE_LOG_DIRS: self._log_dirs(node_id),
            }

    @property
    def servers(self) -> str:
        return ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers.values())

    def asked(self, kind: type[Message]) -> list[Message]:
        return [request for broker in self.brokers.values() for request in broker.asked(kind)]

    def _verdict(self, key: Api) -> dict[str, object]:
        code, message = self.refusals.get(key, (ErrorCode.NONE, ""))
        return {"error_code": code, "error_message": message or None}

    def _metadata(self, request: Message) -> Message:
        assert isinstance(request, MetadataRequest)
        names = self.topics if request.topics is None else [topic.name or "" for topic in request.topics]
        return MetadataResponse(
            cluster_id="cluster-id",
            controller_id=2,
            brokers=[
                MetadataResponseBroker(node_id=node_id, host="127.0.0.1", port=broker.port)
                for node_id, broker in self.brokers.items()
            ],
            topics=[
                MetadataResponseTopic(
                    name=name,
                    error_code=ErrorCode.NONE if name in self.topics else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    topic_id=name.encode().ljust(16),
                    partitions=[
                        MetadataResponsePartition(
                            partition_index=index,
                            leader_id=one.leader,
                            leader_epoch=self.leader_epoch,
                            replica_nodes=one.replicas,
                            isr_nodes=one.isr,
                        )
                        for index, one in enumerate(self.topics.get(name, ()))
                    ],
                )
                for name in names
            ],
        )

    def _describe(self, request: Message) -> Message:
        known = {node_id: broker.port for node_id, broker in self.brokers.items()} | dict.fromkeys(self.fenced, 9)
        return DescribeClusterResponse(
            cluster_id="cluster-id",
            controller_id=2,
            brokers=[
                DescribeClusterBroker(
                    broker_id=node_id,
                    host="127.0.0.1",
                    port=port,
                    rack=self.racks[node_id],
                    is_fenced=node_id in self.fenced,
                )
                for node_id, port in known.items()
            ],
        )

    def _quorum(self, request: Message) -> Message:
        def replica(node_id: int, end: int) -> quorum.ReplicaState:
            return quorum.ReplicaState(
                replica_id=node_id,
                log_end_offset=end,
                last_fetch_timestamp=100_000 - self.silent_ms * (node_id - 1),
                last_caught_up_timestamp=-1 if node_id == 3 else 100_000,
            )

        found = quorum.ResponsePartitionData(
            leader_id=1,
            leader_epoch=5,
            high_watermark=40,
            current_voters=[replica(node_id, 42 - node_id) for node_id in self.voters],
            observers=[replica(3, 30)],
        )
        listeners = [quorum.Listener(name="CONTROLLER", host="one", port=9093)]
        return quorum.DescribeQuorumResponse(
            topics=[quorum.ResponseTopicData(topic_name="__cluster_metadata", partitions=[found])],
            nodes=[quorum.Node(node_id=1, listeners=listeners)],
        )

    def _partitions(self, request: Message) -> Message:
        assert isinstance(request, described.DescribeTopicPartitionsRequest)
        return described.DescribeTopicPartitionsResponse(
            topics=[
                described.DescribeTopicPartitionsResponseTopic(
                    name=topic.name,
                    error_code=ErrorCode.NONE if topic.name in self.topics else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    partitions=[
                        described.DescribeTopicPartitionsResponsePartition(
                            partition_index=index,
                            leader_id=one.leader,
                            replica_nodes=one.replicas,
                            isr_nodes=one.isr,
                            eligible_leader_replicas=one.elr or None,
                        )
                        for index, one in enumerate(self.topics.get(topic.name, ()))
                    ],
                )
                for topic in request.topics
            ]
        )

    def _moves(self, request: Message) -> Message:
        next(self.looks, lambda: None)()
        topics: dict[str, listing.OngoingTopicReassignment] = {}
        for (topic, index), (adding, removing) in self.moves.items():
            entry = topics.setdefault(topic, listing.OngoingTopicReassignment(name=topic))
            entry.partitions.append(
                listing.OngoingPartitionReassignment(
                    partition_index=index,
                    replicas=self.topics[topic][index].replicas,
                    adding_replicas=adding,
                    removing_replicas=removing,
                )
            )
        return listing.ListPartitionReassignmentsResponse(topics=list(topics.values()))

    def _alter(self, request: Message) -> Message:
        assert isinstance(request, alter.AlterPartitionReassignmentsRequest)
        verdict = self._verdict(Api.ALTER_PARTITION_REASSIGNMENTS)
        return alter.AlterPartitionReassignmentsResponse(
            responses=[
                alter.ReassignableTopicResponse(
                    name=topic.name,
                    partitions=[
                        alter.ReassignablePartitionResponse(partition_index=one.partition_index, **verdict)
                        for one in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _elect(self, request: Message) -> Message:
        assert isinstance(request, electing.ElectLeadersRequest)
        results = []
        for name, partitions in self.topics.items():
            verdicts = []
            for index, one in enumerate(partitions):
                preferred = one.replicas[0]
                code = ErrorCode.NONE
                if one.leader == preferred:
                    code = ErrorCode.ELECTION_NOT_NEEDED
                elif preferred not in one.isr and not request.election_type:
                    code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
                else:
                    one.leader = preferred
                if request.topic_partitions is not None or code is not ErrorCode.ELECTION_NOT_NEEDED:
                    message = "The preferred leader is not in sync." if code else None
                    verdicts.append(
                        electing.PartitionResult(partition_id=index, error_code=code, error_message=message)
                    )
            results.append(electing.ReplicaElectionResult(topic=name, partition_result=verdicts))
        return electing.ElectLeadersResponse(replica_election_results=results)

    def script_settings(self, settings: Settings) -> None:
        """Those made at run time, by kind and name of the resource; changes are made in it."""

        def describe(request: Message) -> Message:
            assert isinstance(request, describing.DescribeConfigsRequest)
            return describing.DescribeConfigsResponse(
                results=[
                    describing.DescribeConfigsResult(
                        resource_type=one.resource_type,
                        resource_name=one.resource_name,
                        configs=[
                            describing.DescribeConfigsResourceResult(
                                name=name, value=value, config_source=OWN[one.resource_type]
                            )
                            for name, value in settings.get((one.resource_type, one.resource_name), {}).items()
                        ],
                    )
                    for one in request.resources
                ]
            )

        def change(request: Message) -> Message:
            assert isinstance(request, altering.IncrementalAlterConfigsRequest)
            answers = []
            for one in request.resources:
                own = settings.setdefault((one.resource_type, one.resource_name), {})
                for asked in one.configs:
                    own.pop(asked.name, None)
                    if asked.config_operation == 0:
                        own[asked.name] = asked.value or ""
                answers.append(
                    altering.AlterConfigsResourceResponse(
                        resource_type=one.resource_type, resource_name=one.resource_name
                    )
                )
            return altering.IncrementalAlterConfigsResponse(responses=answers)

        for broker in self.brokers.values():
            broker.scripts |= {Api.DESCRIBE_CONFIGS: describe, Api.INCREMENTAL_ALTER_CONFIGS: change}

    def _log_dirs(self, node_id: int) -> Callable[[Message], Message]:
        def answer(request: Message) -> Message:
            assert isinstance(request, log_dirs.DescribeLogDirsRequest)
            topics = [
                log_dirs.DescribeLogDirsTopic(
                    name=topic.topic,
                    partitions=[
                        log_dirs.DescribeLogDirsPartition(
                            partition_index=index, partition_size=self.sizes[node_id, topic.topic, index]
                        )
                        for index in topic.partitions
                        if (node_id, topic.topic, index) in self.sizes
                    ],
                )
                for topic in request.topics or ()
            ]
            return log_dirs.DescribeLogDirsResponse(
                results=[log_dirs.DescribeLogDirsResult(log_dir="/data", topics=topics)]
            )

        return answer
