"""Without a controller, `doctor` and other commands say which voters answer, which do not, and why."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn

import pytest

from penstock.api.forwarding import Forwarding
from penstock.cli.cluster import voters as voters_module
from penstock.cli.cluster.voters import CLOSED, OTHER, TriedNode, named_voters, tried, verdict, what_to_do
from penstock.cli.doctor.voters import voters as voter_findings
from penstock.cli.reach.connection import HANGS, Target
from penstock.cli.reach.no_controller import no_controller, warn_of_old_news
from penstock.model.errors import ApiError, ErrorCode
from penstock.sdk import Refused
from penstock.wire.apis import Api
from penstock.wire.messages import describe_quorum as quorum
from penstock.wire.messages import list_partition_reassignments as listing
from penstock.wire.primitives import Message
from support.processes.command_line import CommandLine
from support.scripted.broker import ScriptedBroker
from support.worlds.peers import identity

REFUSED = "connection refused"


class NoLeader:
    is_active = False
    leader_id = None
    applied_index = 0

    async def wait_applied(self, index: int, timeout_s: float) -> bool:
        return True


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    monkeypatch.setattr(voters_module, "CONNECT_TIMEOUT_S", 0.5)
    return CommandLine(monkeypatch, capsys)


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def hanging_port() -> Iterator[int]:
    """As of a process that is stopped: the system accepts connections for it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def refusal(addresses: Mapping[int, tuple[str, int]]) -> str:
    """As a broker words it."""
    named = ", ".join(f"{node} at {host}:{port}" for node, (host, port) in addresses.items())
    return f"No controller answers: no majority of the voters is up and connected (voters: {named})"


def refusing(addresses: Mapping[int, tuple[str, int]]) -> Callable[[Message], Message]:
    return lambda _: listing.ListPartitionReassignmentsResponse(
        error_code=ErrorCode.NOT_CONTROLLER, error_message=refusal(addresses)
    )


# -- voters -------------------------------------------------------------------------------


async def test_voters_are_read_from_what_a_broker_really_says() -> None:
    addresses = {1: ("one", 9093), 2: ("fd00::2", 9093), 30: ("10.0.0.30", 19093)}
    forwarding = Forwarding(identity(1), NoLeader(), NoLeader(), lambda node: None, lambda: addresses)

    async def decide() -> NoReturn:
        raise AssertionError("this node controls nothing")

    with pytest.raises(ApiError) as refused:
        await forwarding.answer(decide, b"", "PLAINTEXT", 0.0)
    assert named_voters(str(refused.value)) == [TriedNode(node, *address) for node, address in addresses.items()]
    assert named_voters(f"{refused.value} (tried for 7.0 s)") == named_voters(str(refused.value))
    assert named_voters("No controller answers") == []


def test_each_voter_is_tried(monkeypatch: pytest.MonkeyPatch, closed_port: int, hanging_port: int) -> None:
    monkeypatch.setattr(voters_module, "CONNECT_TIMEOUT_S", 0.5)
    with ScriptedBroker() as broker, ScriptedBroker({Api.API_VERSIONS: lambda _: None}) as stranger:
        addresses = {
            1: broker.address,
            2: ("127.0.0.1", closed_port),
            3: ("127.0.0.1", hanging_port),
            4: stranger.address,
            5: ("no..name", 9093),
        }
        found = tried(TriedNode(node, *address) for node, address in addresses.items())
    assert [voter.problem for voter in found] == ["", REFUSED, HANGS, CLOSED, "the name no..name does not resolve"]
    assert [bool(voter.advice) for voter in found] == [False, True, True, True, True]
    assert len({voter.advice for voter in found}) == 5


def test_a_voter_whose_port_another_program_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voters_module, "connect_problem", lambda *_: "")
    monkeypatch.setattr(voters_module, "ask_api_versions", lambda *_: "other")
    (found,) = tried([TriedNode(1, "127.0.0.1", 9093)])
    assert found.problem == OTHER
    assert "Another program" in found.advice


@pytest.mark.parametrize(
    ("problems", "says", "do"),
    [
        (
            ["", REFUSED, REFUSED],
            "1 of 3 voters answers this machine, 2 are needed",
            "Start nodes 2, 3 again (1 of them is enough).",
        ),
        (["", REFUSED], "1 of 2 voters answers this machine, 2 are needed", "Start node 2 again."),
        (["", "", REFUSED], "2 of 3 voters answer this machine, which is a majority", "An election may be under way"),
        (["no name", "no name"], "0 of 2 voters answer this machine, 2 are needed", "this machine does not know"),
    ],
)
def test_what_is_made_of_them(problems: list[str], says: str, do: str) -> None:
    found = [TriedNode(node, "h", 1, problem) for node, problem in enumerate(problems, 1)]
    assert verdict(found) == says
    assert do in what_to_do(found)


# -- commands -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("cluster", "reassignments"),
        ("cluster", "under-replicated"),  # what was true once is no answer
        ("topics", "create", "--name", "new"),
    ],
)
def test_commands_name_who_is_missing_and_why(
    run: CommandLine, words: tuple[str, ...], closed_port: int, hanging_port: int
) -> None:
    with ScriptedBroker() as broker:
        addresses = {1: broker.address, 2: ("127.0.0.1", closed_port), 3: ("127.0.0.1", hanging_port)}
        broker.scripts[Api.LIST_PARTITION_REASSIGNMENTS] = refusing(addresses)
        ran = run(*words, "--bootstrap-server", f"127.0.0.1:{broker.port}", "--timeout", "1")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        f"penstock: 127.0.0.1:{broker.port} answers, but the cluster has no controller: 1 of 3 voters answers this "
        f"machine, 2 are needed (node 2 at 127.0.0.1:{closed_port}: {REFUSED}; node 3 at 127.0.0.1:{hanging_port}: "
        f"{HANGS}). Start nodes 2, 3 again (1 of them is enough). `penstock doctor` shows more\n"
    )


@pytest.mark.parametrize("words", [("cluster", "quorum"), ("cluster", "describe")])
def test_the_quorum_is_asked_for_and_found_missing(run: CommandLine, words: tuple[str, ...]) -> None:
    with ScriptedBroker() as broker:
        said = refusal({1: broker.address})
        broker.scripts |= {
            Api.LIST_PARTITION_REASSIGNMENTS: refusing({1: broker.address}),
            Api.DESCRIBE_QUORUM: lambda _: quorum.DescribeQuorumResponse(
                error_code=ErrorCode.NOT_CONTROLLER, error_message=said
            ),
        }
        ran = run(*words, "--bootstrap-server", f"127.0.0.1:{broker.port}", "--timeout", "0.5")
    assert (ran.code, ran.out) == (1, "")
    assert "the cluster has no controller: 1 of 1 voters answers this machine" in ran.err


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_a_coordinator_that_is_nowhere_is_explained(code: ErrorCode) -> None:
    with ScriptedBroker() as broker:
        target = Target(f"127.0.0.1:{broker.port}", "test")
        failures = [Refused("group g: (X)", code.name), ApiError(code), Refused("group g: (X)", "INVALID_GROUP_ID")]
        broker.scripts[Api.LIST_PARTITION_REASSIGNMENTS] = refusing({1: broker.address})
        said = [no_controller(target, failure) for failure in failures]
        assert [one is not None and "has no controller" in str(one) for one in said] == [True, True, False]
        # With a controller the failure itself says it best.
        broker.scripts[Api.LIST_PARTITION_REASSIGNMENTS] = lambda _: listing.ListPartitionReassignmentsResponse()
        assert [no_controller(target, failure) for failure in failures] == [None, None, None]


def test_who_has_a_controller_is_believed_and_who_hangs_is_not_waited_for(hanging_port: int) -> None:
    with ScriptedBroker() as lone, ScriptedBroker() as led:
        lone.scripts[Api.LIST_PARTITION_REASSIGNMENTS] = refusing({1: lone.address})
        led.scripts[Api.LIST_PARTITION_REASSIGNMENTS] = lambda _: listing.ListPartitionReassignmentsResponse()
        failure = ApiError(ErrorCode.REQUEST_TIMED_OUT)
        hanging = f"127.0.0.1:{hanging_port}"
        target = Target(f"{hanging},127.0.0.1:{lone.port}", "test", timeout_s=30)
        began = time.monotonic()
        assert "has no controller" in str(no_controller(target, failure))
        assert time.monotonic() - began < 5
        assert no_controller(Target(f"{target.servers},127.0.0.1:{led.port}", "test"), failure) is None
        (asked,) = led.asked(listing.ListPartitionReassignmentsRequest)
        assert isinstance(asked, listing.ListPartitionReassignmentsRequest)
        assert 0 < asked.timeout_ms <= 1000  # the command has waited already
        assert asked.topics == []


def test_what_is_shown_without_a_controller_is_old_news(capsys: pytest.CaptureFixture[str], closed_port: int) -> None:
    with ScriptedBroker() as broker:
        target = Target(f"127.0.0.1:{broker.port}", "test")
        broker.scripts[Api.LIST_PARTITION_REASSIGNMENTS] = lambda _: listing.ListPartitionReassignmentsResponse()
        warn_of_old_news(target)
        assert capsys.readouterr() == ("", "")
        addresses = {1: broker.address, 2: ("127.0.0.1", closed_port)}
        broker.scripts[Api.LIST_PARTITION_REASSIGNMENTS] = refusing(addresses)
        warn_of_old_news(target)
    said = capsys.readouterr()
    assert said.out == ""
    assert "penstock: warning: this metadata may be out of date: " in said.err
    assert "Start node 2 again" in said.err


def test_a_broker_that_is_cut_off_names_the_others(run: CommandLine, closed_port: int) -> None:
    with ScriptedBroker({Api.METADATA: lambda _: None}) as broker:
        addresses = {1: broker.address, 2: ("127.0.0.1", closed_port)}
        broker.scripts[Api.LIST_PARTITION_REASSIGNMENTS] = refusing(addresses)
        place = f"127.0.0.1:{broker.port}"
        ran = run("topics", "list", "--bootstrap-server", place)
        assert ran.code == 1
        assert f"{place} answers, but the cluster has no controller: 1 of 2 voters answers" in ran.err
        assert f"node 2 at 127.0.0.1:{closed_port}: {REFUSED}" in ran.err
        ran = run("doctor", "--bootstrap-server", place)
        assert ran.code == 1
        assert f"PROBLEM  voter 2: 127.0.0.1:{closed_port}: {REFUSED}" in ran.out
        assert "is starting" not in ran.out


# -- doctor -------------------------------------------------------------------------------


def test_doctor_does_not_blame_addresses(run: CommandLine, closed_port: int, hanging_port: int) -> None:
    with ScriptedBroker() as broker:
        addresses = {1: broker.address, 2: ("127.0.0.1", closed_port), 3: ("127.0.0.1", hanging_port)}
        broker.scripts[Api.LIST_PARTITION_REASSIGNMENTS] = refusing(addresses)
        ran = run("doctor", "--bootstrap-server", f"127.0.0.1:{broker.port}")
    assert ran.code == 1
    told = ran.out.splitlines()
    begin = told.index(
        "PROBLEM  controller: the cluster has no controller: 1 of 3 voters answers this machine, 2 are needed"
    )
    assert told[begin + 1].startswith("         Start nodes 2, 3 again (1 of them is enough).")
    assert told[begin + 2] == f"ok       voter 1: 127.0.0.1:{broker.port} answers"
    assert told[begin + 3] == f"PROBLEM  voter 2: 127.0.0.1:{closed_port}: {REFUSED}"
    assert "start that node" in told[begin + 4]
    assert told[begin + 5] == f"PROBLEM  voter 3: 127.0.0.1:{hanging_port}: {HANGS}"
    assert ": 1 broker, no controller" in told[begin - 1]
    assert "advertised" not in ran.out


def test_doctor_repeats_what_another_kind_of_broker_says() -> None:
    def answer(request: Message) -> Message:
        return quorum.DescribeQuorumResponse(error_code=ErrorCode.NOT_CONTROLLER, error_message="Nobody leads.")

    with ScriptedBroker({Api.DESCRIBE_QUORUM: answer}) as broker:
        (finding,) = voter_findings(Target("", "test"), broker.address)
    assert (finding.state, finding.about) == ("problem", "controller")
    assert finding.sentence == f"127.0.0.1:{broker.port} says: Nobody leads."


def led(silent_s: Mapping[int, float], addresses: Mapping[int, tuple[str, int]]) -> quorum.DescribeQuorumResponse:
    now_ms = 1_000_000
    found = quorum.ResponsePartitionData(
        leader_id=1,
        current_voters=[
            quorum.ReplicaState(replica_id=node, last_fetch_timestamp=now_ms - int(silence * 1000))
            for node, silence in silent_s.items()
        ],
    )
    return quorum.DescribeQuorumResponse(
        topics=[quorum.ResponseTopicData(topic_name="__cluster_metadata", partitions=[found])],
        nodes=[
            quorum.Node(node_id=node, listeners=[quorum.Listener(name="CONTROLLER", host=host, port=port)])
            for node, (host, port) in addresses.items()
        ],
    )


def test_doctor_warns_of_a_voter_that_the_others_do_without(closed_port: int) -> None:
    with ScriptedBroker() as broker:
        addresses = {1: broker.address, 2: ("127.0.0.1", closed_port), 3: broker.address}
        target = Target("", "test")

        def findings(*silent_s: float) -> list[tuple[str, str, str]]:
            broker.scripts[Api.DESCRIBE_QUORUM] = lambda _: led(dict(enumerate(silent_s, 1)), addresses)
            return [(one.state, one.about, one.sentence) for one in voter_findings(target, broker.address)]

        # Who is heard is not tried: this machine need not reach the voters.
        assert findings(0, 0.1, 0.2) == [("ok", "controller", "node 1, and all 3 voters follow it")]
        assert findings(0, 60, 0.2) == [
            ("ok", "controller", "node 1, and 2 of 3 voters follow it"),
            ("warning", "voter 2", f"127.0.0.1:{closed_port}: {REFUSED}"),
        ]
        [_, (state, about, sentence)] = findings(0, 0.1, 60)
        assert (state, about) == ("warning", "voter 3")
        assert "answers this machine, but node 1 does not hear from it" in sentence
        assert findings(0) == []


def test_a_voter_that_was_given_up_is_missed_before_it_was_silent_for_long(closed_port: int) -> None:
    with ScriptedBroker() as broker:
        addresses = {1: broker.address, 2: ("127.0.0.1", closed_port), 3: broker.address}
        broker.scripts[Api.DESCRIBE_QUORUM] = lambda _: led({1: 0, 2: 1.0, 3: 1.0}, addresses)
        found = [(one.state, one.about) for one in voter_findings(Target("", "test"), broker.address, [2, 3])]
    assert found == [("ok", "controller"), ("warning", "voter 2")]  # 3 is on its way back


def test_who_cannot_be_asked_of_voters_is_not_asked_for_long(closed_port: int) -> None:
    target = Target("", "test")
    assert list(voter_findings(target, ("127.0.0.1", closed_port))) == []
    with ScriptedBroker() as broker:
        assert list(voter_findings(target, broker.address)) == []  # serves no such request
        broker.scripts[Api.DESCRIBE_QUORUM] = lambda _: quorum.DescribeQuorumResponse()
        assert list(voter_findings(target, broker.address)) == []  # an answer without content
