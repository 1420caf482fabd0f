"""DescribeConfigs, IncrementalAlterConfigs and AlterConfigs: answers recorded from Apache Kafka 4.3.1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from admin_broker import AdminBroker

from penstock.core.metadata.records import BrokerRegistered
from penstock.wire.messages import alter_configs, incremental_alter_configs
from penstock.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from penstock.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3

Answer = tuple[int, str | None]
Change = tuple[str, int, str | None]
Shown = tuple[str | None, int, list[tuple[str, str | None, int]]]


@pytest.fixture
def broker() -> Iterator[AdminBroker]:
    broker = AdminBroker()
    names = ("t", "u")
    broker.ask(
        CreateTopicsRequest(
            topics=[CreatableTopic(name=name, num_partitions=2, replication_factor=1) for name in names]
        )
    )
    yield broker
    broker.close()


def describe(
    broker: AdminBroker,
    kind: int,
    name: str,
    keys: list[str] | None = None,
    *,
    version: int = 4,
    synonyms: bool = True,
    documentation: bool = False,
) -> Any:
    request = DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)],
        include_synonyms=synonyms,
        include_documentation=documentation,
    )
    [result] = broker.ask(request, version).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def entries(broker: AdminBroker, kind: int, name: str) -> dict[str, DescribeConfigsResourceResult]:
    result = describe(broker, kind, name)
    assert (result.error_code, result.error_message) == (0, "")
    return {config.name: config for config in result.configs}


def shown(broker: AdminBroker, kind: int, name: str, key: str) -> Shown:
    """Value, source and synonyms of one setting."""
    [config] = describe(broker, kind, name, [key]).configs
    assert config.name == key
    return config.value, config.config_source, [(item.name, item.value, item.source) for item in config.synonyms]


def alter(
    broker: AdminBroker, kind: int, name: str, *changes: Change, version: int = 1, validate_only: bool = False
) -> Answer:
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(
        resources=[
            incremental_alter_configs.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    incremental_alter_configs.AlterableConfig(name=key, config_operation=operation, value=value)
                    for key, operation, value in changes
                ],
            )
        ],
        validate_only=validate_only,
    )
    [result] = broker.ask(request, version).responses
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result.error_code, result.error_message


def replace(
    broker: AdminBroker,
    kind: int,
    name: str,
    *configs: tuple[str, str | None],
    version: int = 2,
    validate_only: bool = False,
) -> Answer:
    request = alter_configs.AlterConfigsRequest(
        resources=[
            alter_configs.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[alter_configs.AlterableConfig(name=key, value=value) for key, value in configs],
            )
        ],
        validate_only=validate_only,
    )
    [result] = broker.ask(request, version).responses
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result.error_code, result.error_message


OK: Answer = (0, None)
BAD_NAME = (
    "Topic name is invalid: 'bad name' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
)

# -- describe -----------------------------------------------------------------------------------


def test_topic_shows_every_setting_with_its_source(broker: AdminBroker) -> None:
    configs = entries(broker, TOPIC, "t")
    assert len(configs) == 33
    assert not any(config.read_only or config.is_sensitive for config in configs.values())
    assert shown(broker, TOPIC, "t", "cleanup.policy") == ("delete", 5, [("log.cleanup.policy", "delete", 5)])
    assert shown(broker, TOPIC, "t", "retention.ms") == ("604800000", 5, [])


@pytest.mark.parametrize("keys", [None, []])
def test_no_keys_means_all_and_unknown_keys_are_left_out(broker: AdminBroker, keys: list[str] | None) -> None:
    assert len(describe(broker, TOPIC, "t", keys).configs) == 33
    assert [config.name for config in describe(broker, TOPIC, "t", ["nope", "retention.ms"]).configs] == [
        "retention.ms"
    ]


@pytest.mark.parametrize("version", range(1, 5))
def test_what_each_version_tells(broker: AdminBroker, version: int) -> None:
    alter(broker, TOPIC, "t", ("segment.bytes", SET, "2000000"))
    [config] = describe(broker, TOPIC, "t", ["segment.bytes"], version=version, documentation=True).configs
    assert (config.value, config.config_source, config.is_sensitive, config.read_only) == ("2000000", 1, False, False)
    assert [item.name for item in config.synonyms] == ["segment.bytes", "log.segment.bytes"]
    assert config.config_type == (3 if version >= 3 else 0)
    assert bool(config.documentation) == (version >= 3)
    [plain] = describe(broker, TOPIC, "t", ["segment.bytes"], version=version, synonyms=False).configs
    assert (plain.synonyms, plain.documentation) == ([], None if version >= 3 else "")


def test_broker_by_id_shows_what_it_runs_with(broker: AdminBroker) -> None:
    configs = entries(broker, BROKER, "1")
    assert (configs["node.id"].value, configs["node.id"].config_source, configs["node.id"].read_only) == ("1", 4, True)
    assert (configs["log.retention.hours"].value, configs["log.retention.hours"].read_only) == ("168", True)
    assert (configs["log.retention.ms"].value, configs["log.retention.ms"].config_source) == (None, 5)
    assert (configs["message.max.bytes"].value, configs["message.max.bytes"].read_only) == ("1048588", False)
    assert (configs["ssl.keystore.password"].value, configs["ssl.keystore.password"].is_sensitive) == (None, True)
    assert entries(broker, BROKER, "") == {}


@pytest.mark.parametrize(
    ("kind", "name", "code", "message"),
    [
        (TOPIC, "nope", 3, ""),
        (TOPIC, "bad name", 17, BAD_NAME),
        (TOPIC, "", 17, "Topic name is invalid: the empty string is not allowed"),
        (BROKER, "99", 42, "Unexpected broker id, expected 1 or empty string, but received 99"),
        (BROKER, "abc", 42, "Broker id must be an integer, but it is: abc"),
        (LOGGER, "", 42, "Broker id must not be empty"),
        (LOGGER, "9", 42, "Unexpected broker id, expected 1 but received 9"),
        (METRICS, "", 42, "Client metrics subscription name must not be empty"),
        (GROUP, "", 42, "Group name must not be empty"),
    ],
)
def test_resources_that_are_not_there(broker: AdminBroker, kind: int, name: str, code: int, message: str) -> None:
    result = describe(broker, kind, name)
    assert (result.error_code, result.error_message, result.configs) == (code, message, [])


def test_an_unknown_type_refuses_the_whole_request(broker: AdminBroker) -> None:
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=TOPIC, resource_name="t", configuration_keys=None),
            DescribeConfigsResource(resource_type=3, resource_name="x", configuration_keys=None),
        ]
    )
    assert [(result.error_code, result.configs) for result in broker.ask(request).results] == [(42, []), (42, [])]


def test_a_broker_has_no_loggers(broker: AdminBroker) -> None:
    assert entries(broker, LOGGER, "1") == {}
    assert alter(broker, LOGGER, "1", ("root", SET, "DEBUG")) == (40, "Logger root does not exist!")


# -- alter topics -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1])
def test_set_and_delete_reach_the_log_and_survive_a_crash(broker: AdminBroker, version: int) -> None:
    assert alter(broker, TOPIC, "t", ("retention.ms", SET, "1000"), version=version) == OK
    assert shown(broker, TOPIC, "t", "retention.ms") == ("1000", 1, [("retention.ms", "1000", 1)])
    assert [partition.log.config.retention_ms for partition in broker.partitions.by_name["t"]] == [1000, 1000]
    assert broker.partitions.by_name["u"][0].config.retention_ms == 604_800_000
    broker.crash()
    assert broker.partitions.by_name["t"][1].config.retention_ms == 1000
    assert alter(broker, TOPIC, "t", ("retention.ms", DELETE, None), version=version) == OK
    assert shown(broker, TOPIC, "t", "retention.ms") == ("604800000", 5, [])
    assert broker.partitions.by_name["t"][0].config.retention_ms == 604_800_000


def test_append_and_subtract_start_from_the_value_in_force(broker: AdminBroker) -> None:
    behind = [("log.cleanup.policy", "delete", 5)]
    for operation, item, value in ((APPEND, "compact", "delete,compact"), (SUBTRACT, "delete", "compact")):
        assert alter(broker, TOPIC, "t", ("cleanup.policy", operation, item)) == OK
        expected: Shown = (value, 1, [("cleanup.policy", value, 1), *behind])
        assert shown(broker, TOPIC, "t", "cleanup.policy") == expected


def test_what_is_not_named_stays(broker: AdminBroker) -> None:
    alter(broker, TOPIC, "t", ("retention.ms", SET, "1000"), ("segment.ms", SET, "2000"))
    assert alter(broker, TOPIC, "t", ("segment.ms", DELETE, None), ("flush.ms", SET, "3000")) == OK
    assert broker.image.topic_overrides("t") == {"retention.ms": "1000", "flush.ms": "3000"}


def test_validate_only_changes_nothing(broker: AdminBroker) -> None:
    assert alter(broker, TOPIC, "t", ("retention.ms", SET, "1000"), validate_only=True) == OK
    assert alter(broker, TOPIC, "t", ("retention.ms", SET, "x"), validate_only=True)[0] == 40
    assert broker.image.configs == {}


REFUSED: list[tuple[int, str, list[Change], int, str]] = [
    (TOPIC, "t", [("nope", SET, "1")], 40, "Unknown topic config name: nope"),
    (
        TOPIC,
        "t",
        [("retention.ms", SET, "x")],
        40,
        "Invalid value x for configuration retention.ms: Not a number of type LONG",
    ),
    (TOPIC, "t", [("retention.ms", SET, None)], 42, "Null value not supported for : retention.ms"),
    (TOPIC, "t", [("retention.ms", APPEND, None)], 42, "Null value not supported for : retention.ms"),
    (
        TOPIC,
        "t",
        [("retention.ms", SET, "1"), ("retention.ms", SET, "2")],
        42,
        "Error due to duplicate config keys",
    ),
    (
        TOPIC,
        "t",
        [("retention.ms", APPEND, "1")],
        40,
        "Can't APPEND to key retention.ms because its type is not LIST.",
    ),
    (
        TOPIC,
        "t",
        [("cleanup.policy", APPEND, "bogus")],
        40,
        "Invalid value bogus for configuration cleanup.policy: String must be one of: compact, delete",
    ),
    (TOPIC, "nope", [("retention.ms", SET, "1")], 3, "The topic 'nope' does not exist."),
    (TOPIC, "nope", [], 3, "The topic 'nope' does not exist."),
    (
        TOPIC,
        "nope",
        [("retention.ms", SET, "x")],
        40,
        "Invalid value x for configuration retention.ms: Not a number of type LONG",
    ),
    (TOPIC, "bad name", [("retention.ms", SET, "1")], 17, BAD_NAME),
    (TOPIC, "", [("retention.ms", SET, "1")], 42, "Default topic resources are not allowed."),
    (3, "x", [("retention.ms", SET, "1")], 42, "Unknown resource type 3"),
    (BROKER, "1", [("num.partitions", SET, "7")], 42, "Cannot update these configs dynamically: [num.partitions]"),
    (BROKER, "", [("node.id", SET, "7")], 42, "Cannot update these configs dynamically: [node.id]"),
    (
        BROKER,
        "1",
        [("log.retention.ms", SET, "x")],
        42,
        "Invalid value x for configuration log.retention.ms: Not a number of type LONG",
    ),
    (BROKER, "9", [("log.retention.ms", SET, "7")], 42, "Unexpected broker id, expected 1, but received 9"),
    (BROKER, "x", [("log.retention.ms", SET, "7")], 42, "Node id must be an integer, but it is: x"),
    (BROKER, "1", [("log.retention.ms", SET, None)], 42, "Null value not supported for : log.retention.ms"),
    (
        BROKER,
        "1",
        [("log.segment.bytes", SET, "1")],
        42,
        "Invalid value 1 for configuration log.segment.bytes: Value must be at least 1048576",
    ),
    (GROUP, "g", [("nope", SET, "1")], 40, "Unknown group config name: nope"),
    (
        GROUP,
        "g",
        [("consumer.session.timeout.ms", SET, "1")],
        40,
        "consumer.session.timeout.ms must be greater than or equal to group.consumer.min.session.timeout.ms",
    ),
    (GROUP, "", [("consumer.session.timeout.ms", SET, "50000")], 42, "Default group resources are not allowed."),
    (METRICS, "", [("interval.ms", SET, "1000")], 42, "Subscription name can't be empty"),
    (METRICS, "m", [("nope", SET, "1000")], 42, "Unknown client metrics configuration: nope"),
    (
        METRICS,
        "m",
        [("interval.ms", SET, "1")],
        42,
        "Invalid value 1 for interval.ms, interval must be between 100 and 3600000 (1 hour)",
    ),
    (METRICS, "m", [("metrics", APPEND, "c")], 40, "Can't APPEND to key metrics because its type is not LIST."),
]


@pytest.mark.parametrize(("kind", "name", "changes", "code", "message"), REFUSED)
def test_refused_in_kafkas_words(
    broker: AdminBroker, kind: int, name: str, changes: list[Change], code: int, message: str
) -> None:
    assert alter(broker, kind, name, *changes) == (code, message)
    assert broker.image.configs == {}


def test_a_resource_that_comes_twice_is_refused_and_the_others_are_changed(broker: AdminBroker) -> None:
    def resource(name: str, value: str) -> incremental_alter_configs.AlterConfigsResource:
        config = incremental_alter_configs.AlterableConfig(name="retention.ms", config_operation=SET, value=value)
        return incremental_alter_configs.AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=[config])

    request = incremental_alter_configs.IncrementalAlterConfigsRequest(
        resources=[resource("t", "1"), resource("t", "2"), resource("u", "3")]
    )
    once = "Each resource must appear at most once."
    assert [
        (result.resource_name, result.error_code, result.error_message) for result in broker.ask(request).responses
    ] == [
        ("t", 42, once),
        ("t", 42, once),
        ("u", 0, None),
    ]
    assert broker.image.configs == {(TOPIC, "u"): {"retention.ms": "3"}}


# -- brokers, groups, client metrics --------------------------------------------------------------


def test_broker_settings_are_the_defaults_of_running_topics(broker: AdminBroker) -> None:
    alter(broker, TOPIC, "u", ("retention.ms", SET, "5"))
    assert alter(broker, BROKER, "", ("log.retention.ms", SET, "200000")) == OK
    assert broker.partitions.by_name["t"][0].log.config.retention_ms == 200_000
    assert alter(broker, BROKER, "1", ("log.retention.ms", SET, "100000")) == OK
    assert broker.partitions.by_name["t"][0].log.config.retention_ms == 100_000
    assert broker.partitions.by_name["u"][0].log.config.retention_ms == 5
    behind = [("log.retention.ms", "100000", 2), ("log.retention.ms", "200000", 3), ("log.retention.hours", "168", 5)]
    assert shown(broker, TOPIC, "t", "retention.ms") == ("100000", 2, behind)
    assert shown(broker, TOPIC, "u", "retention.ms") == ("5", 1, [("retention.ms", "5", 1), *behind])
    assert shown(broker, BROKER, "1", "log.retention.ms") == ("100000", 2, behind)
    assert shown(broker, BROKER, "", "log.retention.ms") == ("200000", 3, [("log.retention.ms", "200000", 3)])
    broker.crash()
    assert broker.partitions.by_name["t"][0].log.config.retention_ms == 100_000
    assert alter(broker, BROKER, "1", ("log.retention.ms", DELETE, None)) == OK
    assert broker.partitions.by_name["t"][0].log.config.retention_ms == 200_000
    assert alter(broker, BROKER, "", ("log.retention.ms", DELETE, None)) == OK
    assert broker.partitions.by_name["t"][0].log.config.retention_ms == 604_800_000


def test_new_topics_take_the_broker_settings_of_now(broker: AdminBroker) -> None:
    alter(broker, BROKER, "", ("log.cleanup.policy", APPEND, "compact"))
    asked = CreatableTopic(name="new", num_partitions=-1, replication_factor=-1)
    [result] = broker.ask(CreateTopicsRequest(topics=[asked])).topics
    [policy] = [config for config in result.configs if config.name == "cleanup.policy"]
    assert (policy.value, policy.config_source) == ("delete,compact", 3)
    assert broker.partitions.by_name["new"][0].config.cleanup_policy == {"delete", "compact"}


def test_a_group_that_does_not_exist_has_settings(broker: AdminBroker) -> None:
    key = "consumer.session.timeout.ms"
    behind = [(f"group.{key}", "45000", 5)]
    assert len(entries(broker, GROUP, "g")) == 17
    assert shown(broker, GROUP, "g", key) == ("45000", 5, behind)
    assert alter(broker, GROUP, "g", (key, SET, "50000")) == OK
    broker.crash()
    assert shown(broker, GROUP, "g", key) == ("50000", 8, [(key, "50000", 8), *behind])
    assert alter(broker, GROUP, "g", (key, DELETE, None)) == OK
    assert shown(broker, GROUP, "g", key) == ("45000", 5, behind)
    assert broker.image.configs == {}


def test_client_metrics_subscriptions_are_kept(broker: AdminBroker) -> None:
    assert shown(broker, METRICS, "m", "interval.ms") == ("300000", 5, [])
    assert alter(broker, METRICS, "m", ("interval.ms", SET, "1000"), ("metrics", SET, "a,b")) == OK
    assert shown(broker, METRICS, "m", "interval.ms") == ("1000", 7, [("interval.ms", "1000", 7)])
    assert shown(broker, METRICS, "m", "match") == ("", 5, [])
    assert shown(broker, METRICS, "m", "metrics") == ("a,b", 7, [("metrics", "a,b", 7)])


# -- the minimum in sync --------------------------------------------------------------------------

MIN_ISR = "min.insync.replicas"


def join(broker: AdminBroker, *broker_ids: int) -> None:
    for broker_id in broker_ids:
        endpoints = {"PLAINTEXT": (f"h{broker_id}", 9092)}
        broker.image.replay(BrokerRegistered(broker_id, 10 + broker_id, "00" * 16, endpoints, is_fenced=False))


def test_a_broker_that_stands_alone_has_a_minimum_of_its_own(broker: AdminBroker) -> None:
    join(broker, 1)
    assert alter(broker, BROKER, "1", (MIN_ISR, SET, "2")) == OK
    assert replace(broker, BROKER, "1", (MIN_ISR, "3")) == OK
    assert alter(broker, BROKER, "", (MIN_ISR, SET, "2")) == OK
    assert alter(broker, BROKER, "", (MIN_ISR, DELETE, None)) == OK


@pytest.mark.parametrize("validate_only", [False, True])
def test_in_a_cluster_the_minimum_is_set_for_all_brokers(broker: AdminBroker, validate_only: bool) -> None:
    join(broker, 1, 2)
    for code, message in (
        alter(broker, BROKER, "1", (MIN_ISR, SET, "2"), validate_only=validate_only),
        replace(broker, BROKER, "1", (MIN_ISR, "2"), validate_only=validate_only),
    ):
        assert code == 40
        assert message is not None
        assert "set it for all of them" in message
    assert broker.image.configs == {}
    assert alter(broker, BROKER, "1", ("log.retention.ms", SET, "1000")) == OK
    assert alter(broker, BROKER, "", (MIN_ISR, SET, "2")) == OK
    assert alter(broker, TOPIC, "t", (MIN_ISR, SET, "1")) == OK


def test_in_a_cluster_the_minimum_of_all_brokers_is_changed_and_not_taken_away(broker: AdminBroker) -> None:
    join(broker, 1, 2)
    assert alter(broker, BROKER, "", ("log.retention.ms", SET, "1000")) == OK
    assert alter(broker, BROKER, "", (MIN_ISR, SET, "2")) == OK
    for code, message in (
        alter(broker, BROKER, "", (MIN_ISR, DELETE, None)),
        replace(broker, BROKER, "", ("log.retention.ms", "1")),
    ):
        assert code == 40
        assert message is not None
        assert "set another value" in message
    assert replace(broker, BROKER, "", (MIN_ISR, "3")) == OK
    assert broker.image.configs == {(BROKER, ""): {MIN_ISR: "3"}}


def test_one_that_a_single_broker_had_from_before_can_go(broker: AdminBroker) -> None:
    join(broker, 1)
    assert alter(broker, BROKER, "1", (MIN_ISR, SET, "2")) == OK
    join(broker, 2)
    assert alter(broker, BROKER, "1", ("log.retention.ms", SET, "1000"))[0] == 40
    assert alter(broker, BROKER, "1", (MIN_ISR, DELETE, None)) == OK
    assert broker.image.configs == {}


# -- AlterConfigs -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
def test_the_older_call_replaces_everything(broker: AdminBroker, version: int) -> None:
    alter(broker, TOPIC, "t", ("retention.ms", SET, "1000"))
    assert replace(broker, TOPIC, "t", ("segment.ms", "2000"), version=version, validate_only=True) == OK
    assert broker.image.topic_overrides("t") == {"retention.ms": "1000"}
    assert replace(broker, TOPIC, "t", ("segment.ms", "2000"), version=version) == OK
    assert broker.image.topic_overrides("t") == {"segment.ms": "2000"}
    assert broker.partitions.by_name["t"][0].log.config.retention_ms == 604_800_000
    assert replace(broker, TOPIC, "t", version=version) == OK
    assert broker.image.configs == {}


@pytest.mark.parametrize(
    ("kind", "name", "configs", "answer"),
    [
        (TOPIC, "t", [("nope", "1")], (40, "Unknown topic config name: nope")),
        (TOPIC, "t", [("retention.ms", None)], (42, "Null value not supported for : retention.ms")),
        (TOPIC, "t", [("retention.ms", "1"), ("retention.ms", "2")], (42, "Error due to duplicate config keys")),
        (TOPIC, "nope", [("retention.ms", "1")], (3, "The topic 'nope' does not exist.")),
        (TOPIC, "", [], (42, "Default topic resources are not allowed.")),
        (TOPIC, "bad name", [], (17, BAD_NAME)),
        (BROKER, "1", [("node.id", "1")], (42, "Cannot update these configs dynamically: [node.id]")),
        (BROKER, "9", [], (42, "Unexpected broker id, expected 1, but received 9")),
        (LOGGER, "1", [], (42, "Unknown resource type 8")),
        (3, "1", [], (42, "Unknown resource type 3")),
    ],
)
def test_the_older_call_refuses_in_kafkas_words(
    broker: AdminBroker, kind: int, name: str, configs: list[tuple[str, str | None]], answer: Answer
) -> None:
    assert replace(broker, kind, name, *configs) == answer
    assert broker.image.configs == {}


def test_the_older_call_on_brokers_and_groups(broker: AdminBroker) -> None:
    assert replace(broker, BROKER, "1", ("log.retention.ms", "1000")) == OK
    assert broker.partitions.by_name["t"][0].config.retention_ms == 1000
    assert replace(broker, BROKER, "1") == OK
    assert broker.partitions.by_name["t"][0].config.retention_ms == 604_800_000
    assert replace(broker, GROUP, "g", ("share.session.timeout.ms", "50000")) == OK
    assert broker.image.configs == {(GROUP, "g"): {"share.session.timeout.ms": "50000"}}
