"""HTTP + JSON from the outside: the page's walk-through, formats, refusals, tails, groups."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import re
import resource
import socket
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from support.processes.broker import BrokerProcess
from support.processes.gateway import PAGE, Http, Netcat, gateway_port, walkthrough

GATEWAY = {"penstock.line.listener": "127.0.0.1:0", "penstock.http.listener": "127.0.0.1:0"}
BINARY = "application/vnd.kafka.binary.v2+json"
JSON_V2 = "application/vnd.kafka.json.v2+json"
V2 = "application/vnd.kafka.v2+json"
_numbers = count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("http"), GATEWAY) as process:
        yield process
        assert process.terminate() == 0
        assert "Traceback" not in process.log()


@pytest.fixture(scope="module")
def web(broker: BrokerProcess) -> Http:
    return Http(gateway_port(broker, "HTTP"))


@pytest.fixture
def topic() -> str:
    return f"http-{next(_numbers)}"


def offsets(answer: Any) -> list[tuple[int, int]]:
    assert all(entry["error_code"] is None for entry in answer["offsets"]), answer
    return [(entry["partition"], entry["offset"]) for entry in answer["offsets"]]


def without_times(text: str) -> str:
    return re.sub(r'"timestamp":\d{13}', '"timestamp":T', text)


def test_the_walkthrough(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, GATEWAY) as fresh:
        web = Http(gateway_port(fresh, "HTTP"))
        turns = walkthrough(PAGE)
        assert len(turns) >= 12
        for command, printed in turns:
            # The page ends a line where curl does not.
            assert without_times(web.curl(command)).removesuffix("\n") == without_times(printed).removesuffix("\n")


# -- publish ----------------------------------------------------------------------------------


def test_publish_and_what_a_kafka_client_reads(broker: BrokerProcess, web: Http, topic: str) -> None:
    assert offsets(web.post(f"/topics/{topic}", {"key": "k", "value": {"a": [1, "ü"]}})) == [(0, 0)]
    records = [{"key": "a2V5", "value": "AP8="}, {"value": None}]
    assert offsets(web.post(f"/topics/{topic}", {"records": records}, BINARY)) == [(0, 1), (0, 2)]
    assert offsets(web.post(f"/topics/{topic}", {"records": [{"key": "k", "value": "v"}]}, JSON_V2)) == [(0, 3)]
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "x", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consumer.consume(4, timeout=10)
    consumer.close()
    assert [message.key() for message in messages] == [b"k", b"key", None, b'"k"']
    assert json.loads(messages[0].value()) == {"a": [1, "ü"]}
    assert [message.value() for message in messages[1:]] == [b"\x00\xff", None, b'"v"']


def test_partition_key_timestamp_headers(broker: BrokerProcess, web: Http, topic: str) -> None:
    cluster = web.get("/v3/clusters")["data"][0]["cluster_id"]
    web.post(f"/v3/clusters/{cluster}/topics", {"topic_name": topic, "partitions_count": 3}, status=201)
    records = [{"value": n, "partition": n} for n in range(3)]
    assert offsets(web.post(f"/topics/{topic}", {"records": records})) == [(0, 0), (1, 0), (2, 0)]
    assert offsets(web.post(f"/topics/{topic}/partitions/1", {"records": [{"value": 1}]})) == [(1, 1)]
    keyed = web.post(f"/topics/{topic}", {"records": [{"key": "same", "value": n} for n in range(5)]})
    assert len({partition for partition, _ in offsets(keyed)}) == 1
    event = {"value": 1, "partition": 2, "timestamp": 1700000000000, "headers": [{"name": "h", "value": "aGk="}]}
    (place,) = offsets(web.post(f"/topics/{topic}", event))
    (record,) = web.get(f"/topics/{topic}/partitions/2/records?offset={place[1]}")
    assert record["timestamp"] == 1700000000000
    assert record["headers"] == [{"name": "h", "value": "aGk="}]


def test_a_misspelt_field_deletes_nothing(web: Http, topic: str) -> None:
    assert offsets(web.post(f"/topics/{topic}", {"key": "k", "value": 1})) == [(0, 0)]
    cluster = web.get("/v3/clusters")["data"][0]["cluster_id"]
    v3 = f"/v3/clusters/{cluster}/topics/{topic}/records"
    for path, body in (
        (f"/topics/{topic}", {"key": "k", "valeu": 2}),
        (f"/topics/{topic}", {"records": [{"key": "k", "valeu": 2}]}),
        (f"/topics/{topic}/partitions/0", {"key": "k", "valeu": 2}),
        (v3, {"key": {"data": "k"}, "valeu": {"data": 2}}),
        (f"{v3}:batch", {"entries": [{"id": "1", "valeu": {"data": 2}}]}),
    ):
        status, _, message = web.refused("POST", path, body)
        assert (status, "valeu" in message) == (422, True), (path, message)
    assert offsets(web.post(f"/topics/{topic}", {"key": "k", "value": None})) == [(0, 1)]
    (record,) = web.get(f"/topics/{topic}/partitions/0/records?offset=1")
    assert (record["key"], record["value"]) == ("k", None)


def test_one_event_to_a_partition(web: Http, topic: str) -> None:
    web.post(f"/topics/{topic}", {"value": 0})
    event = {"key": "k", "payload": {"a": 1}, "timestamp": 1700000000000}
    assert offsets(web.post(f"/topics/{topic}/partitions/0", event)) == [(0, 1)]
    (record,) = web.get(f"/topics/{topic}/partitions/0/records?offset=1")
    assert (record["key"], record["value"], record["timestamp"]) == ("k", {"a": 1}, 1700000000000)


def test_a_compacted_topic_needs_keys(web: Http, topic: str) -> None:
    cluster = web.get("/v3/clusters")["data"][0]["cluster_id"]
    configs = [{"name": "cleanup.policy", "value": "compact"}]
    web.post(f"/v3/clusters/{cluster}/topics", {"topic_name": topic, "configs": configs}, status=201)
    answer = web.post(f"/topics/{topic}", {"records": [{"key": "a", "value": 1}, {"value": 2}]})
    assert [entry["error_code"] for entry in answer["offsets"]] == [None, 42208]
    assert "a compacted topic needs a key" in answer["offsets"][1]["error"]
    status, _, message = web.refused("POST", f"/topics/{topic}", {"value": 2})
    assert (status, "a compacted topic needs a key" in message) == (422, True)


def test_internal_topics_are_not_published_to(broker: BrokerProcess, web: Http) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "internal"})
    consumer.committed([TopicPartition("t", 0)], timeout=10)  # finds the coordinator, which makes its topic
    consumer.close()
    status, code, message = web.refused("POST", "/topics/__consumer_offsets", {"key": "k", "value": 1})
    assert (status, code) == (400, 40002)
    assert "Cannot append to internal topic __consumer_offsets" in message


def test_a_batch_that_is_refused_in_part(web: Http, topic: str) -> None:
    answer = web.post(f"/topics/{topic}", {"records": [{"value": 1}, {"value": 2, "partition": 7}, {"value": 3}]})
    first, second, third = answer["offsets"]
    assert (first["offset"], third["offset"]) == (0, 1)
    assert (second["partition"], second["offset"], second["error_code"]) == (None, None, 40401)
    assert "no partition 7" in second["error"]


def test_v3_records(web: Http, topic: str) -> None:
    cluster = web.get("/v3/clusters")["data"][0]["cluster_id"]
    path = f"/v3/clusters/{cluster}/topics/{topic}/records"
    record = {
        "key": {"type": "STRING", "data": "k"},
        "value": {"type": "BINARY", "data": "AAE="},
        "timestamp": "2024-01-02T03:04:05.678Z",
    }
    answer = web.post(path, record)
    assert answer["timestamp"] == "2024-01-02T03:04:05.678Z"
    assert (answer["error_code"], answer["partition_id"], answer["offset"]) == (200, 0, 0)
    assert answer["key"] == {"type": "STRING", "size": 1}
    assert answer["value"] == {"type": "BINARY", "size": 2}
    several = b'{"value":{"type":"JSON","data":{"n":1}}}\n{"value":{"type":"JSON","data":2}}'
    _, _, body = web.call("POST", path, several, {"Content-Type": "application/json"})
    assert [json.loads(line)["offset"] for line in body.splitlines()] == [1, 2]
    entries = [{"id": "a", "value": {"type": "JSON", "data": 3}}, {"id": "b", "partition_id": 9}]
    batch = web.post(f"{path}:batch", {"entries": entries}, status=207)
    assert [(entry["id"], entry["offset"]) for entry in batch["successes"]] == [("a", 3)]
    assert [(entry["id"], entry["error_code"]) for entry in batch["failures"]] == [("b", 40401)]
    read = web.get(f"/topics/{topic}/partitions/0/records", BINARY)
    assert (read[0]["key"], read[0]["value"]) == (base64.b64encode(b"k").decode(), "AAE=")
    assert base64.b64decode(read[1]["value"]) == b'{"n":1}'


# -- read -------------------------------------------------------------------------------------


def test_whatever_is_in_the_log_can_be_read(broker: BrokerProcess, web: Http, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    values = [
        b'{"a": 1}',
        b"plain text",
        b"\xff\x00",
        None,
        b"",
        b"[" * 100_000,
        b'"\\ud800"',
        b"NaN",
        b"1e999",
        b"[1,",
    ]
    for value in values:
        producer.produce(topic, value, key=value, partition=0)
    assert producer.flush(10) == 0
    for accept in ("application/json", JSON_V2):
        read = web.get(f"/topics/{topic}/partitions/0/records", accept)
        assert len(read) == len(values)
        assert read[0]["value"] == {"a": 1}
        assert (read[1]["value"], read[1]["value_encoding"]) == ("plain text", "text")
        assert (read[2]["value"], read[2]["value_encoding"]) == ("/wA=", "base64")
        assert read[3]["value"] is None
    binary = web.get(f"/topics/{topic}/partitions/0/records", BINARY)
    assert [None if entry["value"] is None else base64.b64decode(entry["value"]) for entry in binary] == values


def test_ranges_times_and_the_end(web: Http, topic: str) -> None:
    path = f"/topics/{topic}/partitions/0/records"
    for n in range(5):
        web.post(f"/topics/{topic}", {"value": n, "timestamp": 1700000000000 + n})
    assert [entry["value"] for entry in web.get(f"{path}?offset=3")] == [3, 4]
    assert [entry["value"] for entry in web.get(f"{path}?offset=1&max_records=2")] == [1, 2]
    assert [entry["value"] for entry in web.get(f"{path}?timestamp=1700000000003")] == [3, 4]
    started = time.monotonic()
    assert web.get(f"{path}?offset=5&timeout=0") == []
    assert time.monotonic() - started < 1
    status, code, message = web.refused("GET", f"{path}?offset=6")
    assert (status, code) == (416, 41601)
    assert "it begins at 0 and ends before 5" in message


def test_the_long_poll_ends_with_the_record(web: Http, topic: str) -> None:
    web.post(f"/topics/{topic}", {"value": 0})
    found: list[Any] = []
    waiting = threading.Thread(
        target=lambda: found.extend(web.get(f"/topics/{topic}/partitions/0/records?offset=1&timeout=20000"))
    )
    waiting.start()
    time.sleep(0.3)
    assert waiting.is_alive()
    web.post(f"/topics/{topic}", {"value": "now"})
    waiting.join(5)
    assert [entry["value"] for entry in found] == ["now"]


def events(
    connection: http.client.HTTPConnection, path: str, headers: dict[str, str] | None = None
) -> Iterator[dict[str, str]]:
    connection.request("GET", path, headers=headers or {})
    answer = connection.getresponse()
    assert answer.status == 200
    assert answer.getheader("content-type", "").startswith("text/event-stream")
    fields: dict[str, str] = {}
    while line := answer.readline().decode():
        name, colon, value = line.rstrip("\n").partition(": ")
        if colon and name:
            fields[name] = fields[name] + "\n" + value if name in fields else value
        elif fields:
            yield fields
            fields = {}


def test_the_tail_follows_and_resumes(web: Http, topic: str) -> None:
    cluster = web.get("/v3/clusters")["data"][0]["cluster_id"]
    web.post(f"/v3/clusters/{cluster}/topics", {"topic_name": topic, "partitions_count": 2}, status=201)
    web.post(f"/topics/{topic}", {"records": [{"value": 0, "partition": 0}, {"value": 1, "partition": 1}]})
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=20)
    tail = events(connection, f"/topics/{topic}/events?from=earliest")
    assert next(tail) == {"id": "0:0,1:0"}
    first, second = next(tail), next(tail)
    assert {json.loads(first["data"])["value"], json.loads(second["data"])["value"]} == {0, 1}
    assert second["id"] == "0:1,1:1"
    web.post(f"/topics/{topic}", {"value": "pretty", "partition": 0})
    assert json.loads(next(tail)["data"])["value"] == "pretty"
    connection.close()
    web.post(f"/topics/{topic}", {"value": "missed", "partition": 1})
    again = http.client.HTTPConnection("127.0.0.1", web.port, timeout=20)
    resumed = events(again, f"/topics/{topic}/events?limit=2", {"Last-Event-ID": second["id"]})
    assert next(resumed) == {"id": second["id"]}
    assert {json.loads(event["data"])["value"] for event in resumed} == {"pretty", "missed"}
    again.close()


def test_a_tail_that_is_cut_before_its_first_event_misses_nothing(web: Http, topic: str) -> None:
    web.post(f"/topics/{topic}", {"value": "old"})
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=20)
    opening = next(events(connection, f"/topics/{topic}/events"))
    connection.close()
    web.post(f"/topics/{topic}", {"value": "missed"})
    again = http.client.HTTPConnection("127.0.0.1", web.port, timeout=20)
    _, event = events(again, f"/topics/{topic}/events?limit=1", {"Last-Event-ID": opening["id"]})
    assert json.loads(event["data"])["value"] == "missed"
    again.close()


def test_only_the_head_of_a_tail(web: Http, topic: str) -> None:
    web.post(f"/topics/{topic}", {"value": 1})
    status, headers, body = web.call("HEAD", f"/topics/{topic}/events")
    assert (status, body) == (200, b"")
    assert headers["content-type"].startswith("text/event-stream")


def test_a_topic_deleted_through_another_protocol(broker: BrokerProcess, web: Http, topic: str) -> None:
    web.post(f"/topics/{topic}", {"value": 1})
    assert len(web.get(f"/topics/{topic}/partitions")) == 1
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in admin.delete_topics([topic]).values():
        future.result(10)
    assert web.refused("GET", f"/topics/{topic}")[:2] == (404, 40401)
    assert web.refused("GET", f"/topics/{topic}/partitions/0/records")[:2] == (404, 40401)
    assert offsets(web.post(f"/topics/{topic}", {"value": 2})) == [(0, 0)]


def test_json_with_line_feeds_in_an_event(web: Http, topic: str) -> None:
    body = b'{"value": {\n  "a": 1\n}}'
    assert web.call("POST", f"/topics/{topic}", body, {"Content-Type": "application/json"})[0] == 200
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=20)
    _, event = events(connection, f"/topics/{topic}/events?from=earliest&limit=1")
    assert json.loads(event["data"])["value"] == {"a": 1}
    connection.close()


# -- groups -----------------------------------------------------------------------------------


def make_instance(web: Http, group: str, name: str, topic: str, **settings: str) -> str:
    given = {"name": name, "format": "json", "auto.offset.reset": "earliest", **settings}
    created = web.post(f"/consumers/{group}", given, V2)
    assert created["instance_id"] == name
    path = f"/consumers/{group}/instances/{name}"
    assert created["base_uri"].endswith(path)
    web.post(f"{path}/subscription", {"topics": [topic]}, V2, status=204)
    return path


def read_until(web: Http, path: str, wanted: int, timeout_s: float = 20) -> list[Any]:
    found: list[Any] = []
    deadline = time.monotonic() + timeout_s
    while len(found) < wanted:
        assert time.monotonic() < deadline, found
        found += web.get(f"{path}/records?timeout=2000")
    return found


def test_a_group_member_commits_and_the_next_one_goes_on(web: Http, topic: str) -> None:
    group = f"{topic}-group"
    web.post(f"/topics/{topic}", {"records": [{"value": n} for n in range(4)]})
    path = make_instance(web, group, "one", topic)
    assert web.get(f"{path}/subscription") == {"topics": [topic]}
    assert [entry["value"] for entry in read_until(web, path, 4)] == [0, 1, 2, 3]
    assert web.get(f"{path}/assignments") == {"partitions": [{"topic": topic, "partition": 0}]}
    # As in Confluent's v2: the last record that was read, and the next one is where the group goes on.
    last = {"offsets": [{"topic": topic, "partition": 0, "offset": 1}]}
    assert web.post(f"{path}/offsets?async=true", last, V2)["offsets"][0]["offset"] == 2
    assert web.get(f"{path}/offsets")["offsets"][0]["offset"] == 2
    assert web.call("DELETE", path)[0] == 204
    path = make_instance(web, group, "two", topic)
    assert [entry["value"] for entry in read_until(web, path, 2)] == [2, 3]
    # An empty body commits all that was read.
    status, _, body = web.call("POST", f"{path}/offsets", b"", {"Content-Type": V2})
    assert (status, json.loads(body)["offsets"][0]["offset"]) == (200, 4)
    cluster = web.get("/v3/clusters")["data"][0]["cluster_id"]
    web.post(f"/topics/{topic}", {"records": [{"value": n} for n in range(3)]})
    groups = f"/v3/clusters/{cluster}/consumer-groups"
    assert group in [entry["consumer_group_id"] for entry in web.get(groups)["data"]]
    assert web.get(f"{groups}/{group}")["state"] == "STABLE"
    (member,) = web.get(f"{groups}/{group}/consumers")["data"]
    assert member["client_id"] == "two"
    (lag,) = web.get(f"{groups}/{group}/lags")["data"]
    assert (lag["current_offset"], lag["log_end_offset"], lag["lag"]) == (4, 7, 3)
    summary = web.get(f"{groups}/{group}/lag-summary")
    assert (summary["max_lag"], summary["total_lag"], summary["max_lag_topic_name"]) == (3, 3, topic)
    # Only its members may commit for a group that has some.
    given = {"offsets": [{"topic": topic, "partition": 0, "offset": 2}]}
    status, code, _ = web.refused("POST", f"/groups/{group}/offsets", given, Content_Type="application/json")
    assert (status, code) == (409, 40903)
    assert web.call("DELETE", path)[0] == 204
    assert web.post(f"/groups/{group}/offsets", given)["offsets"][0]["offset"] == 2


def hang_up(web: Http, path: str, after_s: float) -> None:
    """A caller whose patience is shorter than its long poll."""
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=after_s)
    connection.request("GET", path)
    with pytest.raises(TimeoutError):
        connection.getresponse()
    connection.close()


@pytest.mark.parametrize("auto_commit", ["false", "true"])
def test_a_long_poll_nobody_waits_for_loses_no_records(web: Http, topic: str, auto_commit: str) -> None:
    web.post(f"/topics/{topic}", {"value": "zero"})
    path = make_instance(web, f"{topic}-group", "c", topic, **{"auto.commit.enable": auto_commit})
    assert [entry["value"] for entry in read_until(web, path, 1)] == ["zero"]
    hang_up(web, f"{path}/records?timeout=20000", 0.5)
    web.post(f"/topics/{topic}", {"value": "one"})
    time.sleep(0.3)
    assert web.call("HEAD", f"{path}/records?timeout=1000")[0] == 200  # sees the record and hands nothing out
    started = time.monotonic()
    assert [entry["value"] for entry in web.get(f"{path}/records?timeout=5000")] == ["one"]
    assert time.monotonic() - started < 5  # the abandoned one does not stand in the way
    _, _, body = web.call("POST", f"{path}/offsets")
    assert json.loads(body)["offsets"][0]["offset"] == 2
    web.call("DELETE", path)


def test_two_instances_share_a_topic_and_one_leaves(web: Http, topic: str) -> None:
    cluster = web.get("/v3/clusters")["data"][0]["cluster_id"]
    web.post(f"/v3/clusters/{cluster}/topics", {"topic_name": topic, "partitions_count": 4}, status=201)
    group = f"{topic}-group"
    one, two = make_instance(web, group, "one", topic), make_instance(web, group, "two", topic)
    deadline = time.monotonic() + 30

    def sizes() -> list[int]:
        return sorted(len(web.get(f"{path}/assignments")["partitions"]) for path in (one, two))

    while sizes() != [2, 2]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    web.post(f"/topics/{topic}", {"records": [{"value": n, "partition": n % 4} for n in range(40)]})
    seen = [entry["value"] for path in (one, two) for entry in read_until(web, path, 20)]
    assert sorted(seen) == list(range(40))
    web.call("DELETE", one)
    while len(web.get(f"{two}/assignments")["partitions"]) != 4:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    web.call("DELETE", two)


def test_an_instance_and_a_stock_client_share_a_group(broker: BrokerProcess, web: Http, topic: str) -> None:
    cluster = web.get("/v3/clusters")["data"][0]["cluster_id"]
    web.post(f"/v3/clusters/{cluster}/topics", {"topic_name": topic, "partitions_count": 4}, status=201)
    group = f"{topic}-group"
    path = make_instance(web, group, "one", topic)
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    deadline = time.monotonic() + 30
    while len(consumer.assignment()) != 2 or len(web.get(f"{path}/assignments")["partitions"]) != 2:
        assert time.monotonic() < deadline
        consumer.poll(0.1)
    theirs = {partition.partition for partition in consumer.assignment()}
    ours = {entry["partition"] for entry in web.get(f"{path}/assignments")["partitions"]}
    assert theirs | ours == {0, 1, 2, 3}
    consumer.close()
    web.call("DELETE", path)


def test_assignment_by_hand_and_seeking(web: Http, topic: str) -> None:
    web.post(f"/topics/{topic}", {"records": [{"value": n} for n in range(4)]})
    group = f"{topic}-group"
    web.post(f"/consumers/{group}", {"name": "hand", "format": "json"}, V2)
    path = f"/consumers/{group}/instances/hand"
    status, code, _ = web.refused("GET", f"{path}/records")
    assert (status, code) == (409, 40901)
    partition = {"topic": topic, "partition": 0}
    web.post(f"{path}/assignments", {"partitions": [partition]}, V2, status=204)
    web.post(f"{path}/positions/beginning", {"partitions": [partition]}, V2, status=204)
    assert [entry["value"] for entry in web.get(f"{path}/records")] == [0, 1, 2, 3]
    web.post(f"{path}/positions", {"offsets": [{**partition, "offset": 3}]}, V2, status=204)
    assert [entry["value"] for entry in web.get(f"{path}/records")] == [3]
    web.post(f"{path}/positions/end", {"partitions": [partition]}, V2, status=204)
    assert web.get(f"{path}/records?timeout=100") == []
    status, code, _ = web.refused("POST", f"{path}/subscription", {"topics": [topic]})
    assert (status, code) == (409, 40903)
    status, code, _ = web.refused("POST", f"/consumers/{group}", {"name": "hand"})
    assert (status, code) == (409, 40902)
    web.call("DELETE", path)
    assert web.refused("GET", f"{path}/records")[:2] == (404, 40403)


# -- looking around and refusals --------------------------------------------------------------


def test_topics_brokers_cluster_health(web: Http, topic: str) -> None:
    cluster = web.get("/v3/clusters")["data"][0]["cluster_id"]
    path = f"/v3/clusters/{cluster}/topics"
    given = {"topic_name": topic, "partitions_count": 2, "configs": [{"name": "retention.ms", "value": "1000"}]}
    created = web.post(path, given, status=201)
    assert (created["kind"], created["partitions_count"], created["topic_name"]) == ("KafkaTopic", 2, topic)
    assert topic in web.get("/topics")
    shown = web.get(f"/topics/{topic}")
    assert shown["configs"]["retention.ms"] == "1000"
    assert shown["partitions"] == web.get(f"/topics/{topic}/partitions")
    assert web.get(f"/topics/{topic}/partitions/1")["replicas"] == [{"broker": 1, "leader": True, "in_sync": True}]
    assert topic in [entry["topic_name"] for entry in web.get(path)["data"]]
    assert len(web.get(f"{path}/{topic}/partitions")["data"]) == 2
    assert web.get(f"{path}/{topic}/partitions/1")["partition_id"] == 1
    configs = {entry["name"]: entry for entry in web.get(f"{path}/{topic}/configs")["data"]}
    assert (configs["retention.ms"]["value"], configs["retention.ms"]["is_default"]) == ("1000", False)
    assert web.get("/brokers") == {"brokers": [1]}
    assert web.get(f"/v3/clusters/{cluster}/brokers/1")["broker_id"] == 1
    assert web.get("/health") == {"status": "ok", "cluster_id": cluster, "brokers": 1, "controller": 1}
    assert web.refused("POST", path, given, Content_Type="application/json")[:2] == (400, 40002)
    assert web.call("DELETE", f"{path}/{topic}")[0] == 204
    assert web.refused("GET", f"/topics/{topic}")[:2] == (404, 40401)


@pytest.mark.parametrize("path", ["/", "/nothing"])
def test_who_asks_for_nothing_is_told_where_to_look(web: Http, path: str) -> None:
    status, _, message = web.refused("GET", path)
    assert (status, message) == (
        404,
        f"there is nothing at {path}: GET /openapi.json lists all paths, such as /topics and /metrics",
    )


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "code"),
    [
        ("GET", "/nothing", None, {}, 404, 404),
        ("PUT", "/topics", None, {}, 405, 405),
        ("GET", "/topics/no-such-topic", None, {}, 404, 40401),
        ("GET", "/topics/%2e%2e", None, {}, 404, 40401),
        ("GET", "/topics/ä/partitions", None, {}, 404, 40401),
        ("GET", "/topics/there/partitions/9", None, {}, 404, 40402),
        ("GET", "/topics/there/partitions/-1/records", None, {}, 404, 40402),
        ("GET", "/topics/there/partitions/0/records?offset=x", None, {}, 400, 400),
        ("GET", "/topics/there/partitions/0/records?offset=99999999999999999999", None, {}, 400, 400),
        ("GET", "/topics/there/partitions/0/records?timeout=60001", None, {}, 400, 400),
        ("GET", "/topics/there/events?offset=1", None, {}, 400, 400),
        ("GET", "/topics/there/events?from=middle", None, {}, 400, 400),
        ("GET", "/topics/there/events?from=latest&timestamp=0", None, {}, 400, 400),
        ("GET", "/topics/there/events?from=earliest", None, {"Last-Event-ID": "junk"}, 400, 400),
        ("GET", "/topics/there/events", None, {"Last-Event-ID": "0:9999999999999999999"}, 400, 400),
        ("POST", "/topics/there", b"{", {}, 400, 400),
        ("POST", "/topics/there", b"\xff", {}, 400, 400),
        ("POST", "/topics/there", b"[" * 100_000, {}, 422, 422),
        ("POST", "/topics/there", {"records": []}, {}, 422, 422),
        ("POST", "/topics/there", {"records": [{"partition": "0"}]}, {}, 422, 422),
        ("POST", "/topics/there", {"record": []}, {}, 422, 422),
        ("POST", "/topics/there", {"key": "k"}, {}, 422, 422),
        ("POST", "/topics/there", {"key": "k", "value": 1, "payload": 1}, {}, 422, 422),
        ("POST", "/topics/there", {"records": [{"key": "k"}]}, {}, 422, 422),
        ("POST", "/topics/there", {"records": [{"value": 1}], "key": "k"}, {}, 422, 422),
        ("POST", "/topics/there", {"records": None, "value": 1}, {}, 422, 422),
        ("POST", "/topics/there/partitions/0", {"key": "k"}, {}, 422, 422),
        ("POST", "/topics/there/partitions/0", {"value": 1, "partition": 0}, {}, 422, 422),
        ("POST", "/topics/there", b'{"value": "\xff"}', {}, 400, 400),
        ("POST", "/topics/there", '{"value": "ä"}'.encode("utf-16"), {}, 400, 400),
        ("POST", "/topics/there", {"records": [{"value": "?"}]}, {"Content-Type": BINARY}, 422, 422),
        ("POST", "/topics/there", {"records": [{"value": 1}]}, {"Content-Type": BINARY}, 422, 422),
        ("POST", "/topics/there", {"value": 1}, {"Content-Type": "application/vnd.kafka.avro.v2+json"}, 415, 415),
        ("POST", "/topics/there", {"value": 1, "partition": 3}, {}, 404, 40401),
        ("POST", "/topics/there", {"value": "x" * 3_000_000}, {}, 413, 41301),
        ("POST", "/consumers/g", {"auto.offset.reset": "sometimes"}, {}, 422, 422),
        ("GET", "/v3/clusters/another", None, {}, 404, 404),
        ("GET", "/consumers/g/instances/none/records", None, {}, 404, 40403),
    ],
)
def test_refusals(
    web: Http, method: str, path: str, body: object, headers: dict[str, str], status: int, code: int
) -> None:
    web.post("/topics/there", {"value": 0})
    given = {"Content-Type": "application/json", **headers}
    encoded = path.encode("utf-8").decode("latin-1") if path.isascii() else "/topics/%C3%A4/partitions"
    names = {name.replace("-", "_"): value for name, value in given.items()}
    assert web.refused(method, encoded, body, **names)[:2] == (status, code)


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("/topics/there/partitions/0/records?ofset=0", "'ofset': the parameters are offset, timestamp"),
        ("/topics/there/partitions/0/records?offset=0&timestamp=0", "offset and timestamp exclude"),
        ("/topics/there/partitions/0/records?offset=0&offset=1", "offset is given more than once"),
        ("/topics/there/events?offset=0&partition=0&from=latest", "offset and from exclude"),
        ("/topics?internal=true", "'internal': this operation has none"),
    ],
)
def test_what_a_query_got_wrong_is_named(web: Http, path: str, part: str) -> None:
    web.post("/topics/there", {"value": 0})
    status, _, message = web.refused("GET", path)
    assert status == 400
    assert part in message


def test_a_body_that_is_too_large(web: Http) -> None:
    assert web.refused("POST", "/topics/there", b'"' + b"x" * (17 << 20) + b'"')[:2] == (413, 413)


def raw_call(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 10) as raw:
        raw.sendall(request)
        answer = b""
        while piece := raw.recv(65536):
            answer += piece
    return answer


def test_a_host_header_that_is_none(tmp_path: Path) -> None:
    """On every interface, where any name may be right."""
    with BrokerProcess(tmp_path, {"penstock.http.listener": "0.0.0.0:0"}) as anywhere:
        found = re.search(r"HTTP on 0\.0\.0\.0:(\d+)", anywhere.ready_line)
        assert found
        answer = raw_call(int(found[1]), b"GET /v3/clusters HTTP/1.1\r\nHost: [<\r\nConnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"http://127.0.0.1:" in answer
        web = Http(int(found[1]))
        web.post("/topics/t", {"value": 1})
        assert web.call("GET", "/topics", headers={"Host": "proxy.example", "Origin": "https://a.example"})[0] == 200


# -- who may call -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:8082"},
        {"Host": "localhost.evil.example"},
        {"Host": "[<"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ],
)
def test_a_gateway_on_this_machine_is_not_for_web_pages(web: Http, topic: str, headers: dict[str, str]) -> None:
    body = json.dumps({"value": "pwned"}).encode()
    given = {"Content-Type": "application/json", **headers}
    for method, path in (("POST", f"/topics/{topic}"), ("GET", "/metrics"), ("GET", "/openapi.json")):
        status, _, answer = web.call(method, path, body if method == "POST" else None, given)
        assert (status, json.loads(answer)["error_code"]) == (403, 403)
        setting = "penstock.http.allowed." + ("hosts" if "Host" in headers else "origins")
        assert setting in json.loads(answer)["message"]
    assert topic not in web.get("/topics")


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "localhost:1"},
        {"Host": "127.0.0.2"},
        {"Host": "[::1]:8082"},
        {"Host": "penstock.localhost"},
        {"Origin": "http://localhost:3000"},
        {"Origin": "http://127.0.0.1"},
    ],
)
def test_this_machine_has_several_names(web: Http, headers: dict[str, str]) -> None:
    assert web.call("GET", "/topics", headers=headers)[0] == 200


def test_more_names_may_be_allowed(tmp_path: Path) -> None:
    settings = {"penstock.http.listener": "127.0.0.1:0", "penstock.http.allowed.hosts": "Proxy.example, app.example"}
    with BrokerProcess(tmp_path, settings) as broker:
        web = Http(gateway_port(broker, "HTTP"))
        headers = {"Host": "proxy.example", "Origin": "https://app.example"}
        assert web.call("GET", "/topics", headers=headers)[0] == 200
        assert web.call("GET", "/topics", headers={"Host": "other.example"})[0] == 403


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_a_body_needs_a_content_type(web: Http, topic: str, content_type: str | None) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    cluster = web.get("/v3/clusters")["data"][0]["cluster_id"]
    for path in (
        f"/topics/{topic}",
        f"/topics/{topic}/partitions/0",
        f"/v3/clusters/{cluster}/topics",
        f"/v3/clusters/{cluster}/topics/{topic}/records",
        f"/v3/clusters/{cluster}/topics/{topic}/records:batch",
        f"/consumers/{topic}",
        f"/groups/{topic}/offsets",
    ):
        status, _, answer = web.call("POST", path, b'{"value": 1}', headers)
        assert (status, json.loads(answer)["error_code"]) == (415, 415), path
        assert "-H 'Content-Type: application/json'" in json.loads(answer)["message"]
    assert topic not in web.get("/topics")


def test_the_description_covers_every_route(web: Http) -> None:
    described = web.get("/openapi.json")
    assert described["openapi"].startswith("3.1")
    names = [operation["operationId"] for path in described["paths"].values() for operation in path.values()]
    assert len(names) == len(set(names)) > 40
    assert "text/plain" in next(iter(described["paths"]["/metrics"]["get"]["responses"]["200"]["content"]))


def test_the_broker_stops_at_once_and_quietly_with_readers_waiting(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, GATEWAY) as broker:
        web = Http(gateway_port(broker, "HTTP"))
        web.post("/topics/t", {"value": 0})
        path = make_instance(web, "g", "one", "t")
        read_until(web, path, 1)
        answers: list[tuple[int, bytes]] = []

        def ask(target: str) -> None:
            status, _, body = web.call("GET", target)
            answers.append((status, body))

        targets = ("/topics/t/events", "/topics/t/partitions/0/records?offset=1&timeout=30000")
        readers = [
            threading.Thread(target=ask, args=(target,)) for target in (*targets, f"{path}/records?timeout=30000")
        ]
        for reader in readers:
            reader.start()
        time.sleep(0.5)
        started = time.monotonic()
        assert broker.terminate() == 0
        took_s = time.monotonic() - started
        for reader in readers:
            reader.join(5)
        assert sorted(status for status, _ in answers) == [200, 503, 503]
        assert took_s < 2  # nobody was waited for; the rest is for a busy machine
        assert "Traceback" not in broker.log()
        assert "ASGI" not in broker.log()


def test_a_slow_body_does_not_end_in_a_traceback(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, GATEWAY) as broker:
        port = gateway_port(broker, "HTTP")
        Http(port).post("/topics/t", {"value": 0})
        with socket.create_connection(("127.0.0.1", port), 10) as slow:
            slow.sendall(
                b"POST /topics/t HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
            )
            time.sleep(0.3)
            assert broker.terminate() == 0
            assert slow.recv(100).startswith(b"HTTP/1.1 503 ")
        assert "Traceback" not in broker.log()


def test_three_protocols_show_one_log(broker: BrokerProcess, web: Http, topic: str) -> None:
    with Netcat(gateway_port(broker, "lines")) as nc:
        assert nc.ask(f"PUBLISH {topic} from netcat") == "OK 0 0"
        web.post(f"/topics/{topic}", {"key": "k", "value": "from http"})
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce(topic, "from kafka")
        assert producer.flush(10) == 0
        lines = ["MSG 0 0 - from netcat", 'MSG 0 1 k "from http"', "MSG 0 2 - from kafka", "OK 3 0:3"]
        assert nc.ask(f"CONSUME {topic}").split("\n") == lines
    read = web.get(f"/topics/{topic}/partitions/0/records")
    assert [entry["value"] for entry in read] == ["from netcat", "from http", "from kafka"]


def test_what_is_asked_for_but_not_served_is_406(web: Http, topic: str) -> None:
    status, code, message = web.refused("GET", "/topics", Accept="text/csv")
    assert (status, code) == (406, 406)
    assert "application/json" in message
    assert web.refused("GET", f"/topics/{topic}/events", Accept="image/png")[0] == 406
    assert web.call("GET", "/metrics", headers={"Accept": "application/openmetrics-text"})[0] == 200
    assert web.call("GET", "/health", headers={"Accept": "text/html"})[0] == 200


def test_event_source_of_a_page_may_read_the_answer(tmp_path: Path) -> None:
    """As a browser does it: it sends Origin, and gives the page an answer that names this origin, and no other."""
    settings = GATEWAY | {"penstock.http.allowed.origins": "https://dash.example"}
    with BrokerProcess(tmp_path, settings) as process:
        web = Http(gateway_port(process, "HTTP"))
        web.post("/topics/events", {"value": 1})
        path = "/topics/events/events?from=earliest&limit=1"
        for origin in ("https://dash.example", "http://localhost:3000"):
            status, headers, body = web.call("GET", path, headers={"Origin": origin, "Accept": "text/event-stream"})
            assert status == 200
            assert headers["access-control-allow-origin"] == origin
            assert b"data: " in body
            asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
            status, headers, _ = web.call(
                "OPTIONS", "/topics/events", headers=asked | {"Access-Control-Request-Headers": "content-type"}
            )
            assert status == 200
            assert headers["access-control-allow-origin"] == origin
            assert "POST" in headers["access-control-allow-methods"]
        status, headers, _ = web.call("GET", path, headers={"Origin": "https://evil.example"})
        assert status == 403
        assert "access-control-allow-origin" not in headers


POST = b"POST /topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
HALF_A_REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
HALF_A_LINE = b"TOP"


def test_slow_callers_are_hung_up_on(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, GATEWAY | {"penstock.gateway.request.timeout.ms": "1000"}) as process:
        port, line_port = gateway_port(process, "HTTP"), gateway_port(process, "lines")
        slow = [half_sent(port, HALF_A_REQUEST), half_sent(port, b""), half_sent(line_port, HALF_A_LINE)]
        answers = [read_to_the_end(connection) for connection in slow]
        assert answers[:2] == [b"", b""]
        assert answers[2].startswith(b"ERR closed: ")
        assert closed_by_gateway(port) == {"http full": 0, "http timeout": 2, "line full": 0, "line timeout": 1}
        assert process.terminate() == 0
        assert "Traceback" not in process.log()


def test_a_late_body_is_408_and_the_connection_is_closed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, GATEWAY | {"penstock.gateway.request.timeout.ms": "1000"}) as process:
        port = gateway_port(process, "HTTP")
        answer = read_to_the_end(half_sent(port, POST + b"Content-Length: 9\r\n\r\n{"))
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"\r\nconnection: close\r\n" in answer
        assert closed_by_gateway(port)["http timeout"] == 1
        assert process.terminate() == 0
        assert "Traceback" not in process.log()


def test_a_body_that_says_it_is_too_large_is_refused_before_it_comes(web: Http) -> None:
    with half_sent(web.port, POST + b"Content-Length: 99999999\r\nExpect: 100-continue\r\n\r\n") as caller:
        assert caller.recv(1000).startswith(b"HTTP/1.1 413 ")


def test_callers_that_send_nothing_keep_nobody_out(tmp_path: Path) -> None:
    """More half-sent requests than the listener has connections: the one that waits longest makes room."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip(f"3,150 connections at a time need as many open files; this user may have {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with BrokerProcess(tmp_path, GATEWAY | {"penstock.gateway.request.timeout.ms": "600000"}) as process:
        port, line_port = gateway_port(process, "HTTP"), gateway_port(process, "lines")
        assert Http(port).call("GET", "/health")[0] == 200
        slow = [half_sent(port, HALF_A_REQUEST) for _ in range(2100)]
        slow += [half_sent(line_port, HALF_A_LINE) for _ in range(1050)]
        assert Http(port).call("GET", "/health")[0] == 200
        assert Http(port).call("GET", "/topics")[0] == 200
        with Netcat(line_port) as line:
            assert line.ask("TOPICS") == "OK 0"
        closed = closed_by_gateway(port)
        assert closed["http full"] >= 36
        assert closed["line full"] >= 50
        for connection in slow:
            connection.close()
        assert process.terminate() == 0
        assert "Traceback" not in process.log()


def closed_by_gateway(port: int) -> dict[str, int]:
    page = Http(port).call("GET", "/metrics")[2].decode()
    rows = re.findall(r'penstock_gateway_connections_closed_total{protocol="(\w+)",reason="(\w+)"} (\d+)', page)
    return {f"{protocol} {reason}": int(number) for protocol, reason, number in sorted(rows)}


def read_to_the_end(connection: socket.socket) -> bytes:
    """The peer may abort instead of closing in good order."""
    received = b""
    with connection, contextlib.suppress(ConnectionResetError):
        while data := connection.recv(200):
            received += data
    return received


def half_sent(port: int, data: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), 30)
    connection.sendall(data)
    return connection
