"""The client's side of SASL, without sockets and clocks.

PLAIN (RFC 4616) and SCRAM-SHA-256/512 (RFC 5802, RFC 7677) without channel binding, as in Kafka. An exchange is a
generator that yields messages to the broker and is sent the answers. When a SCRAM exchange returns, the broker has
proved that it knows the password's keys, too. Raises AuthenticationFailed.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Generator
from typing import TypeAlias

from penstock.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from penstock.wire.messages.sasl_handshake import SaslHandshakeRequest
from penstock.wire_client.requests.errors import AuthenticationFailed

Exchange: TypeAlias = Generator[bytes, bytes, None]

SCRAM_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS = ("PLAIN", *SCRAM_HASHES)
# Kafka accepts no fewer than 4096. The upper bound keeps a false broker from burning our CPU.
MIN_ITERATIONS, MAX_ITERATIONS = 4096, 1 << 20
_NO_BINDING = "n,,"
_ATTRIBUTES = re.compile(r"([a-z])=([^,]*)(?:,|$)")


def handshake_request(mechanism: str) -> SaslHandshakeRequest:
    return SaslHandshakeRequest(mechanism=mechanism)


def authenticate_request(message: bytes) -> SaslAuthenticateRequest:
    """With one message of an exchange."""
    return SaslAuthenticateRequest(auth_bytes=message)


def exchange(mechanism: str, username: str, password: str, nonce: str | None = None) -> Exchange:
    """`nonce` is for tests; it is random by default."""
    if mechanism == "PLAIN":
        return plain(username, password)
    return scram(mechanism, username, password, nonce or secrets.token_urlsafe(24))


def plain(username: str, password: str) -> Exchange:
    if "\0" in username or "\0" in password:
        raise AuthenticationFailed("SASL PLAIN: user name and password must not contain NUL")
    yield f"\0{username}\0{password}".encode()


def scram(mechanism: str, username: str, password: str, nonce: str) -> Exchange:
    """
    C: n,,n=user,r=nonce
    S: r=nonce+more,s=salt,i=iterations
    C: c=biws,r=nonce+more,p=proof
    S: v=signature, or e=error
    """
    name = SCRAM_HASHES[mechanism]
    client_first = f"n={username.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
    server_first = _text((yield (_NO_BINDING + client_first).encode()))
    said = _attributes(server_first)
    if "m" in said:
        raise AuthenticationFailed(f"{mechanism}: the broker requires an extension that this client does not know")
    server_nonce = said.get("r", "")
    if not server_nonce.startswith(nonce) or len(server_nonce) == len(nonce):
        raise AuthenticationFailed(f"{mechanism}: the broker's nonce does not continue ours")
    salt, iterations = _bytes(said.get("s", "")), _number(said.get("i", ""))
    if not salt or not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise AuthenticationFailed(
            f"{mechanism}: the broker offers {iterations} iterations and {len(salt)} bytes of salt; "
            f"between {MIN_ITERATIONS} and {MAX_ITERATIONS} iterations and some salt are expected"
        )
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", name)
    client_final = f"c={b64encode(_NO_BINDING.encode()).decode()},r={server_nonce}"
    signed = f"{client_first},{server_first},{client_final}".encode()
    signature = hmac.digest(hashlib.new(name, client_key).digest(), signed, name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    verdict = _attributes(_text((yield f"{client_final},p={b64encode(proof).decode()}".encode())))
    if "e" in verdict:
        raise AuthenticationFailed(f"{mechanism}: the broker refuses user '{username}': {verdict['e']}")
    expected = hmac.digest(hmac.digest(salted, b"Server Key", name), signed, name)
    if not hmac.compare_digest(_bytes(verdict.get("v", "")), expected):
        raise AuthenticationFailed(f"{mechanism}: the broker could not prove that it knows user '{username}'")


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError as error:
        raise AuthenticationFailed(f"the broker's SASL answer is not text: {message[:40]!r}") from error


def _attributes(message: str) -> dict[str, str]:
    return dict(_ATTRIBUTES.findall(message))


def _bytes(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError):
        return b""


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else -1
