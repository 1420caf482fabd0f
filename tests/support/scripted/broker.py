"""A broker that says what a test tells it to: real frames on a real socket, no log behind them."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TypeAlias, cast

from penstock.wire.apis import Api, api
from penstock.wire.codec import decode_request, encode_response, read_request_header
from penstock.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from penstock.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from penstock.wire.primitives import Message

Reply: TypeAlias = Message | bytes | None
Script: TypeAlias = Callable[[Message], Reply]
"""The answer to a request: a message, raw bytes, or None to hang up."""


class ScriptedBroker:
    """`topics` by name with their ids, one partition each. `requests` is everything that came, in order."""

    def __init__(
        self,
        scripts: Mapping[Api, Script] | None = None,
        topics: Mapping[str, bytes] | None = None,
        newest: Mapping[Api, int] | None = None,
    ) -> None:
        self.scripts: dict[Api, Script] = {Api.API_VERSIONS: self._versions, Api.METADATA: self._metadata}
        self.scripts.update(scripts or {})
        self.topics = dict(topics or {})
        self.newest = dict(newest or {})
        self.leader_epoch = -1
        """Of every partition, in the metadata."""
        self.requests: list[Message] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def asked(self, kind: type[Message]) -> list[Message]:
        return [request for request in self.requests if isinstance(request, kind)]

    def hang_up(self) -> None:
        """Close every connection; new ones are accepted."""
        while self._connections:
            connection = self._connections.pop()
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> ScriptedBroker:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.hang_up()
        for thread in self._threads:
            thread.join(10)

    def _start(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self._connections.append(connection)
            self._start(lambda connection=connection: self._serve(connection))  # type: ignore[misc]

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream, contextlib.suppress(OSError):
            while len(prefix := stream.read(4)) == 4:
                frame = stream.read(int.from_bytes(prefix, "big"))
                key, version, correlation_id, _, at = read_request_header(frame)
                request = decode_request(key, version, frame, at)
                self.requests.append(request)
                script = self.scripts.get(Api(key))
                reply = script(request) if script is not None else None
                if reply is None:
                    connection.shutdown(socket.SHUT_RDWR)
                    return
                if isinstance(reply, bytes):
                    connection.sendall(struct.pack(">i", len(reply)) + reply)
                else:
                    parts, _ = encode_response(key, version, correlation_id, reply)
                    connection.sendall(b"".join(cast("list[bytes]", parts)))

    def _versions(self, _: Message) -> Message:
        keys = [
            ApiVersion(
                api_key=key,
                min_version=api(key).min_version,
                max_version=min(api(key).max_version, self.newest.get(key, 99)),
            )
            for key in self.scripts
        ]
        return ApiVersionsResponse(api_keys=keys)

    def _metadata(self, request: Message) -> Message:
        assert isinstance(request, MetadataRequest)
        names = list(self.topics) if request.topics is None else [topic.name or "" for topic in request.topics]
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.port)],
            topics=[
                MetadataResponseTopic(
                    name=name,
                    topic_id=self.topics[name],
                    partitions=[
                        MetadataResponsePartition(
                            partition_index=0,
                            leader_id=1,
                            leader_epoch=self.leader_epoch,
                            replica_nodes=[1],
                            isr_nodes=[1],
                        )
                    ],
                )
                if name in self.topics
                else MetadataResponseTopic(name=name, error_code=3)
                for name in names
            ],
        )
