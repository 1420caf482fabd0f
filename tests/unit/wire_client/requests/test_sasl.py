"""SASL exchanges, against the examples of the RFCs and against brokers that cheat."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode

import pytest

from penstock.wire_client.requests.errors import AuthenticationFailed
from penstock.wire_client.requests.sasl import Exchange, exchange, scram

NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = NONCE + "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SERVER_FIRST = f"r={SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def begun(mechanism: str = "SCRAM-SHA-256", user: str = "user", password: str = "pencil") -> Exchange:
    steps = scram(mechanism, user, password, NONCE)
    next(steps)
    return steps


def test_the_example_of_rfc_7677() -> None:
    steps = exchange("SCRAM-SHA-256", "user", "pencil", NONCE)
    assert next(steps) == f"n,,n=user,r={NONCE}".encode()
    proof = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert steps.send(SERVER_FIRST) == f"c=biws,r={SERVER_NONCE},p={proof}".encode()
    with pytest.raises(StopIteration):
        steps.send(SERVER_FINAL)


def test_sha_512_against_a_server_of_the_formulas() -> None:
    salt, iterations = b"salt of sixteen!", 8192
    steps = exchange("SCRAM-SHA-512", "a=b,c", "pässword")
    client_first = next(steps).decode()
    assert client_first.startswith("n,,n=a=3Db=2Cc,r=")
    nonce = client_first.rpartition("r=")[2] + "more"
    server_first = f"r={nonce},s={b64encode(salt).decode()},i={iterations}"
    client_final = steps.send(server_first.encode()).decode()
    salted = hashlib.pbkdf2_hmac("sha512", "pässword".encode(), salt, iterations)
    bare, _, proof = client_final.rpartition(",p=")
    signed = f"{client_first[3:]},{server_first},{bare}".encode()
    client_key = hmac.digest(salted, b"Client Key", "sha512")
    stored_key = hashlib.sha512(client_key).digest()
    signature = hmac.digest(stored_key, signed, "sha512")
    assert bytes(a ^ b for a, b in zip(b64decode(proof), signature, strict=True)) == client_key
    verifier = hmac.digest(hmac.digest(salted, b"Server Key", "sha512"), signed, "sha512")
    with pytest.raises(StopIteration):
        steps.send(b"v=" + b64encode(verifier))


def test_nonces_differ() -> None:
    assert next(exchange("SCRAM-SHA-256", "u", "p")) != next(exchange("SCRAM-SHA-256", "u", "p"))


@pytest.mark.parametrize(
    ("server_first", "complaint"),
    [
        (SERVER_FIRST.replace(NONCE.encode(), b"x" * 20), "nonce"),
        (f"r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode(), "nonce"),
        (SERVER_FIRST.replace(b"4096", b"4095"), "4095 iterations"),
        (SERVER_FIRST.replace(b"4096", b"999999999"), "999999999 iterations"),
        (SERVER_FIRST.replace(b"i=4096", b"i=-1"), "iterations"),
        (SERVER_FIRST.replace(b"W22ZaJ0SNY7soEsUEjb6gQ==", b"!"), "0 bytes of salt"),
        (b"m=mandatory," + SERVER_FIRST, "extension"),
        (b"", "nonce"),
        (b"\xff\xfe", "not text"),
    ],
)
def test_a_first_answer_that_will_not_do(server_first: bytes, complaint: str) -> None:
    with pytest.raises(AuthenticationFailed, match=complaint):
        begun().send(server_first)


@pytest.mark.parametrize(
    ("server_final", "complaint"),
    [
        (b"e=invalid-proof", "refuses user 'user': invalid-proof"),
        (b"v=" + b64encode(b"\0" * 32), "could not prove"),
        (b"v=", "could not prove"),
        (b"v=%%%", "could not prove"),
        (b"", "could not prove"),
    ],
)
def test_a_broker_that_does_not_know_the_password(server_final: bytes, complaint: str) -> None:
    steps = begun()
    steps.send(SERVER_FIRST)
    with pytest.raises(AuthenticationFailed, match=complaint):
        steps.send(server_final)


def test_plain() -> None:
    steps = exchange("PLAIN", "user", "pass")
    assert next(steps) == b"\0user\0pass"
    with pytest.raises(StopIteration):
        steps.send(b"")
    with pytest.raises(AuthenticationFailed, match="NUL"):
        next(exchange("PLAIN", "us\0er", "pass"))
