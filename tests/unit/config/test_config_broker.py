from __future__ import annotations

import types
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from penstock.config.broker import BrokerConfig
from penstock.config.keys import ConfigType
from penstock.config.listeners import Endpoint, Voter
from penstock.config.settings import BROKER_KEYS
from penstock.config.topic import TOPIC_KEYS
from penstock.model.errors import ConfigError
from penstock.runtime.surroundings import load_config

MINIMAL = "process.roles=broker,controller\nnode.id=7\n"


def write(directory: Path, text: str) -> str:
    path = directory / "server.properties"
    path.write_text(text, encoding="utf-8")
    return str(path)


def load(directory: Path, text: str, **overrides: str) -> BrokerConfig:
    flags = {name.replace("_", "."): value for name, value in overrides.items()}
    config, warnings = BrokerConfig.load(write(directory, MINIMAL + text), flags, environ={"HOME": "/home/u"})
    assert warnings == []
    return config


def refusal(directory: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.load(write(directory, text), {}, environ={"HOME": "/home/u"})
    return str(caught.value)


def test_without_a_file() -> None:
    config, warnings = BrokerConfig.load(None, {}, environ={"HOME": "/home/u"})
    assert warnings == []
    assert config.listeners == (Endpoint("PLAINTEXT", "127.0.0.1", 9092),)
    assert config.node_id == 1
    assert config.log_dir == "/home/u/.local/share/penstock"
    assert config.advertised_listeners == {}
    assert config.log_flush_interval_messages == 1


def test_the_data_directory_honours_xdg() -> None:
    assert BrokerConfig.load(None, {}, environ={"XDG_DATA_HOME": "/d"})[0].log_dir == "/d/penstock"
    config, _ = BrokerConfig.load(None, {}, environ={"XDG_DATA_HOME": "relative", "HOME": "/h"})
    assert config.log_dir == "/h/.local/share/penstock"


def test_a_kraft_file(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        "listeners=PLAINTEXT://:19092,CONTROLLER://localhost:19093\n"
        "controller.listener.names=CONTROLLER\n"
        "controller.quorum.voters=7@localhost:19093\n"
        "advertised.listeners=PLAINTEXT://example.org:9\n"
        "log.dirs=/data/x\nnum.partitions=3\nbroker.rack=r1\nlog.retention.hours=24\n"
        "listener.name.plaintext.max.connections=5\n",
        num_partitions="5",
    )
    assert config.node_id == 7
    assert config.listeners == (Endpoint("PLAINTEXT", "", 19092),)
    assert config.controller_listeners == (Endpoint("CONTROLLER", "localhost", 19093),)
    assert config.advertised_listeners == {"PLAINTEXT": Endpoint("PLAINTEXT", "example.org", 9)}
    assert config.listener_security_protocol_map == {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
    assert config.controller_quorum_voters == (Voter(7, "localhost", 19093),)
    assert config.log_dirs == ("/data/x",)
    assert config.broker_rack == "r1"
    assert config.num_partitions == 5


def test_a_file_without_listeners_has_kafkas_default(tmp_path: Path) -> None:
    assert load(tmp_path, "").listeners == (Endpoint("PLAINTEXT", "", 9092),)


def test_named_listeners_and_ipv6(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        "listeners=inside://[::1]:0,OUTSIDE://0.0.0.0:9092\n"
        "listener.security.protocol.map=INSIDE:PLAINTEXT,outside:PLAINTEXT\n",
    )
    assert config.listeners == (Endpoint("INSIDE", "::1", 0), Endpoint("OUTSIDE", "0.0.0.0", 9092))
    assert str(config.listeners[0]) == "INSIDE://[::1]:0"


def test_flags_replace_their_other_names(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL + "log.dirs=/in/file\n")
    config, _ = BrokerConfig.load(path, {"log.dir": "/flag", "node.id": "8"})
    assert config.log_dir == "/flag"
    assert config.node_id == 8
    assert load_config(path, {"broker.id": "9"})[0].node_id == 9


def test_a_relative_data_directory_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config, _ = load_config(write(tmp_path, MINIMAL + "log.dirs=data\n"))
    assert config.log_dir == str(tmp_path / "data")


@pytest.mark.parametrize(
    ("given", "path"),
    [("~", "/home/u"), ("~/d", "/home/u/d"), ("~other/d", "/w/~other/d"), ("../d", "/d"), ("/d", "/d")],
)
def test_a_data_directory_goes_by_its_surroundings(given: str, path: str) -> None:
    config, _ = BrokerConfig.load(None, {"log.dirs": given}, environ={"HOME": "/home/u"}, working_directory="/w")
    assert config.log_dir == path


def test_unknown_keys_warn_with_a_hint(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL + "num.partition=3\nretention.ms=5\nwhat.is.this=1\n")
    config, warnings = load_config(path, {})
    assert warnings == [
        "unknown setting 'num.partition' ignored: did you mean num.partitions?",
        "unknown setting 'retention.ms' ignored: did you mean log.retention.ms?",
        "unknown setting 'what.is.this' ignored",
    ]
    assert config.num_partitions == 1


REFUSED = [
    ("process.roles=broker,controller", "node.id is not set: add node.id=1 to "),
    (MINIMAL + "broker.id=8", "node.id=7 and broker.id=8 differ: remove broker.id"),
    (MINIMAL + "node.id=-1", "Invalid value -1 for configuration node.id: Value must be at least 0"),
    (MINIMAL + "num.partitions=-5", "Invalid value -5 for configuration num.partitions: Value must be at least 1"),
    (MINIMAL + "process.roles=both", "Invalid value both for configuration process.roles"),
    (MINIMAL + "process.roles=broker", "process.roles=broker is not supported: every node is broker and controller"),
    (MINIMAL + "listeners=127.0.0.1:9092", "listeners: '127.0.0.1:9092' is not an address: write NAME://host:port"),
    (MINIMAL + "listeners=PLAINTEXT://h:x", "listeners: 'PLAINTEXT://h:x' is not an address"),
    (MINIMAL + "listeners=PLAINTEXT://:65536", "listeners: port 65536 of PLAINTEXT is out of range"),
    (MINIMAL + "listeners=PLAINTEXT://:1,plaintext://:2", "listeners: PLAINTEXT is listed twice"),
    (
        MINIMAL + "listeners=PLAINTEXT://:1,B://:1\nlistener.security.protocol.map=PLAINTEXT:PLAINTEXT,B:PLAINTEXT",
        "listeners: two listeners share :1: use different ports",
    ),
    (
        MINIMAL + "listeners=EXTERNAL://:1",
        "listener EXTERNAL has no security protocol: add EXTERNAL:PLAINTEXT to listener.security.protocol.map",
    ),
    (MINIMAL + "listeners=SSL://:1", "listener SSL uses SSL, which is not supported yet: use PLAINTEXT"),
    (MINIMAL + "listeners=SASL_SSL://:1", "listener SASL_SSL uses SASL_SSL, which is not supported yet"),
    (
        MINIMAL + "listeners=C://:1\ncontroller.listener.names=C",
        "listeners: there is no address for clients: add PLAINTEXT://127.0.0.1:9092",
    ),
    (MINIMAL + "listener.security.protocol.map=A:TLS", "listener.security.protocol.map: 'A:TLS' is not NAME:PROTOCOL"),
    (MINIMAL + "advertised.listeners=PLAINTEXT://0.0.0.0:9092", "advertised.listeners: clients cannot connect to 0.0"),
    (MINIMAL + "advertised.listeners=PLAINTEXT://:9092", "advertised.listeners: clients cannot connect to an empty"),
    (MINIMAL + "advertised.listeners=PLAINTEXT://h:0", "advertised.listeners: clients cannot connect to port 0"),
    (MINIMAL + "advertised.listeners=OTHER://h:1", "advertised.listeners: OTHER is not in listeners: use one of PLAIN"),
    (
        MINIMAL + "advertised.listeners=PLAINTEXT://kafka-1..svc:9092",
        "advertised.listeners: 'kafka-1..svc' is not a host name: each part between its dots has 1 to 63 characters",
    ),
    (
        MINIMAL + f"advertised.listeners=PLAINTEXT://{'k' * 64}.svc:9092",
        f"advertised.listeners: '{'k' * 64}.svc' is not a host name",
    ),
    (MINIMAL + "listeners=PLAINTEXT://.svc:9092", "listeners: '.svc' is not a host name"),
    (MINIMAL + "controller.quorum.voters=7@a..b:1", "controller.quorum.voters: 'a..b' is not a host name"),
    (
        MINIMAL + "controller.quorum.bootstrap.servers=a..b:1",
        "controller.quorum.bootstrap.servers: 'a..b' is not a host name",
    ),
    (MINIMAL + "log.dirs=/a,/b", "log.dirs names 2 directories, but only one is supported yet: name one"),
    (MINIMAL + "controller.quorum.voters=7@a:1,7@b:1", "controller.quorum.voters names a node twice"),
    (MINIMAL + "controller.quorum.voters=8@b:1", "controller.quorum.voters names node 8, but node.id is 7"),
    (MINIMAL + "controller.quorum.voters=b:1", "controller.quorum.voters: 'b:1' is not a voter: write id@host:port"),
    (
        MINIMAL + "controller.quorum.bootstrap.servers=localhost:9092,b:1",
        "controller.quorum.bootstrap.servers names this node and others: to form a new cluster, name its voters",
    ),
    (MINIMAL + "controller.quorum.bootstrap.servers=a", "controller.quorum.bootstrap.servers: 'a' is not an address"),
    (MINIMAL + "authorizer.class.name=x.Y", "authorizer.class.name is set, but authorisation is not supported yet"),
    (MINIMAL + "remote.log.storage.system.enable=true", "remote.log.storage.system.enable is true, but"),
    (MINIMAL + "penstock.cluster.id=short", "penstock.cluster.id: 'short' is not a cluster id"),
    (MINIMAL + "listener.name.plaintext.max.connections=-1", "Invalid value -1 for configuration max.connections"),
]


@pytest.mark.parametrize(("text", "sentence"), REFUSED)
def test_a_contradiction_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    message = refusal(tmp_path, text)
    assert message.startswith(sentence)
    assert "\n" not in message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*missing\.properties: No such file or directory"):
        BrokerConfig.load(str(tmp_path / "missing.properties"), {})
    path = tmp_path / "latin.properties"
    path.write_bytes(b"a=\xe9")
    with pytest.raises(ConfigError, match="byte 2 is not UTF-8"):
        load_config(str(path), {})
    assert refusal(tmp_path, "a=\\u1").startswith(str(tmp_path))


def test_dynamic_layers_win_over_the_file(tmp_path: Path) -> None:
    config = load(tmp_path, "message.max.bytes=1000\n")
    assert config.message_max_bytes == 1000
    changed = config.with_dynamic(cluster={"message.max.bytes": "2000"}, broker={})
    assert changed.message_max_bytes == 2000
    changed = changed.with_dynamic(cluster={"message.max.bytes": "2000"}, broker={"message.max.bytes": "3000"})
    assert changed.message_max_bytes == 3000
    assert changed.with_dynamic(cluster={}, broker={}) == config
    with pytest.raises(ConfigError):
        config.with_dynamic(cluster={}, broker={"message.max.bytes": "x"})


PYTHON_TYPES: dict[ConfigType, object] = {
    ConfigType.BOOLEAN: bool,
    ConfigType.STRING: str,
    ConfigType.INT: int,
    ConfigType.SHORT: int,
    ConfigType.LONG: int,
    ConfigType.DOUBLE: float,
    ConfigType.LIST: tuple[str, ...],
}
PARSED_FIELDS = {
    "settings",
    "listeners",
    "controller_listeners",
    "advertised_listeners",
    "listener_security_protocol_map",
    "controller_quorum_voters",
    "penstock_http_listener",
    "penstock_line_listener",
}


def test_fields_have_the_types_of_their_keys() -> None:
    hints = get_type_hints(BrokerConfig)
    for field in BrokerConfig._fields:
        if field in PARSED_FIELDS:
            continue
        hint = hints[field]
        if isinstance(hint, types.UnionType):
            hint = next(part for part in get_args(hint) if part is not type(None))
        assert hint == PYTHON_TYPES[BROKER_KEYS[field.replace("_", ".")].type], field


def test_every_key_with_an_effect_reaches_the_program() -> None:
    reached = {field.replace("_", ".") for field in BrokerConfig._fields}
    reached |= {synonym for key in TOPIC_KEYS.values() if key.effective for synonym in key.synonyms}
    reached |= {"log.dir", "broker.id", "controller.listener.names"}
    assert {name for name, key in BROKER_KEYS.items() if key.effective} <= reached


@pytest.mark.parametrize(
    ("text", "is_clustered"),
    [
        ("", False),
        ("controller.quorum.voters=7@a:1", False),
        ("controller.quorum.voters=7@a:1,8@b:1", True),
        ("controller.quorum.voters=8@b:1,9@c:1", True),
        ("controller.quorum.bootstrap.servers=localhost:9092", False),
        ("controller.quorum.bootstrap.servers=b:9092,c:9092", True),
    ],
)
def test_other_nodes_make_a_cluster(tmp_path: Path, text: str, is_clustered: bool) -> None:
    path = tmp_path / "server.properties"
    path.write_text(MINIMAL + text)
    assert load_config(str(path), {})[0].is_clustered is is_clustered


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("broker.session.timeout.ms=2000", "the interval must be above 0 and shorter than the session timeout"),
        ("broker.heartbeat.interval.ms=0", "the interval must be above 0 and shorter than the session timeout"),
        ("inter.broker.listener.name=INSIDE", "inter.broker.listener.name=INSIDE is not in listeners"),
    ],
)
def test_settings_that_keep_a_node_out_of_its_cluster(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "server.properties"
    path.write_text(f"{MINIMAL}{text}\n")
    assert not load_config(str(path), {})[0].is_clustered  # alone they do no harm
    path.write_text(f"{MINIMAL}{text}\ncontroller.quorum.voters=7@a:1,8@b:1\n")
    with pytest.raises(ConfigError, match=sentence):
        load_config(str(path), {})
