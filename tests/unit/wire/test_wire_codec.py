"""Headers, frames, records and the rules of the codecs, on bytes written by hand."""

from __future__ import annotations

import struct
import subprocess
import sys

import pytest

from penstock.model.errors import ErrorCode, ProtocolError
from penstock.ports.disk import FileSlice
from penstock.wire import codec
from penstock.wire.apis import Api, api, find_api
from penstock.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.messages.consumer_group_heartbeat import Assignment, ConsumerGroupHeartbeatResponse
from penstock.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
    ReplicaState,
)
from penstock.wire.messages.heartbeat import HeartbeatRequest
from penstock.wire.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from penstock.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.wire.primitives import NULL_UUID, read_uvarint, uvarint


class FakeFile:
    path = "00000000000000000000.log"

    def __init__(self, content: bytes) -> None:
        self.content = content

    def read(self, position: int, size: int) -> bytes:
        return self.content[position : position + size]


def file_slice(content: bytes, position: int, size: int) -> FileSlice:
    return FileSlice(FakeFile(content), position, size)  # type: ignore[arg-type]


def fetch_response(records: object) -> FetchResponse:
    partition = PartitionData(partition_index=1, high_watermark=5, records=records)  # type: ignore[arg-type]
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[partition])])


class TestVarints:
    @pytest.mark.parametrize("value", [0, 1, 127, 128, 16383, 16384, 2097151, 2097152, 2**28 - 1, 2**28, 2**31 - 1])
    def test_round_trip(self, value: int) -> None:
        data = uvarint(value)
        assert len(data) == max(1, (value.bit_length() + 6) // 7)
        assert read_uvarint(b"?" + data + b"?", 1) == (value, 1 + len(data))

    def test_six_bytes_are_refused(self) -> None:
        with pytest.raises(ProtocolError, match="varint"):
            read_uvarint(b"\x80\x80\x80\x80\x80\x01", 0)


class TestRequestHeader:
    def test_version_1(self) -> None:
        data = struct.pack(">hhih", Api.HEARTBEAT, 3, 77, 4) + b"kcat" + b"body"
        assert codec.read_request_header(data) == (12, 3, 77, "kcat", 14)

    def test_version_2_skips_tagged_fields(self) -> None:
        data = struct.pack(">hhih", Api.HEARTBEAT, 4, 77, 4) + b"kcat" + b"\x01\x05\x02xy" + b"body"
        *_, offset = codec.read_request_header(data)
        assert data[offset:] == b"body"

    def test_client_id_may_be_null_or_empty(self) -> None:
        assert codec.read_request_header(struct.pack(">hhih", 12, 0, 1, -1))[3] is None
        assert codec.read_request_header(struct.pack(">hhih", 12, 0, 1, 0))[3] == ""

    @pytest.mark.parametrize(("key", "version"), [(Api.API_VERSIONS, 99), (1234, 0), (-1, 0), (Api.HEARTBEAT, -1)])
    def test_of_the_unknown_ends_after_the_client_id(self, key: int, version: int) -> None:
        data = struct.pack(">hhih", key, version, 9, 1) + b"c" + b"\x01"
        assert codec.read_request_header(data) == (key, version, 9, "c", 11)

    def test_at_an_offset(self) -> None:
        data = b"\0\0\0\x0a" + struct.pack(">hhih", 12, 0, 1, -1)
        assert codec.read_request_header(memoryview(data), 4) == (12, 0, 1, None, 14)

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"\0\x0c\0\0\0\0\0\x01\0",
            struct.pack(">hhih", 12, 0, 1, 5) + b"four",
            struct.pack(">hhih", 12, 0, 1, 1) + b"\xff",
            struct.pack(">hhih", 12, 4, 1, -1),
            struct.pack(">hhih", 12, 4, 1, -1) + b"\x01\x00\x09",
            struct.pack(">hhih", 12, 4, 1, -1) + b"\x80",
        ],
    )
    def test_damage_is_a_protocol_error(self, data: bytes) -> None:
        with pytest.raises(ProtocolError):
            codec.read_request_header(data)

    @pytest.mark.parametrize("version", [3, 4])
    @pytest.mark.parametrize("client_id", [None, "", "ünï"])
    def test_what_we_write_we_read(self, version: int, client_id: str | None) -> None:
        message = HeartbeatRequest(group_id="g", generation_id=4, member_id="m")
        (data,), size = codec.encode_request(Api.HEARTBEAT, version, 5, client_id, message)
        assert isinstance(data, bytes)
        assert size == len(data)
        assert data[:4] == struct.pack(">i", size - 4)
        key, read_version, correlation_id, name, offset = codec.read_request_header(data, 4)
        assert (key, read_version, correlation_id, name) == (Api.HEARTBEAT, version, 5, client_id)
        assert codec.decode_request(key, version, data, offset) == message


class TestResponses:
    @pytest.mark.parametrize(("version", "header_size"), [(3, 4), (4, 5)])
    def test_header(self, version: int, header_size: int) -> None:
        spec = api(Api.HEARTBEAT)
        message = spec.response()
        (data,), size = codec.encode_response(Api.HEARTBEAT, version, 99, message)
        assert isinstance(data, bytes)
        assert struct.unpack_from(">ii", data) == (size - 4, 99)
        assert len(data) == size
        correlation_id, offset = codec.read_response_header(Api.HEARTBEAT, version, data, 4)
        assert (correlation_id, offset) == (99, 4 + header_size)
        assert codec.decode_response(Api.HEARTBEAT, version, data, offset) == message

    @pytest.mark.parametrize("version", range(5))
    def test_api_versions_never_has_tags_in_its_header(self, version: int) -> None:
        message = ApiVersionsResponse(api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)])
        (data,), _ = codec.encode_response(Api.API_VERSIONS, version, 1, message)
        assert isinstance(data, bytes)
        assert data[8:] == codec.encode(message, version)
        assert codec.read_response_header(Api.API_VERSIONS, version, data, 4) == (1, 8)

    def test_short_header_is_a_protocol_error(self) -> None:
        for data in (b"", b"\0\0\0", b"\0\0\0\1", b"\0\0\0\1\1"):
            with pytest.raises(ProtocolError):
                codec.read_response_header(Api.HEARTBEAT, 4, data)

    def test_version_out_of_range_is_a_protocol_error(self) -> None:
        with pytest.raises(ProtocolError, match="Heartbeat has no version 5"):
            codec.encode_response(Api.HEARTBEAT, 5, 1, api(Api.HEARTBEAT).response())
        with pytest.raises(ProtocolError, match="HeartbeatRequest has no version 5"):
            codec.decode_request(Api.HEARTBEAT, 5, b"", 0)
        with pytest.raises(ProtocolError, match="key 4"):
            codec.decode_request(4, 0, b"", 0)


class TestRecords:
    @pytest.mark.parametrize("version", [8, 9])
    def test_are_views_of_the_request(self, version: int) -> None:
        partition = PartitionProduceData(index=2, records=b"batch" * 50)
        message = ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=[partition])])
        data = bytearray(codec.encode(message, version))
        read = codec.decode(ProduceRequest, version, memoryview(data))
        records = read.topic_data[0].partition_data[0].records
        assert isinstance(records, memoryview)
        assert records == b"batch" * 50
        data[data.index(b"batch")] = ord("B")
        assert bytes(records[:5]) == b"Batch"

    @pytest.mark.parametrize("version", [11, 12])
    @pytest.mark.parametrize("size", [1, 126, 127, 5000, 300_000])
    def test_a_file_slice_travels_unread(self, version: int, size: int) -> None:
        content = bytes(range(256)) * 1200
        payload = file_slice(content, 7, size)
        parts, total = codec.encode_response(Api.FETCH, version, 3, fetch_response(payload))
        assert parts[1] is payload
        assert len(parts) == (2 if version == 11 else 3)
        whole = b"".join(part.read() if isinstance(part, FileSlice) else part for part in parts)
        assert total == len(whole)
        (same,), _ = codec.encode_response(Api.FETCH, version, 3, fetch_response(content[7 : 7 + size]))
        assert whole == same

    @pytest.mark.parametrize("version", [11, 12])
    @pytest.mark.parametrize("records", [b"", bytearray(b"ab"), memoryview(b"abc")])
    def test_any_buffer_will_do(self, version: int, records: bytes) -> None:
        data = codec.encode(fetch_response(records), version)
        read = codec.decode(FetchResponse, version, data).responses[0].partitions[0].records
        assert read == bytes(records)

    def test_empty_slice_and_null_differ(self) -> None:
        empty = codec.encode(fetch_response(file_slice(b"", 0, 0)), 12)
        assert empty == codec.encode(fetch_response(b""), 12)
        null = codec.decode(FetchResponse, 12, codec.encode(fetch_response(None), 12))
        assert null.responses[0].partitions[0].records is None


class TestFrame:
    def test_joins_neighbours_and_counts_everything(self) -> None:
        one, two = file_slice(b"xyz", 0, 3), file_slice(b"xyz", 1, 2)
        parts, size = codec.frame([b"a", b"bc", one, two, b"d", b"", b"e"])
        assert parts == [b"\0\0\0\x0aabc", one, two, b"de"]
        assert size == 14

    def test_may_be_empty_or_start_with_a_slice(self) -> None:
        assert codec.frame([]) == ([b"\0\0\0\0"], 4)
        payload = file_slice(b"xyz", 0, 3)
        assert codec.frame([payload]) == ([b"\0\0\0\x03", payload], 7)


class TestVersions:
    def test_a_field_the_version_lacks_is_dropped_and_reads_as_its_default(self) -> None:
        topic = MetadataResponseTopic(name="t", topic_id=b"0123456789abcdef", is_internal=True)
        read = codec.decode(MetadataResponse, 0, codec.encode(MetadataResponse(topics=[topic], controller_id=8), 0))
        assert read.controller_id == -1
        assert read.topics[0].topic_id == NULL_UUID
        assert read.topics[0].is_internal is False

    def test_null_is_refused_where_the_version_has_none(self) -> None:
        all_topics = MetadataRequest(topics=None)
        assert codec.decode(MetadataRequest, 1, codec.encode(all_topics, 1)).topics is None
        with pytest.raises(TypeError):
            codec.encode(all_topics, 0)
        with pytest.raises(ProtocolError, match="null"):
            codec.decode(MetadataRequest, 0, b"\xff\xff\xff\xff")

    def test_error_codes_may_be_enum_members(self) -> None:
        message = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        assert codec.encode(message, 0)[:2] == b"\0\x23"


class TestTaggedFields:
    def test_default_is_left_out(self) -> None:
        bare = codec.encode(FetchRequest(), 15)
        assert codec.encode(FetchRequest(replica_state=ReplicaState()), 15) == bare
        assert codec.decode(FetchRequest, 15, bare).replica_state is None
        given = FetchRequest(cluster_id="c", replica_state=ReplicaState(replica_id=3))
        assert codec.decode(FetchRequest, 15, codec.encode(given, 15)) == given

    def test_unknown_ones_are_skipped(self) -> None:
        bare = codec.encode(FetchRequest(), 15)
        assert bare[-1:] == b"\0"
        unknown = bare[:-1] + b"\x02" + b"\x00\x02\x02c" + b"\x63\x03abc"
        assert codec.decode(FetchRequest, 15, unknown) == FetchRequest(cluster_id="c")

    def test_wrong_size_is_refused(self) -> None:
        bare = codec.encode(FetchRequest(), 15)
        with pytest.raises(ProtocolError, match="wrong size"):
            codec.decode(FetchRequest, 15, bare[:-1] + b"\x01" + b"\x00\x03\x02c?")

    def test_in_a_nested_struct(self) -> None:
        response = fetch_response(b"r")
        response.responses[0].partitions[0].current_leader = LeaderIdAndEpoch(leader_id=1, leader_epoch=2)
        assert codec.decode(FetchResponse, 12, codec.encode(response, 12)) == response


class TestHostileLengths:
    """A length is believed only as far as there are bytes."""

    @pytest.mark.parametrize(
        ("version", "data"),
        [
            (4, b"\x7f\xff\xff\xff" + b"\0" * 20),
            (9, b"\xff\xff\xff\xff\x7f" + b"\0" * 20),
            (9, b"\x02" + b"\0" * 16 + b"\xff\xff\xff\xff\x0f"),
            (4, b"\0\0\0\x01\0\x02\xff\xfe\0"),
        ],
    )
    def test_are_protocol_errors(self, version: int, data: bytes) -> None:
        with pytest.raises(ProtocolError):
            codec.reader(MetadataRequest, version)(data, 0)

    def test_every_negative_count_is_null_as_in_kafka(self) -> None:
        assert codec.decode(MetadataRequest, 4, b"\xff\xff\xff\xfe\0").topics is None

    def test_trailing_bytes_matter_to_decode_only(self) -> None:
        data = codec.encode(ApiVersionsRequest(client_software_name="x"), 3) + b"more"
        assert codec.decode_request(Api.API_VERSIONS, 3, data, 0) == ApiVersionsRequest(client_software_name="x")
        with pytest.raises(ProtocolError, match="4 bytes after"):
            codec.decode(ApiVersionsRequest, 3, data)


class TestMessages:
    def test_each_has_its_own_lists(self) -> None:
        one, two = FetchRequest(), FetchRequest()
        one.topics.append(None)  # type: ignore[arg-type]
        assert two.topics == []
        read_one, read_two = (codec.decode(FetchRequest, 4, codec.encode(two, 4)) for _ in range(2))
        assert read_one.forgotten_topics_data is not read_two.forgotten_topics_data

    def test_nullable_structs(self) -> None:
        with_one = ConsumerGroupHeartbeatResponse(assignment=Assignment())
        assert codec.decode(ConsumerGroupHeartbeatResponse, 0, codec.encode(with_one, 0)) == with_one
        without = ConsumerGroupHeartbeatResponse()
        assert codec.decode(ConsumerGroupHeartbeatResponse, 0, codec.encode(without, 0)).assignment is None

    def test_equality_and_repr_are_by_value(self) -> None:
        assert LeaderIdAndEpoch(leader_id=1) == LeaderIdAndEpoch(leader_id=1)
        assert LeaderIdAndEpoch(leader_id=1) != LeaderIdAndEpoch(leader_id=2)
        assert LeaderIdAndEpoch() != ReplicaState()
        assert repr(LeaderIdAndEpoch(leader_id=1)) == "LeaderIdAndEpoch(leader_id=1, leader_epoch=-1)"


class TestApiTable:
    def test_knows_what_it_is_asked(self) -> None:
        spec = api(Api.FETCH)
        assert (spec.name, spec.min_version, spec.max_version, spec.flexible_from) == ("Fetch", 4, 18, 12)
        assert spec.request is FetchRequest
        assert spec.response is FetchResponse
        assert api(1) is spec
        assert find_api(4) is None

    def test_start_up_imports_no_schema_package_and_no_message_module(self) -> None:
        script = (
            "import sys, penstock.wire.codec\n"
            "assert 'kio' not in sys.modules\n"
            "assert not [m for m in sys.modules if m.startswith('penstock.wire.messages.') and not m.endswith('index')]"
        )
        subprocess.run([sys.executable, "-c", script], check=True)
