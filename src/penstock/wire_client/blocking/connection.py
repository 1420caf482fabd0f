"""One connection to one broker for blocking code: Spark's workers, one task at a time.

Requests are sent at once, answers arrive in the same order. Versions are negotiated when it opens, as in
`aio.connection`; the TLS handshake comes before that, and SASL right after. Must not know: which broker leads a
partition, retries. Invariants: an answer is received into one block of memory, new or lent by the caller, and record
batches in it are views of that memory. After an error every open request is lost, and the connection is never used
again. Not thread safe.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
import time
from collections import deque
from struct import Struct
from types import TracebackType
from typing import TypeVar, cast

from penstock.model.errors import ApiError, ErrorCode, ProtocolError
from penstock.wire.apis import Api, api
from penstock.wire.codec import decode_response, encode_request, read_response_header
from penstock.wire.messages.api_versions import ApiVersionsResponse
from penstock.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from penstock.wire.messages.sasl_handshake import SaslHandshakeResponse
from penstock.wire.primitives import Message
from penstock.wire_client.blocking.security import PLAINTEXT, ClientSecurity
from penstock.wire_client.requests.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    ConnectionLost,
    NotKafka,
    RequestTimedOut,
    UnknownHost,
    WireClientError,
    error_code,
)
from penstock.wire_client.requests.limits import MAX_FRAME_BYTES, REQUEST_TIMEOUT_S
from penstock.wire_client.requests.sasl import authenticate_request, exchange, handshake_request
from penstock.wire_client.requests.versions import Served, choose_version, read_versions, versions_request

R = TypeVar("R", bound=Message)

CONNECT_TIMEOUT_S = 10.0
# A broker that limits SASL sessions closes the connection at their end: reconnect before that (KIP-368).
SESSION_SHARE = 0.85
KEPT_BYTES = 9 << 20
"""Enough for the largest fetch that is asked for by default, and a batch that passes its end."""
_SIZE = Struct(">i")
# The first bytes of servers with other protocols.
_OTHERS = {
    b"\x15\x03": "; it speaks TLS: set security.protocol to SSL or SASL_SSL",
    b"HTTP": "; it speaks HTTP: Kafka clients use another port, 9092 by default",
}


class ReceiveBuffer:
    """Memory for large answers, reused once no view of it is left: fresh pages cost as much as filling them.

    One block is kept. An answer that needs more than `KEPT_BYTES`, or that arrives while the block is in use, gets its
    own memory.
    """

    def __init__(self) -> None:
        self._kept = bytearray(1)

    def take(self, size: int) -> memoryview:
        memory = self._kept
        if len(memory) < size or not _is_free(memory):
            memory = bytearray((size | 0xFFFF) + 1)  # the next answer is often a little larger
            if len(memory) <= KEPT_BYTES:
                self._kept = memory
        return memoryview(memory)[:size]


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.buffer = ReceiveBuffer()


_of_thread = _OfThread()


def thread_buffer() -> ReceiveBuffer:
    """The buffer of this thread, whatever the connection: a worker reads from one broker at a time."""
    return _of_thread.buffer


def _is_free(memory: bytearray) -> bool:
    """Whether no view of the bytearray is left: its length cannot change while there is one."""
    try:
        memory.append(memory.pop())
    except BufferError:
        return False
    return True


class BlockingConnection:
    def __init__(self, sock: socket.socket, address: tuple[str, int], client_id: str) -> None:
        self.address = address
        self.place = f"{address[0]}:{address[1]}"
        self._pid = os.getpid()
        self._socket = sock
        self._client_id = client_id
        self._open: deque[tuple[Api, int, int]] = deque()
        self._next_id = 0
        self._versions: Served = {Api.API_VERSIONS: (0, 0)}
        self._failure: str | None = None
        self._session_ends = float("inf")
        self._prefix = bytearray(_SIZE.size)

    @classmethod
    def open(
        cls,
        host: str,
        port: int,
        client_id: str,
        security: ClientSecurity = PLAINTEXT,
        timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> BlockingConnection:
        """Raises BrokerUnreachable, AuthenticationFailed or UnsupportedClientSetting."""
        place = f"{host}:{port}"
        deadline = time.monotonic() + timeout_s
        context = security.ssl_context() if security.uses_tls else None
        try:
            sock = socket.create_connection((host, port), timeout_s)
        except TimeoutError as error:
            raise BrokerUnreachable(f"{place} did not answer within {timeout_s:g} s") from error
        except (OSError, UnicodeError) as error:  # UnicodeError: a host name with an empty or overlong part
            reason = error.strerror if isinstance(error, OSError) else None
            # EAI_AGAIN is a failure of the name server and says nothing about the name.
            is_unknown = not isinstance(error, OSError) or (
                isinstance(error, socket.gaierror) and error.errno != socket.EAI_AGAIN
            )
            kind = UnknownHost if is_unknown else BrokerUnreachable
            raise kind(f"cannot connect to {place}: {reason or error}") from error
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                sock = _handshake(context, sock, host, place)
            connection = cls(sock, (host, port), client_id)
            connection._agree_on_versions(deadline)
            if security.uses_sasl:
                connection._authenticate(security, deadline)
        except (ConnectionLost, RequestTimedOut) as error:
            sock.close()
            if isinstance(error.__cause__, ssl.SSLError) and not isinstance(error.__cause__, ssl.SSLEOFError):
                # TLS 1.3: the broker refuses our certificate only after the handshake.
                raise AuthenticationFailed(f"{place} refuses this client: {error}") from error
            kind = NotKafka if isinstance(error.__cause__, ProtocolError) else BrokerUnreachable
            raise kind(f"cannot connect to {place}: {error}") from error
        except BaseException:
            sock.close()
            raise
        return connection

    def _agree_on_versions(self, deadline: float) -> None:
        answer = self.call(Api.API_VERSIONS, versions_request(), ApiVersionsResponse, deadline - time.monotonic())
        self._versions = read_versions(answer)

    def _authenticate(self, security: ClientSecurity, deadline: float) -> None:
        mechanism = security.sasl_mechanism or ""
        # After a handshake of version 0 the exchange would not be framed as requests.
        if self._versions.get(Api.SASL_HANDSHAKE, (0, 0))[1] < 1:
            raise AuthenticationFailed(
                f"{self.place} has no SASL, or too old a version: set security.protocol to PLAINTEXT or SSL"
            )
        request = handshake_request(mechanism)
        answer = self.call(Api.SASL_HANDSHAKE, request, SaslHandshakeResponse, deadline - time.monotonic())
        if answer.error_code:
            offered = ", ".join(answer.mechanisms) or "none"
            code = error_code(answer.error_code).name
            raise AuthenticationFailed(f"{self.place} refuses sasl.mechanism={mechanism} ({code}); it offers {offered}")
        steps = exchange(mechanism, security.username or "", security.password or "")
        message = next(steps)
        try:
            while True:
                message = steps.send(self._sasl_step(mechanism, message, deadline))
        except StopIteration:
            return

    def _sasl_step(self, mechanism: str, message: bytes, deadline: float) -> bytes:
        request = authenticate_request(message)
        answer = self.call(Api.SASL_AUTHENTICATE, request, SaslAuthenticateResponse, deadline - time.monotonic())
        if answer.error_code:
            reason = answer.error_message or error_code(answer.error_code).name
            raise AuthenticationFailed(f"{self.place} refuses the {mechanism} credentials: {reason}")
        if answer.session_lifetime_ms > 0:
            self._session_ends = time.monotonic() + answer.session_lifetime_ms / 1000 * SESSION_SHARE
        return answer.auth_bytes

    @property
    def is_usable(self) -> bool:
        """Also asks the operating system, to notice a closed connection before a request is sent."""
        try:
            self._check()
        except ConnectionLost:
            return False
        if not self._open and _has_input(self._socket):
            self._fail("the broker closed the connection")
        return self._failure is None and time.monotonic() < self._session_ends

    def fileno(self) -> int:
        """For `select`: readable when an answer arrives, or when the connection is lost. -1 if it is closed."""
        return self._socket.fileno()

    @property
    def outstanding(self) -> int:
        """The number of requests without an answer yet."""
        return len(self._open)

    def newest(self, key: Api, cap: int | None = None) -> int:
        """The version of a request: the newest that both sides know and that is not above the cap.

        Raises ApiError(UNSUPPORTED_VERSION).
        """
        version = choose_version(key, self._versions, cap)
        if version is None:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"{self.place} does not serve {api(key).name}")
        return version

    def send(self, key: Api, request: Message, *, version: int | None = None) -> None:
        """Sends without waiting. Not for a produce request with acks=0, which has no answer. Raises ConnectionLost."""
        self._check()
        version = self.newest(key) if version is None else version
        parts, _ = encode_request(key, version, self._next_id, self._client_id, request)
        try:
            self._socket.settimeout(REQUEST_TIMEOUT_S)
            # Requests have only bytes; file slices occur only in answers.
            self._socket.sendall(b"".join(cast("list[bytes]", parts)))
        except OSError as error:
            raise self._lost(error) from error
        self._open.append((key, version, self._next_id))
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF

    def receive(self, kind: type[R], timeout_s: float = REQUEST_TIMEOUT_S, buffer: ReceiveBuffer | None = None) -> R:
        """The answer to the oldest open request. Raises ConnectionLost or RequestTimedOut.

        `buffer` receives the answer, if given. The caller checks error codes.
        """
        self._check()
        key, version, correlation_id = self._open.popleft()
        deadline = time.monotonic() + timeout_s
        try:
            frame = self._receive_frame(deadline, buffer)
            got, at = read_response_header(key, version, frame)
            if got != correlation_id:
                raise ProtocolError(f"the answer has correlation id {got}, expected {correlation_id}")
            message = decode_response(key, version, frame, at)
        except TimeoutError as error:
            # The answer may still arrive and would be taken for the next one.
            self._fail(f"no answer to {api(key).name} within {timeout_s:g} s")
            unanswered = f"no answer to {api(key).name} from {self.place}"
            raise RequestTimedOut(f"{unanswered} within {timeout_s:g} s", unanswered) from error
        except OSError as error:
            raise self._lost(error) from error
        except ProtocolError as error:
            self._fail(f"the answer of {self.place} is not Kafka's protocol: {error}")
            raise ConnectionLost(str(self._failure)) from error
        assert isinstance(message, kind)
        return message

    def call(
        self, key: Api, request: Message, kind: type[R], timeout_s: float = REQUEST_TIMEOUT_S, cap: int | None = None
    ) -> R:
        """Sends a request, in a version not above `cap`, and waits. No other request may be open."""
        assert not self._open, "answers arrive in order: receive the earlier answers first"
        self.send(key, request, version=self.newest(key, cap))
        return self.receive(kind, timeout_s)

    def _receive_frame(self, deadline: float, buffer: ReceiveBuffer | None) -> memoryview:
        prefix = memoryview(self._prefix)
        self._fill(prefix, deadline)
        (size,) = _SIZE.unpack(prefix)
        if not 0 <= size <= MAX_FRAME_BYTES:
            hint = next((hint for start, hint in _OTHERS.items() if bytes(prefix).startswith(start)), "")
            raise ProtocolError(f"invalid frame size: {size} bytes{hint}")
        frame = memoryview(bytearray(size)) if buffer is None else buffer.take(size)
        self._fill(frame, deadline)
        return frame

    def _fill(self, view: memoryview, deadline: float) -> None:
        sock, at, size = self._socket, 0, len(view)
        while at < size:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            sock.settimeout(left_s)
            got = sock.recv_into(view[at:])
            if not got:
                raise ConnectionResetError("it was closed")
            at += got

    def _check(self) -> None:
        if self._pid != os.getpid():
            self._fail("the connection belongs to the process that this one was forked from")
        if self._failure is not None:
            raise ConnectionLost(self._failure)

    def _lost(self, error: OSError) -> WireClientError:
        self._fail(f"the connection to {self.place} was lost: {error.strerror or error}")
        return ConnectionLost(self._failure)

    def _fail(self, sentence: str) -> None:
        if self._failure is None:
            self._failure = sentence
            self._open.clear()
            self._socket.close()

    def close(self) -> None:
        """Closes only this process's end: a parent or child with the same socket may go on using it."""
        self._fail("the connection was closed")

    def __enter__(self) -> BlockingConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _handshake(context: ssl.SSLContext, sock: socket.socket, host: str, place: str) -> socket.socket:
    try:
        return context.wrap_socket(sock, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise AuthenticationFailed(
            f"the certificate of {place} is not trusted: {error.verify_message}; set ssl.ca.location "
            "(or ssl.truststore.location) to the certificate of its authority"
        ) from error
    except TimeoutError as error:
        raise BrokerUnreachable(f"{place} did not finish the TLS handshake in time") from error
    except ssl.SSLEOFError as error:
        raise BrokerUnreachable(f"{place} closed the connection in the TLS handshake; check its protocol") from error
    except ssl.SSLError as error:
        raise AuthenticationFailed(f"no TLS with {place}: {error.reason or error}; check its protocol") from error
    except OSError as error:
        raise BrokerUnreachable(f"TLS handshake with {place}: {error.strerror or error}; check its protocol") from error


def _has_input(sock: socket.socket) -> bool:
    """Whether there is input without a request, which is the end of the connection."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    if not poll.poll(0):
        return False
    if isinstance(sock, ssl.SSLSocket):
        sock.settimeout(0)
        try:
            sock.recv(1)
        except ssl.SSLWantReadError:
            return False  # for example a session ticket
        except OSError:
            return True
    return True
