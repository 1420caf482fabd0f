"""`penstock transactions` against a real broker: open transactions of librdkafka, and one that nobody coordinates."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import click
import confluent_kafka
import pytest

from penstock.cli.reach.connection import complete_transactional_ids
from penstock.sdk import BlockingConsumer, BlockingProducer, TopicPartition
from penstock.testing import Broker
from support.clients.hung_transactions import leave_open
from support.processes.command_line import CommandLine


@pytest.fixture(scope="module")
def penstock_broker() -> Iterator[Broker]:
    """One that believes clients of transaction version 1, so that a test can leave a transaction behind."""
    with Broker({"transaction.partition.verification.enable": "false"}) as broker:
        yield broker


@pytest.fixture
def made(cli: CommandLine, topic: str) -> str:
    assert cli("topics", "create", "--name", topic, "--partitions", "2").code == 0
    return topic


@contextmanager
def open_transaction(broker: Broker, name: str, topic: str) -> Iterator[confluent_kafka.Producer]:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name, "log_level": 0}
    )
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=0)
    producer.flush(10)
    yield producer


def port(broker: Broker) -> int:
    return int(broker.bootstrap_servers.rpartition(":")[2])


def is_read_to_the_end(broker: Broker, topic: str) -> bool:
    """Whether a record behind all transactions of partition 0 reaches a consumer with read_committed."""
    with BlockingProducer(broker.bootstrap_servers) as producer:
        producer.send(topic, b"after", partition=0)
    with BlockingConsumer(broker.bootstrap_servers, settings={"isolation.level": "read_committed"}) as consumer:
        consumer.assign(TopicPartition(topic, 0), at="earliest")
        found: list[bytes | None] = []
        while not consumer.at_end():
            found += [one.value for one in consumer.poll(timeout_s=0.2)]
    return b"after" in found


def test_list_and_its_filters(cli: CommandLine, penstock_broker: Broker, made: str) -> None:
    with (
        open_transaction(penstock_broker, f"open-{made}", made),
        open_transaction(penstock_broker, f"done-{made}", made) as done,
    ):
        done.commit_transaction(20)
        listed = {one["transactional_id"]: one for one in json.loads(cli("transactions", "list", "--json").out)}
        assert listed[f"open-{made}"]["state"] == "Ongoing"
        assert listed[f"done-{made}"]["state"] in ("PrepareCommit", "CompleteCommit")
        lines = cli("transactions", "list", "--state", "ongoing", "--pattern", f".*-{made}").lines
        assert lines[0].split("  ")[0] == "TRANSACTIONAL ID"
        producer_id = str(listed[f"open-{made}"]["producer_id"])
        assert [line.split() for line in lines[1:]] == [[f"open-{made}", "1", producer_id, "Ongoing"]]
        (only,) = json.loads(cli("transactions", "list", "--json", "--producer-id", producer_id).out)
        assert only["transactional_id"] == f"open-{made}"
        none = cli("transactions", "list", "--longer-than", "1h")
        assert (none.code, none.out, none.err) == (0, "", "No transactional ids.\n")
        refused = cli("transactions", "list", "--pattern", "(")
        assert (refused.code, refused.err) == (1, "penstock: the pattern is not a valid RE2 regular expression\n")


def test_describe(cli: CommandLine, penstock_broker: Broker, made: str) -> None:
    with open_transaction(penstock_broker, f"id-{made}", made) as producer:
        lines = cli("transactions", "describe", f"id-{made}").lines
        assert lines[0] == f"Transactional id: id-{made}"
        assert lines[1].startswith("State:            Ongoing for 0.")
        assert lines[3:] == ["Timeout:          60 s", "Coordinator:      broker 1", f"Partitions:       {made}-0"]
        told = json.loads(cli("transactions", "describe", "--transactional-id", f"id-{made}", "--json").out)
        assert (told["state"], told["timeout_ms"]) == ("Ongoing", 60_000)
        assert told["partitions"] == [{"topic": made, "partition": 0}]
        producers = cli("transactions", "describe-producers", "--topic", made, "--partition", "0").lines
        assert producers[1].split()[0] == str(told["producer_id"])
        assert producers[1].split()[-1] == "0"
        producer.abort_transaction(20)
    missing = cli("transactions", "describe", "nobody")
    assert (missing.code, missing.err) == (
        1,
        "penstock: transactional id 'nobody' does not exist; `penstock transactions list` shows all\n",
    )


def test_transactional_ids_are_completed(cli: CommandLine, penstock_broker: Broker, made: str) -> None:
    command = click.Command("x")
    option = click.Option(["--transactional-id"])
    with open_transaction(penstock_broker, f"complete-{made}", made) as producer, click.Context(command) as ctx:
        found = complete_transactional_ids(ctx, option, f"complete-{made[:3]}")
        assert f"complete-{made}" in [one.value for one in found]
        assert complete_transactional_ids(ctx, option, "nobody") == []
        producer.abort_transaction(20)


def test_abort_by_transactional_id_fences_the_producer(cli: CommandLine, penstock_broker: Broker, made: str) -> None:
    name = f"id-{made}"
    with open_transaction(penstock_broker, name, made) as producer:
        refused = cli("transactions", "abort", "--transactional-id", name, stdin=b"n\n")
        assert (refused.code, refused.err) == (1, "Nothing was changed.\n")
        assert f"{name} is Ongoing in {made}-0." in refused.out
        done = cli("transactions", "abort", "--transactional-id", name, "--yes").lines
        assert done[0].startswith(f"Aborted the transaction of {name}. Its producer is fenced: the epoch of producer ")
        with pytest.raises(confluent_kafka.KafkaException) as fenced:
            producer.commit_transaction(10)
        assert fenced.value.args[0].code() == confluent_kafka.KafkaError._FENCED
    assert is_read_to_the_end(penstock_broker, made)
    unknown = cli("transactions", "abort", "--transactional-id", "nobody", "--yes")
    assert unknown.code == 1
    assert "does not exist" in unknown.err


def test_what_hangs_is_found_and_aborted(cli: CommandLine, penstock_broker: Broker, made: str) -> None:
    nothing = cli("transactions", "find-hanging", "--topic", made)
    assert nothing.lines == ["No hanging transactions."]
    producer_id, offset = leave_open(port(penstock_broker), made)
    assert not is_read_to_the_end(penstock_broker, made)
    found = cli("transactions", "find-hanging", "--topic", made).lines
    row = found[1].split()
    assert row[:5] == [made, "0", str(producer_id), "0", str(offset)]
    assert row[-3:] == ["60", "min", "unknown"]
    (told,) = json.loads(cli("transactions", "find-hanging", "--topic", made, "--partition", "0", "--json").out)
    assert (told["producer_id"], told["start_offset"], told["transactional_id"]) == (producer_id, offset, None)
    assert cli("transactions", "find-hanging", "--max-age", "2h").lines == ["No hanging transactions."]
    where = ["--topic", made, "--partition", "0"]
    wrong = cli("transactions", "abort", *where, "--start-offset", "77", "--yes")
    assert wrong.err.startswith(f"penstock: no open transaction of {made}-0 begins at offset 77; ")
    aborted = cli("transactions", "abort", *where, "--start-offset", str(offset), "--yes").lines
    assert aborted == [f"Aborted the transaction of producer {producer_id} in {made}-0."]
    assert cli("transactions", "find-hanging").lines == ["No hanging transactions."]
    assert is_read_to_the_end(penstock_broker, made)


def test_abort_by_producer(cli: CommandLine, penstock_broker: Broker, made: str) -> None:
    producer_id, _ = leave_open(port(penstock_broker), made, age_s=0)
    by_producer = ["transactions", "abort", "--topic", made, "--partition", "0", "--producer-id", str(producer_id)]
    wrong = cli(*by_producer, "--producer-epoch", "3", "--yes")
    assert wrong.err.startswith(f"penstock: producer {producer_id} has epoch 0 in {made}-0, not 3; ")
    asked = cli(*by_producer, "--producer-epoch", "0", stdin=b"y\n")
    assert asked.code == 0
    assert asked.lines[-1].endswith(f"Aborted the transaction of producer {producer_id} in {made}-0.")
    again = cli(*by_producer, "--producer-epoch", "0", "--yes")
    assert again.err.startswith(f"penstock: producer {producer_id} has no open transaction in {made}-0; ")


def test_one_partition_of_a_transaction_that_does_not_hang(
    cli: CommandLine, penstock_broker: Broker, made: str
) -> None:
    with open_transaction(penstock_broker, f"id-{made}", made) as producer:
        alone = ["transactions", "abort", "--topic", made, "--partition", "0", "--start-offset", "0", "--yes"]
        refused = cli(*alone)
        assert refused.code == 1
        assert refused.err.startswith(f"penstock: this transaction does not hang: id-{made} is Ongoing. ")
        assert cli(*alone, "--force", "--json").code == 0
        producer.abort_transaction(20)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "give --transactional-id, or --topic and --partition"),
        (("--topic", "t", "--partition", "0"), "give --start-offset, or --producer-id and --producer-epoch"),
        (("--transactional-id", "a", "--topic", "t"), "give --transactional-id alone, or --topic and --partition"),
        (("--transactional-id", "a", "--json"), "--json cannot ask for confirmation: give --yes as well"),
        (
            ("--topic", "t", "--partition", "0", "--producer-id", "1"),
            "--producer-id and --producer-epoch belong together",
        ),
    ],
)
def test_wrong_arguments(cli: CommandLine, arguments: tuple[str, ...], sentence: str) -> None:
    ran = cli("transactions", "abort", *arguments)
    assert ran.code == 2
    assert sentence in ran.err
    assert cli("transactions", "find-hanging", "--partition", "1").code == 2
    assert "is not a duration" in cli("transactions", "find-hanging", "--max-age", "soon").err


def test_nobody_can_confirm(cli: CommandLine, penstock_broker: Broker, made: str) -> None:
    with open_transaction(penstock_broker, "unconfirmed", made) as producer:
        for words in (
            ("--transactional-id", "unconfirmed"),
            ("--topic", made, "--partition", "0", "--start-offset", "0", "--force"),
        ):
            ran = cli("transactions", "abort", *words)
            assert (ran.code, ran.err) == (1, "penstock: nothing was changed: nobody can answer, so give --yes\n")
        producer.commit_transaction(20)


def test_a_topic_that_does_not_exist(cli: CommandLine) -> None:
    assert "does not exist" in cli("transactions", "find-hanging", "--topic", "no-such").err
    unknown = cli("transactions", "describe", "no-such")
    assert unknown.err.endswith("; `penstock transactions list` shows all\n")


def test_the_doctor_names_what_holds_the_last_stable_offset(
    cli: CommandLine, penstock_broker: Broker, made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said() -> list[dict[str, str]]:
        ran = cli("doctor", "--json")
        return [one for one in json.loads(ran.out) if one["about"] == "transactions" and made in one["sentence"]]

    assert said() == []
    producer_id, offset = leave_open(port(penstock_broker), made)
    (hanging,) = said()
    assert hanging["state"] == "problem"
    assert hanging["sentence"].startswith(
        f"producer {producer_id} has left a transaction open in {made}-0, from offset"
    )
    abort = hanging["advice"].split("`")[1].split()[1:]
    assert abort[-1] == str(offset)
    assert cli(*abort, "--yes").code == 0
    assert said() == []
    with open_transaction(penstock_broker, f"id-{made}", made) as producer:
        monkeypatch.setattr("penstock.cli.doctor.transactions.LONG_MS", 0)
        (warning,) = said()
        assert warning["state"] == "warning"
        assert warning["sentence"].startswith(f"id-{made} (producer ")
        assert f"has been Ongoing in {made}-0 for 0." in warning["sentence"]
        assert f"`penstock transactions abort --transactional-id id-{made}`" in warning["advice"]
        producer.abort_transaction(20)
