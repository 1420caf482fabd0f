"""Addresses of bootstrap servers, in the one way in which all clients of this project read them."""

from __future__ import annotations

import pytest

from penstock.model.addresses import parse_server


@pytest.mark.parametrize(
    ("server", "address"),
    [
        ("a", ("a", 9092)),
        (" a:1 ", ("a", 1)),
        ("PLAINTEXT://a:65535", ("a", 65535)),
        ("[::1]:7", ("::1", 7)),
        ("[::1]", ("::1", 9092)),
    ],
)
def test_addresses(server: str, address: tuple[str, int]) -> None:
    assert parse_server(server) == address


@pytest.mark.parametrize(
    "server", ["", ":9092", "PLAINTEXT://:1", "[]:1", "a:", "a:0", "a:65536", "a:x", "a:²", "a:-1"]
)
def test_what_is_none(server: str) -> None:
    assert parse_server(server) is None
