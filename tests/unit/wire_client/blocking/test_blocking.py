"""The connection that blocks: against a broker in this process, one behind TLS, and scripted ones."""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.model.errors import ApiError, ErrorCode
from penstock.testing import Broker
from penstock.wire.apis import Api
from penstock.wire.messages.api_versions import ApiVersionsRequest
from penstock.wire.messages.find_coordinator import FindCoordinatorRequest
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from penstock.wire.primitives import Message
from penstock.wire_client.blocking.connection import KEPT_BYTES, BlockingConnection, ReceiveBuffer
from penstock.wire_client.blocking.security import ClientSecurity
from penstock.wire_client.requests.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    ConnectionLost,
    RequestTimedOut,
    WireClientError,
)
from support.scripted.broker import Reply, Script, ScriptedBroker
from support.scripted.tls_proxy import CERTIFICATE, KEY, TlsProxy, pump


@pytest.fixture
def connection(penstock_broker: Broker) -> Iterator[BlockingConnection]:
    with BlockingConnection.open("127.0.0.1", penstock_broker.port, "blocking") as connection:
        yield connection


# -- requests and answers -------------------------------------------------------------------


def test_answers_come_in_the_order_of_requests(connection: BlockingConnection) -> None:
    names = [f"nobody-{number}" for number in range(20)]
    for name in names:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
        connection.send(Api.METADATA, request)
    assert connection.outstanding == 20
    answers = [connection.receive(MetadataResponse, 10.0) for _ in names]
    assert [answer.topics[0].name for answer in answers] == names
    assert connection.outstanding == 0
    assert connection.is_usable


def test_versions_are_agreed_on(connection: BlockingConnection) -> None:
    assert connection.newest(Api.FETCH) == 12
    assert connection.newest(Api.FETCH, 17) == 17
    with ScriptedBroker() as old, BlockingConnection.open(*old.address, "x") as other:
        with pytest.raises(ApiError, match="does not serve FindCoordinator") as refused:
            other.send(Api.FIND_COORDINATOR, FindCoordinatorRequest())
        assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
        assert other.is_usable


def test_no_nagle(connection: BlockingConnection) -> None:
    assert connection._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(BrokerUnreachable, match=f"cannot connect to 127.0.0.1:{port}: Connection refused"):
        BlockingConnection.open("127.0.0.1", port, "x")
    with pytest.raises(BrokerUnreachable, match="cannot connect to"):
        BlockingConnection.open("no-such-host.invalid", 9092, "x", timeout_s=5.0)
    with pytest.raises(BrokerUnreachable, match="cannot connect to"):
        BlockingConnection.open("a..b", 9092, "x")


def test_one_who_listens_and_says_nothing() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        pytest.raises(BrokerUnreachable, match="no answer to ApiVersions"),
    ):
        BlockingConnection.open("127.0.0.1", server.getsockname()[1], "x", timeout_s=0.2)


@pytest.mark.parametrize(
    ("reply", "complaint"),
    [
        (None, "was lost"),
        (b"\0\0\0\x63", "the answer has correlation id 99, expected 1"),
        (b"\0", "response header"),
        (b"\0\0\0\x01\x7f\xff", "not Kafka's protocol"),
    ],
)
def test_an_answer_that_is_none(reply: Reply, complaint: str) -> None:
    with ScriptedBroker({Api.METADATA: lambda _: reply}, newest={Api.METADATA: 1}) as broker:
        connection = BlockingConnection.open(*broker.address, "x")
        connection.send(Api.METADATA, MetadataRequest())
        connection.send(Api.METADATA, MetadataRequest())
        with pytest.raises(ConnectionLost, match=complaint):
            connection.receive(MetadataResponse, 10.0)
        assert not connection.is_usable
        assert connection.outstanding == 0
        with pytest.raises(ConnectionLost, match=complaint):
            connection.receive(MetadataResponse, 10.0)
        with pytest.raises(ConnectionLost, match=complaint):
            connection.send(Api.METADATA, MetadataRequest())


def test_a_late_answer_ends_the_connection() -> None:
    go_on = threading.Event()

    def late(_: Message) -> Reply:
        go_on.wait(10)
        return MetadataResponse()

    with ScriptedBroker({Api.METADATA: late}) as broker, BlockingConnection.open(*broker.address, "x") as connection:
        with pytest.raises(RequestTimedOut, match=f"no answer to Metadata from 127.0.0.1:{broker.port} within 0.1 s"):
            connection.call(Api.METADATA, MetadataRequest(), MetadataResponse, 0.1)
        assert not connection.is_usable
        go_on.set()


def test_a_broker_that_left_is_noticed_before_anything_is_sent() -> None:
    with ScriptedBroker() as broker, BlockingConnection.open(*broker.address, "x") as connection:
        assert connection.is_usable
        broker.hang_up()
        deadline = time.monotonic() + 10
        while connection.is_usable:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with pytest.raises(ConnectionLost, match="closed the connection"):
            connection.send(Api.METADATA, MetadataRequest())


def test_a_forked_child_leaves_the_connection_to_its_parent(connection: BlockingConnection) -> None:
    child = os.fork()
    if not child:
        try:
            refused = not connection.is_usable
            try:
                connection.send(Api.METADATA, MetadataRequest(topics=[]))
            except ConnectionLost as error:
                refused = refused and "forked" in str(error)
            os._exit(0 if refused else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert connection.is_usable
    assert connection.call(Api.METADATA, MetadataRequest(topics=[]), MetadataResponse).brokers


# -- memory ---------------------------------------------------------------------------------


def test_memory_is_used_again_when_nobody_looks_at_it() -> None:
    buffer = ReceiveBuffer()
    memory = buffer.take(100_000).obj
    again = buffer.take(90_000)
    assert again.obj is memory
    assert len(again) == 90_000


def test_memory_that_is_looked_at_is_left_alone() -> None:
    buffer = ReceiveBuffer()
    first = buffer.take(10)
    first[:] = b"0123456789"
    kept = first[2:5]
    del first
    second = buffer.take(10)
    second[:] = b"abcdefghij"
    third = buffer.take(10)
    third[:] = b"ABCDEFGHIJ"
    assert (bytes(kept), bytes(second)) == (b"234", b"abcdefghij")


def test_large_pieces_are_not_kept() -> None:
    buffer = ReceiveBuffer()
    usual = buffer.take(100_000).obj
    large = buffer.take(KEPT_BYTES + 1).obj
    assert large is not usual
    assert buffer.take(KEPT_BYTES + 1).obj is not large
    assert buffer.take(100_000).obj is usual


def test_sizes_of_every_kind() -> None:
    buffer = ReceiveBuffer()
    for size in (0, 1, 0, 70_000, 65_536, 3):
        assert len(buffer.take(size)) == size


# -- SASL -----------------------------------------------------------------------------------


def sasl_scripts(authenticate: Callable[[bytes], SaslAuthenticateResponse]) -> dict[Api, Script]:
    def handshake(request: Message) -> Reply:
        assert isinstance(request, SaslHandshakeRequest)
        is_known = request.mechanism in ("PLAIN", "SCRAM-SHA-256")
        return SaslHandshakeResponse(error_code=0 if is_known else 33, mechanisms=["PLAIN", "SCRAM-SHA-256"])

    def step(request: Message) -> Reply:
        assert isinstance(request, SaslAuthenticateRequest)
        return authenticate(request.auth_bytes)

    return {Api.SASL_HANDSHAKE: handshake, Api.SASL_AUTHENTICATE: step}


def plain_server(message: bytes) -> SaslAuthenticateResponse:
    if message == b"\0alice\0s3cr3t":
        return SaslAuthenticateResponse()
    return SaslAuthenticateResponse(error_code=58, error_message="Authentication failed: Invalid username or password")


class ScramServer:
    """For one user and one connection; `knows` False: it accepts everyone and cannot prove itself."""

    def __init__(self, *, knows: bool = True) -> None:
        self._knows = knows
        self._salt = os.urandom(16)
        self._said: list[str] = []

    def __call__(self, message: bytes) -> SaslAuthenticateResponse:
        text = message.decode()
        if not self._said:
            nonce = text.rpartition("r=")[2] + "server"
            self._said = [text[3:], f"r={nonce},s={b64encode(self._salt).decode()},i=4096"]
            return SaslAuthenticateResponse(auth_bytes=self._said[1].encode())
        bare, _, proof = text.rpartition(",p=")
        signed = ",".join((*self._said, bare)).encode()
        salted = hashlib.pbkdf2_hmac("sha256", b"s3cr3t", self._salt, 4096)
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
        if self._knows and b64decode(proof) != bytes(a ^ b for a, b in zip(client_key, signature, strict=True)):
            return SaslAuthenticateResponse(error_code=58, error_message="invalid credentials")
        server_key = hmac.digest(salted if self._knows else b"", b"Server Key", "sha256")
        return SaslAuthenticateResponse(auth_bytes=b"v=" + b64encode(hmac.digest(server_key, signed, "sha256")))


def credentials(mechanism: str, password: str = "s3cr3t") -> ClientSecurity:
    return ClientSecurity("SASL_PLAINTEXT", sasl_mechanism=mechanism, username="alice", password=password)


def test_sasl_plain() -> None:
    with ScriptedBroker(sasl_scripts(plain_server)) as broker:
        with BlockingConnection.open(*broker.address, "x", credentials("PLAIN")) as connection:
            connection.call(Api.METADATA, MetadataRequest(), MetadataResponse)
        kinds = [type(request) for request in broker.requests]
        assert kinds == [ApiVersionsRequest, SaslHandshakeRequest, SaslAuthenticateRequest, MetadataRequest]
        with pytest.raises(AuthenticationFailed, match=r"refuses the PLAIN credentials: .*Invalid username") as refused:
            BlockingConnection.open(*broker.address, "x", credentials("PLAIN", "wrong-one"))
        assert "wrong-one" not in str(refused.value)


def test_sasl_scram() -> None:
    with (
        ScriptedBroker(sasl_scripts(ScramServer())) as broker,
        BlockingConnection.open(*broker.address, "x", credentials("SCRAM-SHA-256")) as connection,
    ):
        connection.call(Api.METADATA, MetadataRequest(), MetadataResponse)
    with (
        ScriptedBroker(sasl_scripts(ScramServer())) as broker,
        pytest.raises(AuthenticationFailed, match="invalid credentials"),
    ):
        BlockingConnection.open(*broker.address, "x", credentials("SCRAM-SHA-256", "wrong"))
    with (
        ScriptedBroker(sasl_scripts(ScramServer(knows=False))) as broker,
        pytest.raises(AuthenticationFailed, match="could not prove that it knows user 'alice'"),
    ):
        BlockingConnection.open(*broker.address, "x", credentials("SCRAM-SHA-256"))


def test_sasl_mechanism_that_is_not_offered() -> None:
    with (
        ScriptedBroker(sasl_scripts(plain_server)) as broker,
        pytest.raises(AuthenticationFailed, match=r"SCRAM-SHA-512 .*it offers PLAIN, SCRAM-SHA-256"),
    ):
        BlockingConnection.open(*broker.address, "x", credentials("SCRAM-SHA-512"))
    with (
        ScriptedBroker(sasl_scripts(plain_server), newest={Api.SASL_HANDSHAKE: 0}) as broker,
        pytest.raises(AuthenticationFailed, match="has no SASL, or too old a version"),
    ):
        BlockingConnection.open(*broker.address, "x", credentials("PLAIN"))


def test_sasl_where_there_is_none(penstock_broker: Broker) -> None:
    with pytest.raises(AuthenticationFailed, match="has no SASL"):
        BlockingConnection.open("127.0.0.1", penstock_broker.port, "x", credentials("PLAIN"))


def test_a_session_that_ends_is_left_before() -> None:
    answer = SaslAuthenticateResponse(session_lifetime_ms=100)
    with (
        ScriptedBroker(sasl_scripts(lambda _: answer)) as broker,
        BlockingConnection.open(*broker.address, "x", credentials("PLAIN")) as connection,
    ):
        deadline = time.monotonic() + 10
        while connection.is_usable:
            assert time.monotonic() < deadline
            time.sleep(0.01)


# -- TLS ------------------------------------------------------------------------------------


def test_tls(penstock_broker: Broker) -> None:
    with TlsProxy(penstock_broker.port) as proxy:
        for host in ("localhost", "127.0.0.1"):
            with BlockingConnection.open(host, proxy.port, "x", ClientSecurity("SSL", ca=CERTIFICATE)) as connection:
                assert connection.call(Api.METADATA, MetadataRequest(topics=[]), MetadataResponse).brokers
                assert connection.is_usable
                assert connection.call(Api.METADATA, MetadataRequest(topics=[]), MetadataResponse).brokers


def test_tls_with_a_certificate_of_our_own(penstock_broker: Broker) -> None:
    own = ClientSecurity("SSL", ca=CERTIFICATE, certificate=Path(CERTIFICATE).read_text(), key=Path(KEY).read_text())
    with TlsProxy(penstock_broker.port, wants_client_certificate=True) as proxy:
        with BlockingConnection.open("localhost", proxy.port, "x", own) as connection:
            assert connection.call(Api.METADATA, MetadataRequest(topics=[]), MetadataResponse).brokers
        with pytest.raises(WireClientError, match=r"CERTIFICATE_REQUIRED|closed|lost"):
            BlockingConnection.open("localhost", proxy.port, "x", ClientSecurity("SSL", ca=CERTIFICATE))


def test_tls_with_someone_who_is_not_trusted(penstock_broker: Broker) -> None:
    with TlsProxy(penstock_broker.port) as proxy:
        with pytest.raises(AuthenticationFailed, match=r"is not trusted: self-signed certificate; set ssl.ca.location"):
            BlockingConnection.open("localhost", proxy.port, "x", ClientSecurity("SSL"))
        lax = ClientSecurity("SSL", verifies_certificate=False)
        BlockingConnection.open("localhost", proxy.port, "x", lax).close()


def test_tls_under_another_name(penstock_broker: Broker) -> None:
    with TlsProxy(penstock_broker.port) as proxy:
        with pytest.raises(AuthenticationFailed, match="is not trusted"):
            BlockingConnection.open("127.0.0.2", _forward(proxy.port), "x", ClientSecurity("SSL", ca=CERTIFICATE))
        lax = ClientSecurity("SSL", ca=CERTIFICATE, verifies_hostname=False)
        BlockingConnection.open("127.0.0.2", _forward(proxy.port), "x", lax).close()


def _forward(port: int) -> int:
    """The same on an address that the certificate does not name; for one connection."""
    server = socket.create_server(("127.0.0.2", 0))

    def serve() -> None:
        with server, server.accept()[0] as outer, socket.create_connection(("127.0.0.1", port)) as inner:
            threading.Thread(target=pump, args=(inner, outer), daemon=True).start()
            pump(outer, inner)

    threading.Thread(target=serve, daemon=True).start()
    return int(server.getsockname()[1])


def test_tls_and_plaintext_meet(penstock_broker: Broker) -> None:
    with pytest.raises(WireClientError, match="check its protocol"):
        BlockingConnection.open("127.0.0.1", penstock_broker.port, "x", ClientSecurity("SSL", ca=CERTIFICATE))
    with TlsProxy(penstock_broker.port) as proxy, pytest.raises(BrokerUnreachable, match=r"speaks TLS|lost"):
        BlockingConnection.open("127.0.0.1", proxy.port, "x")
