"""Single requests over a plain socket: `doctor` sends them before it trusts a client library.

librdkafka moves on to the advertised addresses of brokers; a probe stays at the address it was given.
"""

from __future__ import annotations

import socket
from typing import TypeVar

from penstock.model.errors import ProtocolError
from penstock.wire.apis import Api
from penstock.wire.codec import decode_response, encode_request, read_response_header
from penstock.wire.messages.api_versions import ApiVersionsResponse
from penstock.wire.messages.describe_cluster import DescribeClusterBroker, DescribeClusterResponse
from penstock.wire.messages.metadata import MetadataResponse
from penstock.wire.primitives import Message
from penstock.wire_client.requests.brokers import cluster_request
from penstock.wire_client.requests.metadata import metadata_request
from penstock.wire_client.requests.versions import versions_request

R = TypeVar("R", bound=Message)
FRAME_LIMIT = 1024 * 1024
CLUSTER_VERSION = 2  # the first version that lists fenced brokers
METADATA_VERSION = 4  # served by all brokers since 0.11; has cluster id and controller
ABOUT_THE_CLUSTER = metadata_request(())
"""Brokers, cluster id and controller; no topics."""


def frame(api: Api, version: int, request: Message, client_id: str = "penstock-cli") -> bytes:
    """A request with correlation id 1, as it goes over the wire."""
    parts, _ = encode_request(api, version, 1, client_id, request)
    return b"".join(part for part in parts if isinstance(part, bytes))


class Probe:
    """Raises OSError, or ProtocolError if the server does not speak Kafka's protocol."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self._address = (host, port)
        self._timeout_s = timeout_s

    def api_count(self) -> int:
        answer = self._ask(Api.API_VERSIONS, 0, versions_request(), ApiVersionsResponse)
        if not answer.api_keys:
            raise ProtocolError("the answer lists no APIs")
        return len(answer.api_keys)

    def cluster(self) -> MetadataResponse:
        return self._ask(Api.METADATA, METADATA_VERSION, ABOUT_THE_CLUSTER, MetadataResponse)

    def all_brokers(self) -> list[DescribeClusterBroker]:
        """Includes brokers that are down."""
        return self._ask(Api.DESCRIBE_CLUSTER, CLUSTER_VERSION, cluster_request(), DescribeClusterResponse).brokers

    def _ask(self, api: Api, version: int, request: Message, kind: type[R]) -> R:
        with socket.create_connection(self._address, self._timeout_s) as connection:
            connection.sendall(frame(api, version, request, "penstock-doctor"))
            with connection.makefile("rb") as stream:
                prefix = stream.read(4)
                if not prefix:
                    raise ConnectionResetError("the connection was closed at once")
                size = int.from_bytes(prefix, "big")
                if not 0 < size <= FRAME_LIMIT:
                    raise ProtocolError("the answer is not a Kafka response")
                answered = stream.read(size)
        if len(answered) < size:
            raise ProtocolError("the connection was closed in the middle of the answer")
        _, at = read_response_header(api, version, answered)
        answer = decode_response(api, version, answered, at)
        assert isinstance(answer, kind)
        return answer
