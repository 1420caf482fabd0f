from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from penstock.wire_client.requests.partitioner import RoundRobin, murmur2, partition_for_key


@given(st.binary(max_size=64))
def test_the_hash_is_that_of_kafka_python(key: bytes) -> None:
    assert murmur2(key) == kafka_python_murmur2(key) & 0xFFFFFFFF


def test_known_values_of_the_java_client() -> None:
    # From Kafka's UtilsTest.testMurmur2.
    assert murmur2(b"21") == -973932308 & 0xFFFFFFFF
    assert murmur2(b"foobar") == -790332482 & 0xFFFFFFFF
    assert murmur2(b"a-little-bit-long-string") == -985981536 & 0xFFFFFFFF
    assert 0 <= partition_for_key(b"21", 7) < 7


def test_round_robin_counts_by_topic() -> None:
    choose = RoundRobin().choose
    assert [choose("a", 3) for _ in range(4)] == [0, 1, 2, 0]
    assert choose("b", 3) == 0
