from __future__ import annotations

import re

import pytest
from starlette.datastructures import Headers

from penstock.gateway.http.local_callers import Callers, LocalCallers, is_loopback


async def nothing(*_: object) -> None:
    raise AssertionError("nobody calls it")


CALLERS = LocalCallers(nothing, Callers(["", "Proxy.Example"], ["https://Dash.example:8443/"]))


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:80", "localhost.:1", "a.localhost", "127.9.9.9", "[::1]:8082"]
)
def test_names_of_this_machine(host: str) -> None:
    assert CALLERS.refusal(Headers({"host": host, "origin": f"http://{host}"})) is None


def test_a_name_that_is_allowed() -> None:
    assert CALLERS.refusal(Headers({"host": "proxy.example:443", "origin": "https://PROXY.example"})) is None


def test_programs_send_no_origin_and_old_ones_no_host() -> None:
    assert CALLERS.refusal(Headers({})) is None


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "[::2]", "[::1", "a b", "@"],
)
def test_names_of_others(host: str) -> None:
    assert "Host" in (CALLERS.refusal(Headers({"host": host})) or "")
    assert "Origin" in (CALLERS.refusal(Headers({"origin": f"http://{host}"})) or "")


@pytest.mark.parametrize("origin", ["null", "file://", "localhost", "http://[", "http://localhost@evil.example"])
def test_origins_of_others(origin: str) -> None:
    assert "Origin" in (CALLERS.refusal(Headers({"host": "localhost", "origin": origin})) or "")


def test_loopback_addresses() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "::1")))
    assert not any(map(is_loopback, ("", "0.0.0.0", "::", "10.0.0.1", "fe80::1%eth0", "localhost")))


def test_an_origin_that_is_allowed() -> None:
    assert CALLERS.refusal(Headers({"host": "localhost", "origin": "https://dash.example:8443"})) is None
    assert CALLERS.refusal(Headers({"host": "localhost", "origin": "https://dash.example"})) is not None
    everybody = LocalCallers(nothing, Callers([], ["*"]))
    assert everybody.refusal(Headers({"host": "localhost", "origin": "https://evil.example"})) is None
    assert everybody.refusal(Headers({"host": "evil.example"})) is not None


@pytest.mark.parametrize(
    ("origin", "is_local"),
    [
        ("http://localhost:3000", True),
        ("https://LOCALHOST", True),
        ("http://app.localhost", True),
        ("http://127.0.0.1:5173", True),
        ("http://[::1]:80", True),
        ("http://proxy.example", True),
        ("http://localhost.evil.example", False),
        ("http://127.0.0.1.evil.example", False),
        ("http://proxyXexample", False),
        ("null", False),
    ],
)
def test_pages_of_this_machine_may_read_the_answers(origin: str, is_local: bool) -> None:
    pattern = Callers(["Proxy.Example"]).local_origins()
    assert (re.fullmatch(pattern, origin) is not None) == is_local
