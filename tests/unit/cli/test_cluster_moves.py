"""Commands that say who leads and who holds what, against brokers that a test scripts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.cli.cluster import moves as cluster_moves
from penstock.model.errors import ErrorCode, PenstockError
from penstock.wire.apis import Api
from penstock.wire.messages import alter_partition_reassignments as alter
from penstock.wire.messages import elect_leaders as electing
from penstock.wire.messages import incremental_alter_configs as altering
from penstock.wire.primitives import Message
from support.processes.command_line import CommandLine
from support.scripted.cluster import BROKER, PARTITION_BYTES, TOPIC, Partition, ScriptedCluster


def test_elect_leaders(run: CommandLine, scripted: ScriptedCluster) -> None:
    ran = run("cluster", "elect-leaders")
    assert (ran.code, ran.out) == (0, "")
    scripted.topics["events"][0].leader = 2
    assert run("cluster", "elect-leaders", "--topic", "events").lines == ["events-0 now has leader 1."]
    asked = [
        one for one in scripted.asked(electing.ElectLeadersRequest) if isinstance(one, electing.ElectLeadersRequest)
    ]
    (topics,) = [one.topic_partitions for one in asked if one.topic_partitions is not None]
    assert topics[0].partitions == [0, 1]
    scripted.topics["events"][1] = Partition(3, [2, 3], [3])
    refused = run("cluster", "elect-leaders")
    assert refused.code == 1
    assert refused.err == "penstock: events-1: The preferred leader is not in sync\n"
    assert run("cluster", "elect-leaders", "--unclean").lines == ["events-1 now has leader 2."]
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
    assert run("cluster", "elect-leaders", *words, *flags).lines == ["events-0 now has leader 1."]
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
        "events-0 has no leader: it waits for a broker that has its records (`penstock cluster describe`)",
        "events-1 waits for brokers that are down: [4]. All its new replicas must be in sync first "
        "(`penstock cluster describe`)",
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
    assert ran.err.endswith("when 1 reassignment under way is done (`penstock cluster reassignments`)\n")
    nothing = iter(lambda: lambda: None, None)
    scripted.looks = (look for looks in ([next(nothing)] * 4, [scripted.moves.clear]) for look in looks)
    watched = run("cluster", *words, "--watch")
    assert watched.lines[-1].startswith("1 of 1 partitions done"), "those under way are watched"


def test_what_cannot_be_balanced_is_told(run: CommandLine, scripted: ScriptedCluster) -> None:
    scripted.topics["events"] = [Partition(-1, [1], []), Partition(1, [1, 4], [1]), Partition(2, [2], [2])]
    ran = run("cluster", "balance")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.splitlines() == [
        "Not moved: 2 partitions without a leader or with a replica that is down "
        "(`penstock cluster under-replicated --all`)",
        "Nothing to do: the replicas are spread evenly over the brokers that are up.",
    ]


def test_a_dry_run_is_checked_and_taken_as_a_plan(run: CommandLine, scripted: ScriptedCluster, tmp_path: Path) -> None:
    words = ("reassign", "--topic", "events", "--partition", "0", "--dry-run", "--replicas")
    wrong = run("cluster", *words, "88")
    assert (wrong.code, wrong.out) == (1, "")
    assert "cannot move events-0 to [88]" in wrong.err
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
    assert ran.err.startswith(
        "The throttle stays until you remove it with `penstock cluster reassignments --unthrottle`\n"
    )


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
    assert ran.err == "The throttle stays until you remove it with `penstock cluster reassignments --unthrottle`\n"
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
        "The throttle stays until you remove it with `penstock cluster reassignments --unthrottle`"
    )
    scripted.refusals.clear()
    told = run(*words, "--throttle", "1000", "--json")
    assert (told.code, len(json.loads(told.out))) == (0, 1)
    assert told.err == "The throttle stays until you remove it with `penstock cluster reassignments --unthrottle`\n"


@pytest.mark.parametrize(
    ("partition", "replicas", "says"),
    [
        ("0", "1,9", "cannot move events-0 to [9]: the brokers are [1,2,3,4] (`penstock cluster describe`)"),
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
            "penstock: topic 'nope' does not exist; `penstock topics list` shows all topics\n",
        )


def test_settings_of_a_broker_that_is_down(run: CommandLine, scripted: ScriptedCluster) -> None:
    down = run("configs", "describe", "--broker", "4")
    assert (down.code, down.err) == (
        1,
        ("penstock: broker 4 is down: only the broker itself knows its settings, so start it first\n"),
    )
    unknown = run("configs", "set", "--broker", "9", "log.retention.ms=5")
    assert (unknown.code, unknown.err) == (1, "penstock: there is no broker 9; the brokers are: 1, 2, 3\n")


def test_unthrottle_says_of_whom(run: CommandLine, scripted: ScriptedCluster) -> None:
    settings = {
        (BROKER, "1"): {"leader.replication.throttled.rate": "1000"},
        (BROKER, "3"): {"follower.replication.throttled.rate": "1000", "log.retention.ms": "5"},
        (TOPIC, "events"): {"leader.replication.throttled.replicas": "0:1"},
    }
    scripted.script_settings(settings)
    ran = run("cluster", "reassignments", "--unthrottle")
    assert ran.lines == ["Throttle removed from brokers 1, 3 and topic events."]
    assert (
        "Broker 4 is down and may keep a throttle: run `penstock cluster reassignments --unthrottle` again when it"
        in ran.err
    )
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
        ("[]", "is not a plan"),
        ('{"partitions": {}}', "is not a plan"),
        ('{"partitions": [1]}', "partitions[0]: write topic, partition and replicas"),
        ('{"partitions": [{"partition": 0, "replicas": [1]}]}', "topic must be the name of a topic, not None"),
        (
            '{"partitions": [{"topic": "t", "partition": -1, "replicas": [1]}]}',
            "partition must be a number from 0 on, not -1",
        ),
        ('{"partitions": [{"topic": "t", "partition": true, "replicas": [1]}]}', "partition must be a number"),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": ["1"]}]}',
            "replicas must be a list of broker ids",
        ),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 1]}]}', "ids of different brokers"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": []}]}', "at least one"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": [4294967296]}]}', "ids of different brokers"),
        (
            '{"partitions": [{"topic": "t", "partition": 4294967296, "replicas": [1]}]}',
            "partition must be a number from 0",
        ),
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
