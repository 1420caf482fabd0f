"""Cluster commands against brokers that a test scripts: what is asked, what is printed, what is refused."""

from __future__ import annotations

import json

import pytest

from penstock.cli.cluster import command as cluster_module
from penstock.cli.cluster.voters import TriedNode
from penstock.cli.doctor.brokers import down, fenced_at
from penstock.cli.doctor.brokers import partitions as doctor_of_partitions
from penstock.cli.reach.connection import Target
from penstock.model.errors import ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages import alter_partition_reassignments as alter
from penstock.wire.messages import describe_quorum as quorum
from penstock.wire.messages import list_partition_reassignments as listing
from penstock.wire.messages.add_raft_voter import AddRaftVoterRequest
from penstock.wire.messages.api_versions import ApiVersionsResponse, FinalizedFeatureKey, SupportedFeatureKey
from penstock.wire.messages.remove_raft_voter import RemoveRaftVoterRequest
from penstock.wire.messages.unregister_broker import UnregisterBrokerRequest
from penstock.wire.primitives import Message
from support.processes.command_line import CommandLine
from support.scripted.cluster import Partition, ScriptedCluster

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
    assert run("cluster", "quorum").err == (
        "The leader has not heard from voter 2 for 9 s: `penstock doctor` shows more\n"
    )
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
    assert ran.err == "3 under-replicated partitions, 2 of them in internal topics (--all shows them):\n"
    assert len(run("cluster", "under-replicated", "--all").lines) == 3
    assert len(json.loads(run("cluster", "under-replicated", "--json").out)) == 3


@pytest.mark.parametrize("words", [("status",), ("describe",), ("quorum",)])
def test_that_there_is_no_controller_is_told(
    run: CommandLine, scripted: ScriptedCluster, words: tuple[str, ...]
) -> None:
    """A broker answers from what it knows, and says of the rest that nobody decides."""
    said = "No controller answers: no majority (voters: 1 at no..name:9093)"
    answers = iter([quorum.DescribeQuorumResponse(error_code=ErrorCode.NOT_CONTROLLER, error_message=said)])
    for broker in scripted.brokers.values():
        broker.scripts[Api.DESCRIBE_QUORUM] = lambda _: next(answers, None)  # and nothing more in time
    ran = run("cluster", *words, "--timeout", "0.5")
    assert (ran.code, ran.out) == (1, "")
    first = f"127.0.0.1:{scripted.brokers[1].port}"
    assert f"{first} answers, but the cluster has no controller: 0 of 1 voters answer this machine" in ran.err
    assert "(node 1 at no..name:9093: the name no..name does not resolve)" in ran.err


def test_a_request_that_only_the_controller_answers_is_explained(run: CommandLine, scripted: ScriptedCluster) -> None:
    said = "No controller answers: no majority"
    for broker in scripted.brokers.values():
        broker.scripts[Api.ELECT_LEADERS] = lambda _: None
        broker.scripts[Api.LIST_PARTITION_REASSIGNMENTS] = lambda _: listing.ListPartitionReassignmentsResponse(
            error_code=ErrorCode.NOT_CONTROLLER, error_message=said
        )
    ran = run("cluster", "elect-leaders", "--timeout", "0.3")
    assert ran.code == 1
    assert "answers, but no controller answers: no majority" in ran.err


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
    assert (
        found.advice
        == "Replicas are missing on broker 4. `penstock cluster under-replicated --all` shows the partitions."
    )
    scripted.topics["events"] += [Partition(-1, [4], [], [4]) for _ in range(4)]
    found = doctor_of_partitions(target)
    assert (found.state, found.sentence) == ("problem", "1 with 6 partitions, 4 offline, 5 under-replicated")
    assert found.advice.startswith(
        "No in-sync replica is up for events-2, events-3, events-4 and 1 more: start broker 4 again. "
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
    assert "start that node" in finding.advice
    (finding,) = down([TriedNode(4, *first.address)], [])
    assert finding.sentence.endswith("answers, but the controller keeps it fenced")
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
    assert (ran.code, ran.err) == (1, "penstock: there is no broker 7; the brokers are: 1, 2, 3, 4\n")
    scripted.topics["events"][1] = Partition(2, [7, 2], [2])  # removed by force, and still named
    assert run("cluster", "drain", "7").lines == ["events-1: from [7,2] to [3,2]"]


def test_a_drain_that_is_under_way_is_not_over(run: CommandLine, scripted: ScriptedCluster) -> None:
    scripted.topics["events"] = [Partition(1, [3, 2, 1], [1, 2])]
    scripted.moves["events", 0] = ([3], [1])
    ran = run("cluster", "drain", "1")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == (
        "Nothing more to do: broker 1 holds no replicas when 1 reassignment under way is done "
        "(`penstock cluster reassignments`)\n"
    )


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
        "Broker 4 is no longer part of the cluster and no longer a voter."
    ]
    assert [request.voter_id for request in _removed_voters(scripted)] == [4]
    assert len(scripted.asked(UnregisterBrokerRequest)) == 1


def test_a_broker_that_runs_is_not_removed(run: CommandLine, scripted: ScriptedCluster) -> None:
    """Nor is its vote taken, as if that were half of it. Its replicas are named first: they are moved while it runs."""
    assert "broker 2 holds 2 replicas: move them away first" in run("cluster", "remove", "2").err
    for words in (("remove", "2", "--force"), ("remove", "3")):
        scripted.topics["events"] = [Partition(1, [1, 2], [1, 2])]
        ran = run("cluster", *words)
        assert (ran.code, ran.out) == (1, "")
        assert f"broker {words[1]} is running and would register again: stop its process first" in ran.err
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
    assert run("cluster", "add-voter", "3", "three:9093").lines == ["Node 3 is a voter now."]
    (request,) = scripted.asked(AddRaftVoterRequest)
    assert isinstance(request, AddRaftVoterRequest)
    assert (request.voter_id, request.listeners[0].host, request.listeners[0].port) == (3, "three", 9093)
    assert run("cluster", "remove-voter", "3").lines == ["Node 3 is no longer a voter."]
    scripted.refusals[Api.ADD_RAFT_VOTER] = (ErrorCode.DUPLICATE_VOTER, "")
    assert run("cluster", "add-voter", "3", "three:9093").err == "penstock: node 3 is a voter already\n"
    scripted.refusals[Api.REMOVE_RAFT_VOTER] = (ErrorCode.VOTER_NOT_FOUND, "")
    assert "node 9 is not a voter" in run("cluster", "remove-voter", "9").err


def test_nobody_gets_a_vote_who_is_not_there(run: CommandLine, scripted: ScriptedCluster) -> None:
    for node, address, says in (
        ("1", "one:9093", "node 1 is a voter already"),
        ("4", "four:9093", "node 4 is not up in this cluster: start it first"),  # known, and down
        ("9", "nine:9093", "node 9 is not up in this cluster: start it first"),
        ("3", "three", "three has no port: write HOST:PORT, the address where the other nodes reach node 3"),
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
