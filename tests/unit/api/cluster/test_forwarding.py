"""Requests for the controller that reach another broker, on a simulated network: dispatchers, connections, real frames.

A test says which node leads; the quorum itself is not here.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar, cast

import pytest
from controller_requests import FakeController

from penstock.api.admin.config_resources import ConfigResources, ResourceType
from penstock.api.cluster_view import ClusterView
from penstock.api.dispatch import PIPELINED, Dispatcher
from penstock.api.forwarding import FORWARD_KEY, ForwardedAnswer, ForwardedRequest, Forwarding
from penstock.api.handler import Handler
from penstock.api.handlers.add_raft_voter import AddRaftVoterHandler
from penstock.api.handlers.alter_configs import AlterConfigsHandler
from penstock.api.handlers.broker_heartbeat import BrokerHeartbeatHandler
from penstock.api.handlers.elect_leaders import ElectLeadersHandler
from penstock.api.handlers.incremental_alter_configs import IncrementalAlterConfigsHandler
from penstock.api.handlers.list_partition_reassignments import ListPartitionReassignmentsHandler
from penstock.api.handlers.unregister_broker import UnregisterBrokerHandler
from penstock.api.request_times import RequestTimes
from penstock.broker_link.direct import DirectConnection
from penstock.broker_link.peer_connection import open_to_peer
from penstock.cluster.running_config import RunningConfig
from penstock.config.broker import BrokerConfig
from penstock.core.metadata.image import MetadataImage
from penstock.core.metadata.records import ConfigChanged, TopicCreated
from penstock.core.metadata.requests import OngoingReassignment, PartitionAnswer
from penstock.model.errors import ApiError, ErrorCode, ProtocolError
from penstock.net.connection import ConnectionLimits
from penstock.net.listener import Listener, ListenerBounds
from penstock.sim.machine.channel import SimSource
from penstock.sim.machine.world import SimPorts, SimWorld
from penstock.wire.apis import Api
from penstock.wire.codec import decode_response, encode_request, read_response_header
from penstock.wire.messages import alter_configs
from penstock.wire.messages.add_raft_voter import AddRaftVoterRequest
from penstock.wire.messages.add_raft_voter import Listener as VoterListener
from penstock.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from penstock.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from penstock.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from penstock.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from penstock.wire.messages.unregister_broker import UnregisterBrokerRequest
from penstock.wire.primitives import Message
from penstock.wire_client.requests.errors import ConnectionLost
from support.worlds.peers import identity, introductions

T = TypeVar("T")
PORT = 9092
LOST = ApiError(ErrorCode.NOT_CONTROLLER, "leadership was lost")


class Quorum:
    """The quorum as this node sees it."""

    def __init__(self) -> None:
        self.leader_id: int | None = None
        self.applied_index = 0
        self.waited: list[int] = []

    async def wait_applied(self, index: int, timeout_s: float) -> bool:
        self.waited.append(index)
        await asyncio.sleep(0.01)
        self.applied_index = max(self.applied_index, index)
        return True


class SmallBroker:
    def __init__(self, ports: SimPorts, node_id: int) -> None:
        self.node_id = node_id
        self.quorum = Quorum()
        self.image = MetadataImage()
        self.controller = FakeController(
            self.image,
            list_reassignments=[OngoingReassignment("t", 0, (1, 2), (2,), ())],
            change_config=self.change_config,
        )
        self.controller.is_active = False
        self.forwarding = Forwarding(
            identity(node_id),
            self.controller,
            self.quorum,
            lambda node: (f"b{node}", PORT),
            lambda: {2: ("b2", 9), 1: ("b1", 9)},
        )
        config, _ = BrokerConfig.load(None, {"node.id": str(node_id), "log.dirs": "/data"})
        resources = ConfigResources(node_id, self.controller, RunningConfig(config, self.image))
        handlers: list[Handler] = [
            UnregisterBrokerHandler(self.controller),
            AddRaftVoterHandler(self.controller, cast(ClusterView, None)),
            ElectLeadersHandler(self.controller),
            ListPartitionReassignmentsHandler(self.controller),
            BrokerHeartbeatHandler(self.controller),
            IncrementalAlterConfigsHandler(resources, self.forwarding),
            AlterConfigsHandler(resources, self.forwarding),
        ]
        self.dispatcher = Dispatcher(
            handlers, RequestTimes(ports.clock), self.forwarding, [introductions(node_id, "OUTSIDE")]
        )
        bound = ports.network.bind(ports.process, PORT, ports.process.host)
        limits = ConnectionLimits(1 << 20, 100, PIPELINED)
        source = SimSource(ports.loop, bound)
        listener = Listener(ports.loop, "OUTSIDE", source, limits, ListenerBounds(100, 100, 0))
        listener.start(self.dispatcher)

    async def change_config(
        self,
        resource_type: int,
        name: str,
        decide: Callable[[Mapping[str, str]], dict[str, str]],
        *,
        validate_only: bool,
    ) -> None:
        current = self.image.configs.get((resource_type, name), {})
        overrides = decide(current)
        if not validate_only:
            self.image.replay(ConfigChanged(resource_type, name, overrides))


class Cluster:
    def __init__(self, world: SimWorld) -> None:
        self.world = world
        self.brokers: dict[int, SmallBroker] = {}

    async def start(self, *node_ids: int) -> None:
        async def make(node_id: int, ports: SimPorts) -> SmallBroker:
            return SmallBroker(ports, node_id)

        for node_id in node_ids:
            machine = self.world.machine(f"b{node_id}")
            self.brokers[node_id] = await machine.start(partial(make, node_id))

    def lead(self, node_id: int | None, *, known_to: tuple[int, ...] | None = None, index: int = 7) -> None:
        """This node controls the cluster from now on, and these (all) know it."""
        for broker in self.brokers.values():
            broker.controller.is_active = broker.node_id == node_id
            if known_to is None or broker.node_id in known_to:
                broker.quorum.leader_id = node_id
        if node_id is not None:
            self.brokers[node_id].quorum.applied_index = index

    def calls(self) -> dict[int, list[tuple[Any, ...]]]:
        return {node_id: broker.controller.calls for node_id, broker in self.brokers.items()}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with SimWorld(11) as world:
        yield Cluster(world)


def run(cluster: Cluster, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return cluster.world.run(main(), timeout_s=300)


async def exchange(node_id: int, request: bytes) -> bytes:
    """A client's request frame and the answer's, both with their sizes; empty if the connection was closed."""
    reader, writer = await asyncio.open_connection(f"b{node_id}", PORT)
    writer.write(request)
    size = await reader.read(4)
    answer = size + await reader.readexactly(struct.unpack(">i", size)[0]) if size else b""
    writer.close()
    return answer


def frame(key: Api, version: int, request: Message, correlation_id: int = 77) -> bytes:
    parts, _ = encode_request(key, version, correlation_id, "client", request)
    return b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]


async def call(node_id: int, key: Api, version: int, request: Message) -> Any:
    answer = await exchange(node_id, frame(key, version, request))
    correlation_id, at = read_response_header(key, version, answer, 4)
    assert correlation_id == 77
    return decode_response(key, version, answer, at)


async def unregister(node_id: int, broker_id: int = 9) -> Any:
    return await call(node_id, Api.UNREGISTER_BROKER, 0, UnregisterBrokerRequest(broker_id=broker_id))


# -- there and back -------------------------------------------------------------------------------


def test_the_controllers_answer_comes_back_byte_for_byte(cluster: Cluster) -> None:
    asked = [TopicPartitions(topic="t", partitions=[0, 1])]
    requests = [
        frame(Api.UNREGISTER_BROKER, 0, UnregisterBrokerRequest(broker_id=9), 2**31 - 1),
        frame(Api.LIST_PARTITION_REASSIGNMENTS, 0, ListPartitionReassignmentsRequest(), 5),
        *(frame(Api.ELECT_LEADERS, version, ElectLeadersRequest(topic_partitions=asked)) for version in range(3)),
    ]

    async def main() -> None:
        await cluster.start(1, 2)
        refusal = ApiError(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
        answers = [PartitionAnswer("t", 0), PartitionAnswer("t", 1, refusal)]
        cluster.brokers[1].controller.answers["elect_leaders"] = answers
        cluster.lead(1)
        for request in requests:
            there = await exchange(1, request)
            assert await exchange(2, request) == there
            assert there[4:8] == request[8:12]

    run(cluster, main)
    assert cluster.calls()[2] == []
    assert len(cluster.calls()[1]) == 2 * len(requests)


def test_a_refusal_comes_back_too(cluster: Cluster) -> None:
    async def main() -> Any:
        await cluster.start(1, 2)
        unknown = ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, "Broker ID 9 is not currently registered")
        cluster.brokers[1].controller.answers["unregister_broker"] = unknown
        cluster.lead(1)
        return await unregister(2)

    response = run(cluster, main)
    assert (response.error_code, response.error_message) == (102, "Broker ID 9 is not currently registered")


def test_what_was_answered_is_applied_here_first(cluster: Cluster) -> None:
    async def main() -> None:
        await cluster.start(1, 2)
        cluster.lead(1, index=123)
        await unregister(2)

    run(cluster, main)
    assert cluster.brokers[2].quorum.waited == [123]
    assert cluster.brokers[1].quorum.waited == []


def test_a_broker_that_controls_asks_nobody(cluster: Cluster) -> None:
    async def main() -> None:
        await cluster.start(1, 2)
        cluster.lead(2)
        assert (await unregister(2)).error_code == 0

    run(cluster, main)
    assert cluster.calls() == {1: [], 2: [("unregister_broker", 9)]}


def test_many_clients_share_a_connection_and_do_not_wait_for_each_other(cluster: Cluster) -> None:
    async def main() -> list[float]:
        await cluster.start(1, 2)
        cluster.lead(1)

        async def slowly(broker_id: int) -> None:
            await asyncio.sleep(1.0)

        cluster.brokers[1].controller.answers["unregister_broker"] = slowly
        began = cluster.world.loop.time()
        await asyncio.gather(*(unregister(2, broker_id) for broker_id in range(20)))
        return [cluster.world.loop.time() - began]

    (took_s,) = run(cluster, main)
    assert took_s < 2.0  # of the virtual clock: one after the other they would take twenty
    assert sorted(broker_id for _, broker_id in cluster.calls()[1]) == list(range(20))


# -- looking for a controller ---------------------------------------------------------------------


def test_a_request_waits_for_a_controller(cluster: Cluster) -> None:
    async def main() -> Any:
        await cluster.start(1, 2)
        cluster.lead(None)
        cluster.world.loop.call_later(3.0, cluster.lead, 1)
        return await unregister(2)

    assert run(cluster, main).error_code == 0
    assert cluster.calls() == {1: [("unregister_broker", 9)], 2: []}


def test_without_one_it_is_refused_in_the_end(cluster: Cluster) -> None:
    async def main() -> tuple[Any, float, Any, float]:
        await cluster.start(1)
        began = cluster.world.loop.time()
        plain = await unregister(1)
        plain_s = cluster.world.loop.time() - began
        began = cluster.world.loop.time()
        request = ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="t", partitions=[0])], timeout_ms=2000)
        timed = await call(1, Api.ELECT_LEADERS, 2, request)
        return plain, plain_s, timed, cluster.world.loop.time() - began

    plain, plain_s, timed, timed_s = run(cluster, main)
    assert plain.error_code == timed.error_code == ErrorCode.NOT_CONTROLLER
    assert plain.error_message.endswith("(voters: 1 at b1:9, 2 at b2:9)")
    assert timed.replica_election_results[0].partition_result[0].error_code == ErrorCode.NOT_CONTROLLER
    assert 4.9 < plain_s < 5.1  # virtual seconds
    assert 1.9 < timed_s < 2.1


def test_brokers_that_ask_for_themselves_are_told_at_once(cluster: Cluster) -> None:
    async def main() -> tuple[Any, float]:
        await cluster.start(1)
        began = cluster.world.loop.time()
        request = BrokerHeartbeatRequest(broker_id=5, broker_epoch=1)
        asked = frozenset({Api.BROKER_HEARTBEAT})
        connection = await open_to_peer(("b1", PORT), "broker-5", 1.0, identity(5), asked)
        response = await connection.call(Api.BROKER_HEARTBEAT, request, BrokerHeartbeatResponse)
        connection.close()
        return response, cluster.world.loop.time() - began

    response, took_s = run(cluster, main)
    assert response.error_code == ErrorCode.NOT_CONTROLLER
    assert took_s < 0.5


def test_one_that_leads_and_is_not_yet_active_is_asked_again(cluster: Cluster) -> None:
    async def main() -> Any:
        await cluster.start(1, 2)
        cluster.brokers[2].quorum.leader_id = 1
        cluster.world.loop.call_later(1.0, cluster.lead, 1)
        return await unregister(2)

    assert run(cluster, main).error_code == 0
    assert cluster.calls() == {1: [("unregister_broker", 9)], 2: []}


def test_a_forwarded_request_is_not_sent_on_again(cluster: Cluster) -> None:
    async def main() -> Any:
        await cluster.start(1, 2, 3)
        # 2 is behind the times and asks 3, which knows better: it must not send on what was sent on to it.
        cluster.lead(1)
        cluster.brokers[2].quorum.leader_id = 3
        cluster.world.loop.call_later(2.0, setattr, cluster.brokers[2].quorum, "leader_id", 1)
        response = await unregister(2)
        return response, cluster.world.loop.time()

    response, at_s = run(cluster, main)
    assert response.error_code == 0
    assert at_s > 2.0
    assert cluster.calls() == {1: [("unregister_broker", 9)], 2: [], 3: []}


# -- controllers that are lost --------------------------------------------------------------------


def test_leadership_lost_here_sends_the_request_on(cluster: Cluster) -> None:
    async def main() -> Any:
        await cluster.start(1, 2)
        cluster.lead(1)

        async def lose(broker_id: int) -> None:
            cluster.lead(2)
            raise LOST

        cluster.brokers[1].controller.answers["unregister_broker"] = lose
        return await unregister(1)

    assert run(cluster, main).error_code == 0
    assert cluster.calls() == {1: [("unregister_broker", 9)], 2: [("unregister_broker", 9)]}


def test_leadership_lost_there_asks_the_next_one(cluster: Cluster) -> None:
    async def main() -> Any:
        await cluster.start(1, 2, 3)
        cluster.lead(1)

        async def lose(broker_id: int) -> None:
            cluster.lead(3)
            raise LOST

        cluster.brokers[1].controller.answers["unregister_broker"] = lose
        return await unregister(2)

    assert run(cluster, main).error_code == 0
    assert cluster.calls() == {1: [("unregister_broker", 9)], 2: [], 3: [("unregister_broker", 9)]}


async def for_ever(broker_id: int) -> None:
    await asyncio.sleep(1e6)


@pytest.mark.parametrize("end", ["kill", "crash", "pause"])
def test_a_controller_that_ends_or_hangs_is_not_waited_for(cluster: Cluster, end: str) -> None:
    async def main() -> Any:
        await cluster.start(1, 2, 3)
        cluster.lead(1)
        cluster.brokers[1].controller.answers["unregister_broker"] = for_ever
        asking = asyncio.ensure_future(unregister(2))
        await asyncio.sleep(0.5)
        assert len(cluster.calls()[1]) == 1
        getattr(cluster.world.machine("b1"), end)()
        cluster.lead(3)
        return await asking

    assert run(cluster, main).error_code == 0
    assert cluster.calls()[3] == [("unregister_broker", 9)]
    assert cluster.world.loop.time() < 5.0


def test_a_connection_that_has_died_in_silence_is_not_asked_for_ever(cluster: Cluster) -> None:
    async def main() -> None:
        await cluster.start(1, 2)
        cluster.lead(1)
        assert (await unregister(2)).error_code == ErrorCode.NONE
        cluster.world.network.hang("b1", "b2")
        lost = await unregister(2)
        assert lost.error_code == ErrorCode.REQUEST_TIMED_OUT, "nobody says that it is dead"
        assert "did not answer (node 1 at b1:" in lost.error_message
        assert lost.error_message.endswith("may have been made: check before you repeat the request")
        assert (await unregister(2)).error_code == ErrorCode.NONE

    run(cluster, main)


ADD_VOTER = AddRaftVoterRequest(
    cluster_id=None,
    voter_id=4,
    voter_directory_id=b"d" * 16,
    listeners=[VoterListener(name="X", host="h", port=1)],
    timeout_ms=9000,
)


def test_a_voter_is_not_added_again_after_the_answer_was_lost(cluster: Cluster) -> None:
    """Somebody may have removed it since."""

    async def decide_and_hang_up(*_: Any) -> None:
        cluster.world.network.reset("b1", "b2")
        await asyncio.sleep(0.5)

    async def main() -> Any:
        await cluster.start(1, 2)
        cluster.lead(1)
        cluster.brokers[1].controller.answers["add_voter"] = decide_and_hang_up
        answer = await call(2, Api.ADD_RAFT_VOTER, 0, ADD_VOTER)
        await asyncio.sleep(10)
        return answer

    answer = run(cluster, main)
    assert [name for name, *_ in cluster.calls()[1]] == ["add_voter"], "asked once"
    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert answer.error_message.endswith("may have been made: check before you repeat the request")


def test_who_loses_its_office_while_it_adds_a_voter_has_it_added_by_nobody_else(cluster: Cluster) -> None:
    async def main() -> list[Any]:
        await cluster.start(1, 2)
        cluster.lead(1)
        cluster.brokers[1].controller.answers["add_voter"] = LOST
        return [await call(number, Api.ADD_RAFT_VOTER, 0, ADD_VOTER) for number in (1, 2)]

    for answer in run(cluster, main):
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert "leadership was lost" in answer.error_message
    assert len(cluster.calls()[1]) == 2


def test_a_controller_that_cannot_be_reached_is_tried_until_it_can(cluster: Cluster) -> None:
    async def main() -> Any:
        await cluster.start(1, 2)
        cluster.lead(1)
        cluster.world.network.partition(["b1"], ["b2"])
        cluster.world.loop.call_later(3.0, cluster.world.network.heal)
        return await unregister(2)

    assert run(cluster, main).error_code == 0


# -- what comes from other brokers ----------------------------------------------------------------


def test_bytes_that_are_no_forwarded_request_close_the_connection(cluster: Cluster) -> None:
    whole = ForwardedRequest("OUTSIDE", "User:x", frame(Api.UNREGISTER_BROKER, 0, UnregisterBrokerRequest())[4:])

    async def main() -> None:
        await cluster.start(1)
        cluster.lead(1)
        for payload in (b"", b"\x00\x09short", b"\xff\xff", b"\x00\x01\xff\x00\x00", whole.encode()[:-9]):
            connection = await DirectConnection.open("b1", PORT, "broker-2", 1.0, identity(2))
            with pytest.raises(ConnectionLost):
                await connection.call(FORWARD_KEY, payload, 5.0)

    run(cluster, main)
    assert cluster.calls() == {1: []}


def test_what_is_not_for_the_controller_is_not_taken(cluster: Cluster) -> None:
    async def main() -> list[ForwardedAnswer]:
        await cluster.start(1)
        cluster.lead(1)
        connection = await DirectConnection.open("b1", PORT, "broker-2", 1.0, identity(2))
        answers = []
        for key, version in ((Api.METADATA, 12), (Api.UNREGISTER_BROKER, 1), (999, 0)):
            request = ForwardedRequest("OUTSIDE", "User:x", struct.pack(">hhihx", key, version, 1, -1))
            answers.append(ForwardedAnswer.decode(await connection.call(FORWARD_KEY, request.encode(), 5.0)))
        connection.close()
        return answers

    assert run(cluster, main) == [ForwardedAnswer(ErrorCode.UNSUPPORTED_VERSION, 7, b"")] * 3


def test_a_newer_broker_is_told_what_an_older_controller_cannot_do(cluster: Cluster) -> None:
    async def main() -> Any:
        await cluster.start(1, 2)
        cluster.lead(1)
        dispatcher = cluster.brokers[1].dispatcher
        vars(dispatcher._private[FORWARD_KEY])["_handlers"].pop(int(Api.UNREGISTER_BROKER))
        return await unregister(2)

    assert run(cluster, main).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_a_controller_that_is_still_starting_is_waited_for(cluster: Cluster) -> None:
    """It speaks with nodes before it serves clients, and may lead them for as long as it opens its logs."""

    async def main() -> Any:
        await cluster.start(1, 2)
        cluster.lead(1)
        dispatcher = cluster.brokers[1].dispatcher
        serving = dispatcher._private[FORWARD_KEY]
        starting = Dispatcher([], dispatcher._times, cluster.brokers[1].forwarding, is_complete=False)
        dispatcher._private[FORWARD_KEY] = starting._private[FORWARD_KEY]
        asked = asyncio.ensure_future(unregister(2))
        await asyncio.sleep(1)
        assert not asked.done()
        dispatcher._private[FORWARD_KEY] = serving
        return await asked

    assert run(cluster, main).error_code == ErrorCode.NONE


def test_names_survive_the_way() -> None:
    request = ForwardedRequest("AUSSEN-Ü", "User:ÅNON", b"\x00frame")
    assert ForwardedRequest.decode(request.encode()) == request
    with pytest.raises(ProtocolError):
        ForwardedRequest.decode(request.encode()[:5])


# -- settings: partly this broker's, partly the controller's --------------------------------------


def setting(kind: ResourceType, name: str, **configs: str) -> AlterConfigsResource:
    return AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[AlterableConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )


async def alter(node_id: int, *resources: AlterConfigsResource, validate_only: bool = False) -> list[tuple[Any, ...]]:
    request = IncrementalAlterConfigsRequest(resources=list(resources), validate_only=validate_only)
    response = await call(node_id, Api.INCREMENTAL_ALTER_CONFIGS, 1, request)
    return [(each.resource_type, each.resource_name, each.error_code) for each in response.responses]


def test_topics_and_this_broker_are_changed_by_the_controller_others_are_refused(cluster: Cluster) -> None:
    async def main() -> list[tuple[Any, ...]]:
        await cluster.start(1, 2)
        cluster.lead(1)
        for broker in cluster.brokers.values():
            broker.image.replay(TopicCreated("t", "ab" * 16, ((1,),)))
        return await alter(
            2,
            setting(ResourceType.BROKER, "1", log_cleaner_threads="2"),
            setting(ResourceType.TOPIC, "t", retention_ms="5"),
            setting(ResourceType.BROKER_LOGGER, "2", root="INFO"),
            setting(ResourceType.BROKER, "2", log_cleaner_threads="3"),
            setting(ResourceType.TOPIC, "missing", retention_ms="5"),
            setting(ResourceType.BROKER, "", log_cleaner_threads="4"),
        )

    assert run(cluster, main) == [
        (4, "1", ErrorCode.INVALID_REQUEST),
        (2, "t", 0),
        (8, "2", ErrorCode.INVALID_CONFIG),
        (4, "2", 0),
        (2, "missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (4, "", 0),
    ]
    assert cluster.brokers[1].image.configs == {
        (2, "t"): {"retention.ms": "5"},
        (4, "2"): {"log.cleaner.threads": "3"},
        (4, ""): {"log.cleaner.threads": "4"},
    }
    assert cluster.brokers[2].controller.calls == []
    assert cluster.brokers[2].quorum.waited == [7]


def test_what_this_broker_refuses_goes_nowhere(cluster: Cluster) -> None:
    async def main() -> list[tuple[Any, ...]]:
        await cluster.start(1, 2)
        cluster.lead(1)
        twice = setting(ResourceType.TOPIC, "t", retention_ms="5")
        return await alter(2, setting(ResourceType.BROKER, "2", log_cleaner_threads="many"), twice, twice)

    assert run(cluster, main) == [(4, "2", 42), (2, "t", 42), (2, "t", 42)]
    assert cluster.calls() == {1: [], 2: []}


def test_a_rehearsal_changes_nothing(cluster: Cluster) -> None:
    async def main() -> list[tuple[Any, ...]]:
        await cluster.start(1, 2)
        cluster.lead(1)
        resource = setting(ResourceType.BROKER, "2", log_cleaner_threads="3")
        return await alter(2, resource, validate_only=True)

    assert run(cluster, main) == [(4, "2", 0)]
    assert cluster.brokers[1].image.configs == {}


def test_the_older_call_replaces_what_is_set(cluster: Cluster) -> None:
    def request(**configs: str) -> alter_configs.AlterConfigsRequest:
        settings = [alter_configs.AlterableConfig(name=key.replace("_", "."), value=configs[key]) for key in configs]
        resource = alter_configs.AlterConfigsResource(resource_type=4, resource_name="2", configs=settings)
        return alter_configs.AlterConfigsRequest(resources=[resource])

    async def main() -> list[int]:
        await cluster.start(1, 2)
        cluster.lead(1)
        asked = [request(log_cleaner_threads="2"), request(num_partitions="9"), request(no_such_setting="1")]
        return [(await call(2, Api.ALTER_CONFIGS, 2, each)).responses[0].error_code for each in asked]

    assert run(cluster, main) == [0, ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST]
    assert cluster.brokers[1].image.configs == {(4, "2"): {"log.cleaner.threads": "2"}}


def test_a_change_finds_the_next_controller(cluster: Cluster) -> None:
    async def main() -> list[tuple[Any, ...]]:
        await cluster.start(1, 2, 3)
        cluster.lead(1)

        async def lose(*asked: Any, **options: Any) -> None:
            cluster.lead(3)
            raise LOST

        cluster.brokers[1].controller.answers["change_config"] = lose
        return await alter(2, setting(ResourceType.BROKER, "2", log_cleaner_threads="3"))

    assert run(cluster, main) == [(4, "2", 0)]
    assert cluster.brokers[3].image.configs == {(4, "2"): {"log.cleaner.threads": "3"}}
