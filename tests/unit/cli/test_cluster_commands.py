"""Cluster commands against brokers that a test scripts: what is asked, what is printed, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from command_line import CommandLine
from penstock.cli import cluster as cluster_module
from penstock.cli import cluster_moves, cluster_progress
from penstock.cli.connection import Target
from penstock.cli.doctor_brokers import down, fenced_at
from penstock.cli.doctor_brokers import partitions as doctor_of_partitions
from penstock.cli.voters import Voter
from penstock.model.errors import ErrorCode, PenstockError
from penstock.wire.apis import Api
from penstock.wire.messages import alter_partition_reassignments as alter
from penstock.wire.messages import describe_configs as describing
from penstock.wire.messages import describe_log_dirs as log_dirs
from penstock.wire.messages import describe_quorum as quorum
from penstock.wire.messages import describe_topic_partitions as described
from penstock.wire.messages import elect_leaders as electing
from penstock.wire.messages import incremental_alter_configs as altering
from penstock.wire.messages import list_partition_reassignments as listing
from penstock.wire.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from penstock.wire.messages.api_versions import ApiVersionsResponse, FinalizedFeatureKey, SupportedFeatureKey
from penstock.wire.messages.describe_cluster import DescribeClusterBroker, DescribeClusterResponse
from penstock.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from penstock.wire.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from penstock.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from penstock.wire.primitives import Message
from scripted_broker import ScriptedBroker

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


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedCluster]:
    scripted = ScriptedCluster()
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP_SERVERS", scripted.servers)
    monkeypatch.setattr(cluster_module, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(cluster_progress, "LOOK_EVERY_S", 0.01)
    with ExitStack() as stack:
        for broker in scripted.brokers.values():
            stack.enter_context(broker)
        yield scripted


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


# -- looking ------------------------------------------------------------------------------


def test_describe(run: CommandLine, scripted: ScriptedCluster) -> None:
    lines = run("cluster", "describe").lines
    assert lines[:3] == [
        "Cluster:    cluster-id",
        "Controller: 2",
        "BROKER  ADDRESS          RACK  STATE   REPLICAS  LEADS",
    ]
    assert [line.split()[::2] for line in lines[3:]] == [
        ["1", "a", "1"],
        ["2", "b", "2"],
        ["3", "a", "1"],
        ["4", "-", "0"],
    ]
    assert [line.split()[3] for line in lines[3:]] == ["up", "up", "up", "fenced"]
    told = json.loads(run("cluster", "describe", "--json").out)
    assert told["controller"] == 2
    assert [one["fenced"] for one in told["brokers"]] == [False, False, False, True]


def test_quorum(run: CommandLine, scripted: ScriptedCluster) -> None:
    assert run("cluster", "quorum").lines == [
        "Leader:         1 (epoch 5)",
        "High watermark: 40",
        "NODE  ROLE      ADDRESS   LOG END  LAG  HEARD      CAUGHT UP",
        "   1  leader    one:9093       41    0  0.0 s ago  0.0 s ago",
        "   2  voter     -              40    1  1.5 s ago  0.0 s ago",
        "   3  observer  -              30   11  3.0 s ago  -",
    ]
    assert run("cluster", "quorum").err == ""
    scripted.silent_ms = 9_000  # the observer, too: nobody waits for that one
    assert run("cluster", "quorum").err == "Voter 2 was not heard for 9 s: `penstock doctor` tells more\n"
    told = json.loads(run("cluster", "quorum", "--json").out)
    assert [(one["id"], one["voter"], one["lag"]) for one in told["replicas"]] == [
        (1, True, 0),
        (2, True, 1),
        (3, False, 11),
    ]


def test_nothing_is_printed_where_nothing_is_missing(run: CommandLine, scripted: ScriptedCluster) -> None:
    ran = run("cluster", "under-replicated")
    assert (ran.code, ran.out) == (0, "")
    scripted.topics["events"][1] = Partition(2, [2, 3], [2], [3])
    assert run("cluster", "under-replicated").lines == ["events Partition 1: Leader=2, ISR=[2], ELR=[3], Missing=[3]"]
    told = json.loads(run("cluster", "under-replicated", "--json").out)
    assert told == [{"topic": "events", "partition": 1, "leader": 2, "replicas": [2, 3], "isr": [2], "elr": [3]}]


def test_replicas_that_are_being_added_are_not_missing(run: CommandLine, scripted: ScriptedCluster) -> None:
    scripted.topics["events"][0].replicas = [3, 1, 2]
    scripted.moves["events", 0] = ([3], [1])
    assert run("cluster", "under-replicated").lines == []


def test_watching_tells_what_changes(
    run: CommandLine, scripted: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = iter(([2, 3], [2], [2], [2, 3]))

    def wait(seconds: float) -> None:
        scripted.topics["events"][1].isr = next(states, None) or _interrupt()

    monkeypatch.setattr(cluster_module.time, "sleep", wait)
    ran = run("cluster", "under-replicated", "--watch")
    assert ran.code == 130
    assert ran.out.splitlines() == [
        "events Partition 1: Leader=2, ISR=[2], Missing=[3]",
        "events Partition 1: all replicas are in sync again",
    ]


def test_watching_goes_on_while_nobody_answers(
    run: CommandLine, scripted: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fall_silent() -> None:
        for broker in scripted.brokers.values():
            broker.scripts[Api.METADATA] = lambda _: None

    def come_back() -> None:
        for broker in scripted.brokers.values():
            broker.scripts[Api.METADATA] = scripted._metadata
        scripted.topics["events"][1].isr = [2]

    steps = iter((fall_silent, lambda: None, come_back))

    def wait(seconds: float) -> None:
        if seconds == cluster_module.LOOK_EVERY_S:
            next(steps, _interrupt)()

    monkeypatch.setattr(cluster_module.time, "sleep", wait)
    ran = run("cluster", "under-replicated", "--watch", "--timeout", "0.3")
    assert ran.code == 130
    assert ran.out.splitlines() == ["events Partition 1: Leader=2, ISR=[2], Missing=[3]"]
    told = ran.err.splitlines()
    assert [line.partition(",")[0] for line in told[:4]] == [
        "No under-replicated partitions.",
        "The cluster does not answer",
        "The cluster answers again.",
        "1 under-replicated partition:",
    ]


def test_internal_topics_are_counted(run: CommandLine, scripted: ScriptedCluster) -> None:
    scripted.topics["__consumer_offsets"] = [Partition(2, [2, 3], [2]), Partition(3, [3, 1], [3])]
    scripted.topics["events"][1].isr = [2]
    ran = run("cluster", "under-replicated")
    assert ran.lines == ["events Partition 1: Leader=2, ISR=[2], Missing=[3]"]
    assert ran.err == "3 under-replicated partitions, 2 of them of internal topics (--all shows them):\n"
    assert len(run("cluster", "under-replicated", "--all").lines) == 3
    assert len(json.loads(run("cluster", "under-replicated", "--json").out)) == 3


@pytest.mark.parametrize("words", [("status",), ("describe",), ("quorum",)])
def test_that_there_is_no_controller_is_told(
    run: CommandLine, scripted: ScriptedCluster, words: tuple[str, ...]
) -> None:
    """A broker answers from what it knows, and says of the rest that nobody decides."""
    said = "No controller answers: fewer than a majority (voters: 1 at no..name:9093)"
    answers = iter([quorum.DescribeQuorumResponse(error_code=ErrorCode.NOT_CONTROLLER, error_message=said)])
    for broker in scripted.brokers.values():
        broker.scripts[Api.DESCRIBE_QUORUM] = lambda _: next(answers, None)  # and nothing more in time
    ran = run("cluster", *words, "--timeout", "0.5")
    assert (ran.code, ran.out) == (1, "")
    first = f"127.0.0.1:{scripted.brokers[1].port}"
    assert f"{first} answers, but the cluster has no controller: 0 of 1 voters answer this machine" in ran.err
    assert "(node 1 at no..name:9093: the name no..name does not resolve)" in ran.err


def test_a_request_that_only_the_controller_answers_is_explained(run: CommandLine, scripted: ScriptedCluster) -> None:
    said = "No controller answers: fewer than a majority"
    for broker in scripted.brokers.values():
        broker.scripts[Api.ELECT_LEADERS] = lambda _: None
        broker.scripts[Api.LIST_PARTITION_REASSIGNMENTS] = lambda _: listing.ListPartitionReassignmentsResponse(
            error_code=ErrorCode.NOT_CONTROLLER, error_message=said
        )
    ran = run("cluster", "elect-leaders", "--timeout", "0.3")
    assert ran.code == 1
    assert "answers, but no controller answers: fewer than a majority" in ran.err


def test_status_names_brokers_that_are_down(run: CommandLine, scripted: ScriptedCluster) -> None:
    assert "Down:       broker 4 (127.0.0.1:9)" in run("cluster", "status").lines
    assert json.loads(run("cluster", "status", "--json").out)["down"] == [4]


def test_a_reassignment_is_not_under_replication(run: CommandLine, scripted: ScriptedCluster) -> None:
    scripted.topics["events"][0] = Partition(1, [1, 2, 3], [1, 2])
    assert run("cluster", "status").code == 1
    scripted.moves["events", 0] = ([3], [1])
    ran = run("cluster", "status")
    assert "Status:     healthy" in ran.lines
    assert "Partitions: 2 (0 under-replicated, 0 offline)" in ran.lines
    assert doctor_of_partitions(Target(scripted.servers, "test")).state == "ok"


def test_doctor_names_what_is_missing_and_what_to_do(scripted: ScriptedCluster) -> None:
    target = Target(scripted.servers, "test")
    scripted.topics["events"][1] = Partition(2, [2, 4], [2])
    found = doctor_of_partitions(target)
    assert (found.state, found.sentence) == ("warning", "1 with 2 partitions, 0 offline, 1 under-replicated")
    assert found.advice == "They miss broker 4; `penstock cluster under-replicated --all` shows which."
    scripted.topics["events"] += [Partition(-1, [4], [], [4]) for _ in range(4)]
    found = doctor_of_partitions(target)
    assert (found.state, found.sentence) == ("problem", "1 with 6 partitions, 4 offline, 5 under-replicated")
    assert found.advice.startswith(
        "Nobody in sync is alive for events-2, events-3, events-4 and 1 more: bring broker 4 back. "
    )


def test_doctor_names_brokers_that_are_down(scripted: ScriptedCluster) -> None:
    scripted.fenced = [4, 5]
    scripted.racks[5] = None
    (first, _, _) = scripted.brokers.values()
    fenced = fenced_at(first.address)
    assert [(one.node_id, one.port) for one in fenced] == [(4, 9), (5, 9)]
    (finding,) = down(fenced, ["controller", "voter 5"])
    assert (finding.state, finding.about) == ("warning", "broker 4")
    assert finding.sentence == "is down: 127.0.0.1:9: connection refused"
    assert "start that node again" in finding.advice
    (finding,) = down([Voter(4, *first.address)], [])
    assert finding.sentence.endswith("answers, but the controller has not let it in")
    del first.scripts[Api.DESCRIBE_CLUSTER]
    assert fenced_at(first.address) == []  # an older broker does not tell


def _interrupt() -> list[int]:
    raise KeyboardInterrupt


def test_features(run: CommandLine, scripted: ScriptedCluster) -> None:
    broker = scripted.brokers[1]
    versions = broker.scripts[Api.API_VERSIONS]

    def answer(request: Message) -> Message:
        told = versions(request)
        assert isinstance(told, ApiVersionsResponse)
        told.supported_features = [SupportedFeatureKey(name="metadata.version", min_version=7, max_version=29)]
        told.finalized_features = [FinalizedFeatureKey(name="metadata.version", max_version_level=25)]
        told.finalized_features_epoch = 1
        return told

    for one in scripted.brokers.values():
        one.scripts[Api.API_VERSIONS] = answer
    assert run("cluster", "features").lines == [
        "FEATURE           SUPPORTED  LEVEL",
        "metadata.version  7 to 29       25",
    ]
    told = json.loads(run("cluster", "features", "--json").out)
    assert told == [{"feature": "metadata.version", "min_level": 7, "max_level": 29, "level": 25}]


def test_topics_describe_shows_who_may_lead_besides_the_isr(run: CommandLine, scripted: ScriptedCluster) -> None:
    scripted.topics["events"] = [Partition(1, [1, 2, 3], [1, 2, 3]), Partition(-1, [2, 3, 1], [], [2])]
    assert run("topics", "describe", "--name", "events").lines == [
        "Partition 0: Leader=1, ISR=[1,2,3]",
        "Partition 1: Leader=none, ISR=[], ELR=[2]",
    ]


# -- leaders and replicas -----------------------------------------------------------------


def test_elect_leaders(run: CommandLine, scripted: ScriptedCluster) -> None:
    ran = run("cluster", "elect-leaders")
    assert (ran.code, ran.out) == (0, "")
    scripted.topics["events"][0].leader = 2
    assert run("cluster", "elect-leaders", "--topic", "events").lines == ["events-0 is led by 1 now."]
    asked = [
        one for one in scripted.asked(electing.ElectLeadersRequest) if isinstance(one, electing.ElectLeadersRequest)
    ]
    (topics,) = [one.topic_partitions for one in asked if one.topic_partitions is not None]
    assert topics[0].partitions == [0, 1]
    scripted.topics["events"][1] = Partition(3, [2, 3], [3])
    refused = run("cluster", "elect-leaders")
    assert refused.code == 1
    assert refused.err == "penstock: events-1: The preferred leader is not in sync\n"
    assert run("cluster", "elect-leaders", "--unclean").lines == ["events-1 is led by 2 now."]
    assert run("cluster", "elect-leaders", "--topic", "nope").code == 1


@pytest.mark.parametrize("words", [(), ("--topic", "events")])
@pytest.mark.parametrize("flags", [(), ("--unclean",)])
def test_an_election_whose_answer_got_lost_is_told(
    run: CommandLine, scripted: ScriptedCluster, words: tuple[str, ...], flags: tuple[str, ...]
) -> None:
    """As when the controller changes while it answers: asked again, it says that there is nothing to do."""
    scripted.topics["events"][0].leader = 2 if not flags else -1
    for broker in scripted.brokers.values():

        def elect_twice(request: Message) -> Message:
            scripted._elect(request)
            return scripted._elect(request)

        broker.scripts[Api.ELECT_LEADERS] = elect_twice
    assert run("cluster", "elect-leaders", *words, *flags).lines == ["events-0 is led by 1 now."]
    again = run("cluster", "elect-leaders", *words, *flags)
    assert (again.out, again.err.partition(":")[0]) == ("", "Nothing to do")


def test_reassign_one_partition(run: CommandLine, scripted: ScriptedCluster) -> None:
    ran = run("cluster", "reassign", "--topic", "events", "--partition", "0", "--replicas", "3,2")
    assert ran.lines == ["events-0: from [1,2] to [3,2]"]
    (request,) = scripted.asked(alter.AlterPartitionReassignmentsRequest)
    assert isinstance(request, alter.AlterPartitionReassignmentsRequest)
    assert [(topic.name, topic.partitions[0].replicas) for topic in request.topics] == [("events", [3, 2])]


def test_reassign_by_a_plan_and_watch(run: CommandLine, scripted: ScriptedCluster, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text('{"version": 1, "partitions": [{"topic": "events", "partition": 0, "replicas": [3, 2]}]}')

    def begin() -> None:
        scripted.topics["events"][0].replicas = [3, 1, 2]
        scripted.moves["events", 0] = ([3], [1])
        scripted.sizes = {(1, "events", 0): PARTITION_BYTES, (2, "events", 0): PARTITION_BYTES}

    def go_on() -> None:
        scripted.sizes[3, "events", 0] = 400

    scripted.looks = iter((begin, go_on, scripted.moves.clear))
    ran = run("cluster", "reassign", "--file", str(plan), "--watch")
    assert ran.lines == [
        "events-0: from [1,2] to [3,2]",
        "0 of 1 partitions done, 0 of 1000 bytes moved (0%)",
        "0 of 1 partitions done, 400 of 1000 bytes moved (40%)",
        "1 of 1 partitions done, 1000 of 1000 bytes moved (100%)",
    ]


def test_every_partition_gets_so_many_replicas(run: CommandLine, scripted: ScriptedCluster) -> None:
    scripted.topics["other"] = [Partition(3, [3], [3])]
    words = ("cluster", "reassign", "--replication-factor", "3")
    plan = json.loads(run(*words, "--dry-run").out)
    assert {(one["topic"], one["partition"]): sorted(one["replicas"]) for one in plan["partitions"]} == {
        ("events", 0): [1, 2, 3],
        ("events", 1): [1, 2, 3],
        ("other", 0): [1, 2, 3],
    }
    assert not scripted.asked(alter.AlterPartitionReassignmentsRequest)
    assert run(*words, "--topic", "other").lines == ["other-0: from [3] to [3,2,1]"], "another rack first"
    (request,) = scripted.asked(alter.AlterPartitionReassignmentsRequest)
    assert isinstance(request, alter.AlterPartitionReassignmentsRequest)
    assert [topic.name for topic in request.topics] == ["other"]
    one = run("cluster", "reassign", "--replication-factor", "2", "--topic", "events")
    assert (one.code, one.out) == (0, "")
    assert one.err == "Nothing to do: every partition of topic events has 2 replicas.\n"
    many = run("cluster", "reassign", "--replication-factor", "4")
    assert (many.code, many.out) == (1, "")
    assert "events-0 cannot have 4 replicas: 3 broker(s) are running" in many.err
    unknown = run(*words, "--topic", "nope")
    assert (unknown.code, unknown.err.partition(";")[0]) == (1, "penstock: topic 'nope' does not exist")


def test_balance(run: CommandLine, scripted: ScriptedCluster) -> None:
    scripted.topics["events"] = [Partition(1, [1, 2], [1, 2]) for _ in range(3)]
    scripted.racks = dict.fromkeys(scripted.racks)
    plan = json.loads(run("cluster", "balance", "--dry-run").out)
    assert not scripted.asked(alter.AlterPartitionReassignmentsRequest)
    assert [one["replicas"] for one in plan["partitions"]] == [[3, 2], [1, 3], [2, 1]], (
        "the fenced broker 4 gets nothing"
    )
    assert run("cluster", "balance").lines == [
        f"events-{one['partition']}: from [1,2] to [{','.join(map(str, one['replicas']))}]"
        for one in plan["partitions"]
    ]
    scripted.topics["events"] = [Partition(1, [1], [1]), Partition(2, [2], [2]), Partition(3, [3], [3])]
    even = run("cluster", "balance", "--json")
    assert (even.code, json.loads(even.out), even.err.partition(":")[0]) == (0, [], "Nothing to do")


def test_what_a_move_waits_for_is_told(run: CommandLine, scripted: ScriptedCluster) -> None:
    """Once each. It may never end."""
    scripted.topics["events"][0] = Partition(-1, [3, 1], [])
    scripted.topics["events"][1] = Partition(2, [4, 2, 3], [2, 3])
    scripted.moves = {("events", 0): ([3], [1]), ("events", 1): ([4], [3])}
    scripted.looks = iter((lambda: None, lambda: None, scripted.moves.clear))
    ran = run("cluster", "reassignments", "--watch")
    assert ran.err.splitlines() == [
        "events-0 has no leader: it waits until one of those that have its records is up (`penstock cluster describe`)",
        "events-1 waits for [4] to be up: all of its new replicas must be in sync first (`penstock cluster describe`)",
    ]


@pytest.mark.parametrize("words", [("reassign", "--replication-factor", "2"), ("balance",)])
def test_nothing_more_to_do_while_moves_are_under_way(
    run: CommandLine, scripted: ScriptedCluster, words: tuple[str, ...]
) -> None:
    scripted.topics["events"] = [Partition(1, [1, 2], [1]), Partition(2, [2, 3], [2, 3]), Partition(3, [3, 1], [3, 1])]
    scripted.moves["events", 0] = ([2], [])
    ran = run("cluster", *words)
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.startswith("Nothing more to do: ")
    assert ran.err.endswith("once 1 reassignment under way is through (`penstock cluster reassignments`)\n")
    nothing = iter(lambda: lambda: None, None)
    scripted.looks = (look for looks in ([next(nothing)] * 4, [scripted.moves.clear]) for look in looks)
    watched = run("cluster", *words, "--watch")
    assert watched.lines[-1].startswith("1 of 1 partitions done"), "those under way are watched"


def test_what_cannot_be_balanced_is_told(run: CommandLine, scripted: ScriptedCluster) -> None:
    scripted.topics["events"] = [Partition(-1, [1], []), Partition(1, [1, 4], [1]), Partition(2, [2], [2])]
    ran = run("cluster", "balance")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.splitlines() == [
        "Left where they are: 2 partitions without a leader or with a replica that is down "
        "(`penstock cluster under-replicated --all`)",
        "Nothing to do: what can be moved is spread evenly over the brokers that are up.",
    ]


def test_a_dry_run_is_checked_and_taken_as_a_plan(run: CommandLine, scripted: ScriptedCluster, tmp_path: Path) -> None:
    words = ("reassign", "--topic", "events", "--partition", "0", "--dry-run", "--replicas")
    wrong = run("cluster", *words, "88")
    assert (wrong.code, wrong.out) == (1, "")
    assert "cannot put events-0 on [88]" in wrong.err
    path = tmp_path / "plan.json"
    path.write_text(run("cluster", *words, "3,2").out)
    assert run("cluster", "reassign", "--file", str(path)).lines == ["events-0: from [1,2] to [3,2]"]
    scripted.topics["events"] = []
    path.write_text(run("cluster", "balance", "--dry-run").out)
    empty = run("cluster", "reassign", "--file", str(path))
    assert (empty.code, empty.out, empty.err) == (0, "", "Nothing to do: the plan is empty.\n")


@pytest.mark.parametrize("error", [KeyboardInterrupt, PenstockError("nobody answers")])
def test_a_watch_that_ends_early_tells_of_its_limit(
    run: CommandLine, scripted: ScriptedCluster, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, as_json: bool) -> None:
        raise error

    scripted.script_settings({})
    monkeypatch.setattr(cluster_moves, "watch_moves", fails)
    words = ("--topic", "events", "--partition", "0", "--replicas", "3,2", "--throttle", "9", "--watch")
    ran = run("cluster", "reassign", *words)
    assert ran.code != 0
    assert ran.err.startswith("The limit stays until it is taken back: penstock cluster reassignments --unthrottle\n")


def test_reassignments(run: CommandLine, scripted: ScriptedCluster) -> None:
    assert run("cluster", "reassignments").lines == []
    scripted.topics["events"][0].replicas = [3, 1, 2]
    scripted.moves["events", 0] = ([3], [1])
    scripted.sizes = {(1, "events", 0): PARTITION_BYTES, (3, "events", 0): 250}
    assert run("cluster", "reassignments").lines == [
        "TOPIC   PARTITION  ADDING  REMOVING  MOVED  NEEDED  DONE",
        "events          0  [3]     [1]         250    1000  25%",
    ]
    (told,) = json.loads(run("cluster", "reassignments", "--json").out)
    assert (told["moved_bytes"], told["needed_bytes"], told["adding"]) == (250, 1000, [3])


def test_cancel(run: CommandLine, scripted: ScriptedCluster) -> None:
    assert run("cluster", "cancel-reassignment", "--all").lines == []
    assert not scripted.asked(alter.AlterPartitionReassignmentsRequest)
    scripted.moves["events", 0] = ([3], [1])
    assert run("cluster", "cancel-reassignment", "--topic", "events", "--partition", "1").lines == []
    assert run("cluster", "cancel-reassignment", "--topic", "events").lines == ["events-0: cancelled"]
    (request,) = scripted.asked(alter.AlterPartitionReassignmentsRequest)
    assert isinstance(request, alter.AlterPartitionReassignmentsRequest)
    assert request.topics[0].partitions[0].replicas is None


def test_a_limit_that_stays_after_a_cancel_is_told(run: CommandLine, scripted: ScriptedCluster) -> None:
    settings = {(TOPIC, "events"): {"leader.replication.throttled.replicas": "0:1"}}
    scripted.script_settings(settings)
    scripted.moves["events", 0] = ([3], [1])
    ran = run("cluster", "cancel-reassignment", "--all")
    assert ran.lines == ["events-0: cancelled"]
    assert ran.err == "The limit stays until it is taken back: penstock cluster reassignments --unthrottle\n"
    scripted.moves["events", 0] = ([3], [1])
    settings[TOPIC, "events"] = {}
    assert run("cluster", "cancel-reassignment", "--all").err == ""


def test_the_controllers_refusal_is_one_sentence(run: CommandLine, scripted: ScriptedCluster) -> None:
    scripted.refusals[Api.ALTER_PARTITION_REASSIGNMENTS] = (
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "Broker 4 is fenced.",
    )
    words = ("cluster", "reassign", "--topic", "events", "--partition", "0", "--replicas", "4")
    ran = run(*words)
    assert (ran.code, ran.err) == (
        1,
        "penstock: cannot reassign events-0: Broker 4 is fenced (INVALID_REPLICA_ASSIGNMENT)\n",
    )
    scripted.script_settings({})
    ran = run(*words, "--throttle", "1000")
    assert ran.err.splitlines()[0] == (
        "The limit stays until it is taken back: penstock cluster reassignments --unthrottle"
    )
    scripted.refusals.clear()
    told = run(*words, "--throttle", "1000", "--json")
    assert (told.code, len(json.loads(told.out))) == (0, 1)
    assert told.err == "The limit stays until it is taken back: penstock cluster reassignments --unthrottle\n"


@pytest.mark.parametrize(
    ("partition", "replicas", "says"),
    [
        ("0", "1,9", "cannot put events-0 on [9]: brokers are [1,2,3,4] (`penstock cluster describe`)"),
        ("7", "1", "topic events has no partition 7: it has 0 to 1"),
    ],
)
def test_what_is_not_there_is_told_before_anything_changes(
    run: CommandLine, scripted: ScriptedCluster, partition: str, replicas: str, says: str
) -> None:
    words = ("reassign", "--topic", "events", "--partition", partition, "--replicas", replicas, "--throttle", "9")
    ran = run("cluster", *words)
    assert (ran.code, ran.out, ran.err) == (1, "", f"penstock: {says}\n")
    assert not scripted.asked(alter.AlterPartitionReassignmentsRequest)
    assert not scripted.asked(altering.IncrementalAlterConfigsRequest)


def test_an_unknown_topic_and_where_to_look(run: CommandLine, scripted: ScriptedCluster) -> None:
    for words in (
        ("reassign", "--topic", "nope", "--partition", "0", "--replicas", "1"),
        ("elect-leaders", "--topic", "nope"),
    ):
        ran = run("cluster", *words)
        assert (ran.code, ran.err) == (
            1,
            "penstock: topic 'nope' does not exist; `penstock topics list` shows those there are\n",
        )


def test_settings_of_a_broker_that_is_down(run: CommandLine, scripted: ScriptedCluster) -> None:
    down = run("configs", "describe", "--broker", "4")
    assert (down.code, down.err) == (1, "penstock: broker 4 is down: it is asked itself, so start it first\n")
    unknown = run("configs", "set", "--broker", "9", "log.retention.ms=5")
    assert (unknown.code, unknown.err) == (1, "penstock: there is no broker 9: there is 1, 2, 3\n")


def test_unthrottle_says_of_whom(run: CommandLine, scripted: ScriptedCluster) -> None:
    settings = {
        (BROKER, "1"): {"leader.replication.throttled.rate": "1000"},
        (BROKER, "3"): {"follower.replication.throttled.rate": "1000", "log.retention.ms": "5"},
        (TOPIC, "events"): {"leader.replication.throttled.replicas": "0:1"},
    }
    scripted.script_settings(settings)
    ran = run("cluster", "reassignments", "--unthrottle")
    assert ran.lines == ["Throttle removed from brokers 1, 3 and topic events."]
    assert "Not asked, as it is down: broker 4." in ran.err
    assert settings == {(BROKER, "1"): {}, (BROKER, "3"): {"log.retention.ms": "5"}, (TOPIC, "events"): {}}
    scripted.fenced = []
    again = run("cluster", "reassignments", "--unthrottle")
    assert (again.code, again.out) == (0, "")
    assert again.err == "No throttle is set.\nNo reassignments under way.\n"
    settings[BROKER, "2"] = {"leader.replication.throttled.rate": "7"}
    told = run("cluster", "reassignments", "--unthrottle", "--json")
    assert (json.loads(told.out), told.err) == ([], "Throttle removed from broker 2.\n")


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ("{", "is not JSON"),
        ("[]", "is no plan"),
        ('{"partitions": {}}', "is no plan"),
        ('{"partitions": [1]}', "partitions[0]: write topic, partition and replicas"),
        ('{"partitions": [{"partition": 0, "replicas": [1]}]}', "topic is the name of one, not None"),
        ('{"partitions": [{"topic": "t", "partition": -1, "replicas": [1]}]}', "partition is a number from 0, not -1"),
        ('{"partitions": [{"topic": "t", "partition": true, "replicas": [1]}]}', "partition is a number"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": ["1"]}]}', "replicas is a list of numbers"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 1]}]}', "numbers of different brokers"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": []}]}', "at least one"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": [4294967296]}]}', "numbers of different brokers"),
        ('{"partitions": [{"topic": "t", "partition": 4294967296, "replicas": [1]}]}', "partition is a number from 0"),
        ("[" * 100_000, "is not JSON"),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1]}, '
            '{"topic": "t", "partition": 0, "replicas": [2]}]}',
            "t-0 is in the plan twice",
        ),
    ],
)
def test_bad_plans_are_told_in_one_sentence(run: CommandLine, tmp_path: Path, plan: str, says: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(plan)
    ran = run("cluster", "reassign", "--file", str(path))
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        ("reassign",),
        ("reassign", "--topic", "t"),
        ("reassign", "--file", "p", "--topic", "t"),
        ("reassign", "--file", "/nowhere/plan.json"),
        ("reassign", "--file", "p", "--replication-factor", "2"),
        ("reassign", "--replication-factor", "0"),
        ("reassign", "--replication-factor", "2", "--topic", "t", "--partition", "0"),
        ("balance", "now"),
        ("reassign", "--topic", "t", "--partition", "0", "--replicas", "1,x"),
        ("reassign", "--topic", "t", "--partition", "0", "--replicas", "1,1"),
        ("reassign", "--topic", "t", "--partition", "-1", "--replicas", "1"),
        ("reassign", "--topic", "t", "--partition", "0", "--replicas", "1", "--throttle", "0"),
        ("cancel-reassignment",),
        ("cancel-reassignment", "--partition", "0"),
        ("cancel-reassignment", "--topic", "t", "--all"),
        ("drain", "one"),
        ("remove", "-1"),
        ("add-voter", "1"),
        ("add-voter", "1", "host:port"),
        ("add-voter", "99999999999", "host:9092"),
        ("reassign", "--topic", "t", "--partition", "99999999999", "--replicas", "1"),
        ("reassign", "--topic", "t", "--partition", "0", "--replicas", "99999999999"),
        ("remove-voter", "x"),
    ],
)
def test_bad_commands_are_refused_before_anything_is_asked(run: CommandLine, words: tuple[str, ...]) -> None:
    ran = run("cluster", *words)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err


# -- members ------------------------------------------------------------------------------


def test_drain_moves_everything_to_others(run: CommandLine, scripted: ScriptedCluster) -> None:
    ran = run("cluster", "drain", "1")
    assert ran.lines == ["events-0: from [1,2] to [3,2]"], "the fenced broker 4 gets nothing"
    ran = run("cluster", "drain", "2", "--dry-run")
    plan = json.loads(ran.out)
    assert plan["partitions"] == [
        {"topic": "events", "partition": 0, "replicas": [1, 3]},
        {"topic": "events", "partition": 1, "replicas": [1, 3]},
    ]
    assert len(scripted.asked(alter.AlterPartitionReassignmentsRequest)) == 1
    ran = run("cluster", "drain", "4")
    assert (ran.code, ran.out) == (0, "")
    assert "holds no replicas" in ran.err
    ran = run("cluster", "drain", "7")
    assert (ran.code, ran.err) == (1, "penstock: there is no broker 7: there is 1, 2, 3, 4\n")
    scripted.topics["events"][1] = Partition(2, [7, 2], [2])  # removed by force, and still named
    assert run("cluster", "drain", "7").lines == ["events-1: from [7,2] to [3,2]"]


def test_a_broker_that_nobody_can_stand_in_for_is_not_drained(run: CommandLine, scripted: ScriptedCluster) -> None:
    scripted.topics["events"] = [Partition(1, [1, 2, 3], [1, 2, 3])]
    ran = run("cluster", "drain", "1")
    assert ran.code == 1
    assert "events-0 has 3 replica(s)" in ran.err
    assert len(ran.err.splitlines()) == 1


def test_remove_refuses_while_there_are_replicas(run: CommandLine, scripted: ScriptedCluster) -> None:
    scripted.topics["events"][0].replicas = [1, 4]
    scripted.voters = [1, 2, 4]
    ran = run("cluster", "remove", "4")
    assert ran.code == 1
    assert "broker 4 holds 1 replica:" in ran.err
    assert "penstock cluster drain 4 --watch" in ran.err
    assert not scripted.asked(UnregisterBrokerRequest)
    assert run("cluster", "remove", "4", "--force").lines == [
        "Broker 4 is no longer part of the cluster, and votes no more."
    ]
    assert [request.voter_id for request in _removed_voters(scripted)] == [4]
    assert len(scripted.asked(UnregisterBrokerRequest)) == 1


def test_a_broker_that_runs_is_not_removed(run: CommandLine, scripted: ScriptedCluster) -> None:
    """Nor is its vote taken, as if that were half of it. What it holds is told first: to be moved while it runs."""
    assert "broker 2 holds 2 replicas: move them away first" in run("cluster", "remove", "2").err
    for words in (("remove", "2", "--force"), ("remove", "3")):
        scripted.topics["events"] = [Partition(1, [1, 2], [1, 2])]
        ran = run("cluster", *words)
        assert (ran.code, ran.out) == (1, "")
        assert f"broker {words[1]} is running, and would register again: stop its process first" in ran.err
    assert not scripted.asked(UnregisterBrokerRequest)
    assert not _removed_voters(scripted)


def test_remove_a_broker_that_is_no_voter(run: CommandLine, scripted: ScriptedCluster) -> None:
    assert run("cluster", "remove", "4").lines == ["Broker 4 is no longer part of the cluster."]
    assert not _removed_voters(scripted)
    assert json.loads(run("cluster", "remove", "4", "--json").out)["was_voter"] is False
    assert run("cluster", "remove", "7").code == 1


def _removed_voters(scripted: ScriptedCluster) -> list[RemoveRaftVoterRequest]:
    return [one for one in scripted.asked(RemoveRaftVoterRequest) if isinstance(one, RemoveRaftVoterRequest)]


def test_voters(run: CommandLine, scripted: ScriptedCluster) -> None:
    assert run("cluster", "add-voter", "3", "three:9093").lines == ["Node 3 votes on the metadata now."]
    (request,) = scripted.asked(AddRaftVoterRequest)
    assert isinstance(request, AddRaftVoterRequest)
    assert (request.voter_id, request.listeners[0].host, request.listeners[0].port) == (3, "three", 9093)
    assert run("cluster", "remove-voter", "3").lines == ["Node 3 votes no more."]
    scripted.refusals[Api.ADD_RAFT_VOTER] = (ErrorCode.DUPLICATE_VOTER, "")
    assert run("cluster", "add-voter", "3", "three:9093").err == "penstock: node 3 is a voter already\n"
    scripted.refusals[Api.REMOVE_RAFT_VOTER] = (ErrorCode.VOTER_NOT_FOUND, "")
    assert "node 9 is no voter" in run("cluster", "remove-voter", "9").err


def test_nobody_gets_a_vote_who_is_not_there(run: CommandLine, scripted: ScriptedCluster) -> None:
    for node, address, says in (
        ("1", "one:9093", "node 1 is a voter already"),
        ("4", "four:9093", "no node 4 is up in this cluster: start it first"),  # known, and down
        ("9", "nine:9093", "no node 9 is up in this cluster: start it first"),
        ("3", "three", "three has no port: write HOST:PORT, where the others reach node 3"),
        ("3", "[::1]", "[::1] has no port: write HOST:PORT"),
        ("3", "three:x", "write HOST:PORT"),
    ):
        ran = run("cluster", "add-voter", node, address)
        assert (ran.code, ran.out) == (2 if "HOST:PORT" in says else 1, "")
        assert says in ran.err
    assert not scripted.asked(AddRaftVoterRequest)
    why = "give the address where the others reach node 3: one:9093 says: this is node 1, not node 3"
    scripted.refusals[Api.ADD_RAFT_VOTER] = (ErrorCode.INVALID_REQUEST, why)
    ran = run("cluster", "add-voter", "3", "one:9093")
    assert (ran.code, ran.err) == (1, f"penstock: {why}\n")


def test_a_broker_that_does_not_serve_it_says_so(run: CommandLine, scripted: ScriptedCluster) -> None:
    for broker in scripted.brokers.values():
        del broker.scripts[Api.DESCRIBE_QUORUM]
    ran = run("cluster", "quorum")
    assert ran.code == 1
    assert "does not serve DescribeQuorum" in ran.err
