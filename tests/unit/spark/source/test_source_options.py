"""Options as a user writes them: what is read out of them, and what each mistake is told."""

from __future__ import annotations

import pickle

import pytest

from penstock.model.errors import PenstockError
from penstock.model.topic_partition import TopicPartition
from penstock.spark.options.known import InvalidOption
from penstock.spark.source.options import SourceOptions, duration_ms
from penstock.spark.source.positions import (
    AssignedPartitions,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    CommittedOffsets,
    Earliest,
    Latest,
    TopicNames,
    TopicPattern,
)

SERVERS = {"kafka.bootstrap.servers": "a:1, [::1]:2,SASL_SSL://c"}


def stream(**options: str) -> SourceOptions:
    return SourceOptions.for_stream(
        {"subscribe": "clicks"} | {name.replace("__", "."): v for name, v in options.items()}
    )


def batch(**options: str) -> SourceOptions:
    return SourceOptions.for_batch(
        {"subscribe": "clicks"} | {name.replace("__", "."): v for name, v in options.items()}
    )


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_BOOTSTRAP_SERVERS", raising=False)
    options = stream()
    assert options.cluster.bootstrap == (("localhost", 9092),)
    assert options.subscription == TopicNames(("clicks",))
    assert options.starting == Latest()
    assert options.limits.max_delay_ms == 900_000
    assert options.fail_on_data_loss
    assert not options.read_committed
    assert batch().starting == Earliest()
    assert batch().ending == Latest()
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP_SERVERS", "broker:1234")
    assert stream().cluster.bootstrap == (("broker", 1234),)


def test_everything_is_read_whatever_the_case() -> None:
    options = SourceOptions.for_stream(
        SERVERS
        | {
            "SUBSCRIBE": " clicks , views,clicks",
            "startingoffsets": '{"clicks":{"0":5,"1":-1},"views":{"0":-2}}',
            "MaxOffsetsPerTrigger": "100",
            "minOffsetsPerTrigger": "10",
            "maxTriggerDelay": "5s",
            "maxBytesPerTrigger": "1000000",
            "minPartitions": "8",
            "maxRecordsPerPartition": "1000",
            "failOnDataLoss": "FALSE",
            "kafka.isolation.level": "read_committed",
            "kafka.group.id": "readers",
            "groupId": "g",
            "kafka.client.id": "me",
            "kafka.max.partition.fetch.bytes": "1048576",
            "kafka.session.timeout.ms": "1",
            "kafkaConsumer.pollTimeoutMs": "500",
            "fetchOffset.numRetries": "0",
            "fetchOffset.retryIntervalMs": "7",
            "partition.metadata.cache.ttl.ms": "-1",
            "path": "from Spark",
        }
    )
    assert options.cluster.bootstrap == (("a", 1), ("::1", 2), ("c", 9092))
    assert options.cluster.client_id == "me"
    assert options.subscription == TopicNames(("clicks", "views"))
    assert isinstance(options.starting, AtOffsets)
    assert options.starting.offsets == {
        TopicPartition("clicks", 0): 5,
        TopicPartition("clicks", 1): -1,
        TopicPartition("views", 0): -2,
    }
    limits = options.limits
    assert (limits.max_offsets, limits.min_offsets, limits.max_delay_ms, limits.max_bytes) == (100, 10, 5000, 1000000)
    assert (options.min_partitions, options.max_records_per_partition) == (8, 1000)
    assert (options.group.group_id, options.group.start_from) == ("g", "readers")
    assert not options.fail_on_data_loss
    assert options.read_committed
    assert (options.fetch_max_bytes, options.poll_timeout_s) == (1048576, 0.5)
    assert (options.offset_retries, options.offset_retry_ms, options.metadata_max_age_ms) == (0, 7, 0)
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    "setting",
    [
        "enable.metrics.push",
        "metadata.recovery.strategy",
        "metadata.recovery.rebootstrap.trigger.ms",
        "auto.include.jmx.reporter",
        "sasl.login.refresh.window.factor",
        "sasl.kerberos.kinit.cmd",
    ],
)
def test_settings_of_kafkas_consumer_have_no_effect(setting: str) -> None:
    assert stream(**{f"kafka.{setting}": "1"}) == stream()


def test_options_of_the_sink_are_passed_over() -> None:
    assert stream(topic="of the sink", deliveryGuarantee="at_least_once") == stream()


def test_what_is_read() -> None:
    assert SourceOptions.for_stream({"subscribePattern": "cl.*"}).subscription == TopicPattern("cl.*")
    assigned = SourceOptions.for_stream({"assign": '{"b":[1],"a":[2,0]}'}).subscription
    assert assigned == AssignedPartitions((TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1)))
    assert TopicPattern("ick").matches("clicks")
    assert not TopicPattern("^ick").matches("clicks")


def test_where_it_begins_the_first_that_is_given_counts() -> None:
    by_partition = '{"clicks":{"0":1000}}'
    assert stream(startingOffsets="Earliest").starting == Earliest()
    assert stream(startingOffsets="group", groupId="g").starting == CommittedOffsets()
    assert stream(startingOffsets="group", groupId="g").group.start_from == "g"
    read_as = stream(**{"startingOffsets": "group", "kafka.group.id": "billing"})
    assert (read_as.group.start_from, read_as.group.group_id) == ("billing", None)
    at = stream(startingOffsets="earliest", startingOffsetsByTimestamp=by_partition).starting
    assert at == AtTimestamps("startingOffsetsByTimestamp", {TopicPartition("clicks", 0): 1000})
    at = stream(startingTimestamp=" 5 ", startingOffsetsByTimestamp=by_partition).starting
    assert at == AtTimestamp("startingTimestamp", 5)
    assert batch(endingTimestamp="9").ending == AtTimestamp("endingTimestamp", 9)
    assert stream(startingOffsetsByTimestampStrategy="LATEST").latest_when_no_match


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"assign": "{}"}, "exactly one of the options subscribe, subscribePattern, assign: subscribe and assign are"),
        ({"subscribe": " , "}, "option 'subscribe' is ' , ': give one or more topics"),
        (
            {"startingOffsets": "begin"},
            r"option 'startingOffsets' is 'begin': write earliest, latest, group or JSON, for example \{\"topicA\":\{",
        ),
        ({"startingOffsets": '{"clicks":{"0":-3}}'}, "gives -3 for partition 0 of 'clicks'"),
        ({"startingOffsets": '{"clicks":{"x":3}}'}, "gives 3 for partition x of 'clicks'"),
        ({"startingOffsets": "group"}, "name the group with the option 'kafka.group.id'"),
        ({"startingTimestamp": "-1"}, "option 'startingTimestamp' is -1: give milliseconds since 1970, not below 0"),
        ({"startingTimestamp": str(1 << 63)}, "option 'startingTimestamp' is 9223372036854775808: give milliseconds"),
        ({"startingTimestamp": "yesterday"}, "option 'startingTimestamp' is 'yesterday': give milliseconds"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "write error or latest"),
        ({"endingOffsets": "latest"}, "option 'endingOffsets' is for batch queries"),
        ({"endingTimestamp": "1"}, "option 'endingTimestamp' is for batch queries"),
        ({"minPartitions": "0"}, "option 'minPartitions' is 0: it must be at least 1"),
        ({"maxOffsetsPerTrigger": "many"}, "option 'maxOffsetsPerTrigger' is 'many': give a whole number"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "is 9, more than 8 of 'maxOffsetsPerTrigger'"),
        ({"maxTriggerDelay": "soon"}, "option 'maxTriggerDelay' is 'soon': write a time with a unit"),
        ({"failOnDataLoss": "no"}, "option 'failOnDataLoss' is 'no': write true or false"),
        ({"subscribed": "x"}, "option 'subscribed' is not known to the penstock source: did you mean 'subscribe'"),
        ({"MAXOFFSETPERTRIGGER": "1"}, "'maxoffsetpertrigger' is not known .*: did you mean 'maxOffsetsPerTrigger'"),
        ({"bootstrap.servers": "x"}, "'bootstrap.servers' is not known .*: did you mean 'kafka.bootstrap.servers'"),
        ({"bootstrapServers": "x"}, "'bootstrapservers' is not known .*: did you mean 'kafka.bootstrap.servers'"),
        ({"kafka.bootstrap.server": "x"}, "'kafka.bootstrap.server' is not .*: did you mean 'kafka.bootstrap.servers'"),
        ({"kafka.maxOffsetsPerTrigger": "x"}, "is not a consumer setting .*: did you mean 'maxOffsetsPerTrigger'"),
        ({"group.id": "x"}, "'group.id' is not known .*: did you mean 'kafka.group.id'"),
        ({"group_id": "x"}, "'group_id' is not known .*: did you mean 'groupId'"),
        ({"sasl.mechanism": "PLAIN"}, "'sasl.mechanism' is not known .*: did you mean 'kafka.sasl.mechanism'"),
        ({"auto.offset.reset": "latest"}, "'auto.offset.reset' is not supported: use the option 'startingOffsets'"),
        ({"zzz": "x"}, "option 'zzz' is not known to the penstock source: the options are assign, "),
        ({"kafka.auto.offset.reset": "latest"}, "'kafka.auto.offset.reset' is not supported: use .*'startingOffsets'"),
        ({"kafka.key.deserializer": "x"}, "'kafka.key.deserializer' is not supported: keys are binary"),
        ({"kafka.enable.auto.commit": "true"}, "'kafka.enable.auto.commit' is not supported"),
        ({"kafka.interceptor.classes": "x"}, "'kafka.interceptor.classes' is not supported"),
        ({"kafka.acks": "all"}, "'kafka.acks' is not a consumer setting"),
        ({"kafka.isolation.level": "serializable"}, "'kafka.isolation.level' is 'serializable'"),
        ({"kafka.bootstrap.servers": "host:port"}, "'kafka.bootstrap.servers' has 'host:port': write HOST:PORT"),
        ({"kafka.bootstrap.servers": ","}, "give HOST:PORT of one broker or more"),
        ({"kafka.security.protocol": "KERBEROS"}, "security.protocol=KERBEROS is not supported"),
    ],
)
def test_mistakes_of_a_stream(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(PenstockError, match=sentence):
        SourceOptions.for_stream({"subscribe": "clicks"} | options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"startingOffsets": "latest"}, "option 'startingOffsets' cannot be latest in batch queries"),
        ({"startingOffsets": '{"clicks":{"0":-1}}'}, "partition 0 of 'clicks' cannot be latest in batch queries"),
        ({"endingOffsets": "earliest"}, "option 'endingOffsets' must be latest or JSON"),
        ({"endingOffsets": "end"}, "option 'endingOffsets' is 'end': write latest or JSON, for example"),
        ({"endingOffsets": '{"clicks":{"0":-2}}'}, "partition 0 of 'clicks' cannot be earliest in batch queries"),
        (
            {"startingOffsets": '{"clicks":{"0":5}}', "endingOffsets": '{"clicks":{"0":4}}'},
            "option 'startingOffsets' gives 5 for partition 0 of 'clicks', after 4 of 'endingOffsets'",
        ),
        (
            {"startingOffsets": '{"clicks":{"0":5}}', "endingOffsets": '{"clicks":{"1":9}}'},
            "options 'startingOffsets' and 'endingOffsets' name different partitions",
        ),
        (
            {"startingOffsetsByTimestamp": '{"a":{"0":5}}', "endingOffsetsByTimestamp": '{"a":{"0":4}}'},
            "'startingOffsetsByTimestamp' gives 5 .*after 4 of 'endingOffsetsByTimestamp'",
        ),
    ],
)
def test_mistakes_of_a_batch(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidOption, match=sentence):
        SourceOptions.for_batch({"subscribe": "clicks"} | options)


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("subscribePattern", "(", r"option 'subscribePattern' is '\(', not a regular expression"),
        ("subscribePattern", "  ", "option 'subscribePattern' is empty"),
        ("assign", "clicks", "option 'assign' is 'clicks': write partitions by topic"),
        ("assign", '{"a":[-1]}', r"option 'assign' gives \[-1\] for 'a'"),
    ],
)
def test_mistakes_of_a_subscription(option: str, value: str, sentence: str) -> None:
    with pytest.raises(InvalidOption, match=sentence):
        SourceOptions.for_batch({option: value})


def test_stream_options_of_a_batch_are_named_in_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    batch(maxOffsetsPerTrigger="10")
    assert caplog.messages == ["option 'maxOffsetsPerTrigger' is ignored in batch queries"]


@pytest.mark.parametrize(
    ("text", "ms"), [("250", 250), ("500ms", 500), ("2 s", 2000), ("15m", 900_000), ("1min", 60_000), ("1h", 3_600_000)]
)
def test_durations(text: str, ms: int) -> None:
    assert duration_ms("maxTriggerDelay", text) == ms


def test_no_subscription_names_the_way_of_tables() -> None:
    with pytest.raises(InvalidOption, match=r"none is given; for a catalog table give the options by WITH \(\.\.\.\)"):
        SourceOptions.for_batch({})
