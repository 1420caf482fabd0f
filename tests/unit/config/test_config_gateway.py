from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config.broker import BrokerConfig
from penstock.config.gateway import HTTP_LISTENER, LINE_LISTENER
from penstock.config.listeners import Endpoint
from penstock.model.errors import ConfigError


def listeners(path: str | None = None, **overrides: str) -> tuple[Endpoint | None, Endpoint | None]:
    given = {f"penstock.{name}.listener": text for name, text in overrides.items()}
    config, warnings = BrokerConfig.load(path, given, environ={"HOME": "/home/x"})
    assert warnings == []
    return config.penstock_http_listener, config.penstock_line_listener


def test_without_a_file_both_are_open_on_this_machine_only() -> None:
    assert listeners() == (Endpoint("HTTP", "127.0.0.1", 8082), Endpoint("LINE", "127.0.0.1", 9099))


def test_settings_move_and_close_them() -> None:
    assert listeners(http=":80", line="") == (Endpoint("HTTP", "", 80), None)
    assert listeners(http="[::1]:8082", line="host:0") == (Endpoint("HTTP", "::1", 8082), Endpoint("LINE", "host", 0))


def test_a_file_opens_what_it_names(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("node.id=1\nlog.dirs=/tmp/x\n")
    assert listeners(str(file)) == (None, None)
    file.write_text(f"node.id=1\nlog.dirs=/tmp/x\n{LINE_LISTENER}=0.0.0.0:9099\n")
    assert listeners(str(file)) == (None, Endpoint("LINE", "0.0.0.0", 9099))


def origins(text: str) -> tuple[str, ...]:
    given = {"penstock.http.allowed.origins": text}
    return BrokerConfig.load(None, given, environ={"HOME": "/home/x"})[0].penstock_http_allowed_origins


@pytest.mark.parametrize(
    "text", ["*", "https://dash.example.org", "http://a:3000/", "http://[::1]:80", "null", "app://obsidian.md", ""]
)
def test_origins_as_browsers_send_them(text: str) -> None:
    assert origins(text) == ((text,) if text else ())


@pytest.mark.parametrize(
    "text", ["dash.example.org", "a:3000", "https://a/b", "https://", "https://*.a", "https://a:b"]
)
def test_what_no_browser_sends_as_an_origin(text: str) -> None:
    with pytest.raises(ConfigError, match="write scheme://host or scheme://host:port") as refused:
        origins(f"https://dash.example.org,{text}")
    assert f"penstock.http.allowed.origins: '{text}' is not an origin" in str(refused.value)


@pytest.mark.parametrize("text", ["8082", "host", "host:port", "host:99999", "http://host:80", "::1:80", "a b:80"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError, match=HTTP_LISTENER):
        listeners(http=text)
