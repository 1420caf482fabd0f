"""The broker's configuration: read from a properties file and flags, checked once, typed.

`BrokerConfig` is what the rest of the program uses: immutable, with fields named after
Kafka's keys. It is a named tuple because defining a wide dataclass takes milliseconds at
every start. Must not know: sockets, disks, existing topics. Invariant: a `BrokerConfig`
has been validated as a whole; contradictory settings raise ConfigError with one sentence.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from penstock.config.gateway import (
    ALLOWED_ORIGINS,
    HTTP_LISTENER,
    LINE_LISTENER,
    OPEN_WITHOUT_FILE,
    check_origins,
    parse_endpoint,
)
from penstock.config.keys import split_list
from penstock.config.listeners import (
    Endpoint,
    Voter,
    assemble_listeners,
    parse_address,
    parse_protocol_map,
    parse_voters,
)
from penstock.config.properties import parse_properties
from penstock.config.settings import BROKER_KEYS, Settings, broker_key, listener_override
from penstock.model.errors import ConfigError

# Added to the defaults when `penstock start` runs without a file: reachable from this machine only.
_WITHOUT_FILE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    **OPEN_WITHOUT_FILE,
}
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
# A flag for the key on the left replaces the key on the right in the file.
_OVERRIDE_DROPS = {"log.dir": "log.dirs", "broker.id": "node.id", "node.id": "broker.id"}


class BrokerConfig(NamedTuple):
    """Typed values of the settings the broker uses; all others are in `settings`."""

    settings: Settings

    # The node and its addresses
    node_id: int
    process_roles: tuple[str, ...]
    broker_rack: str | None
    log_dirs: tuple[str, ...]
    """Exactly one absolute path."""
    listeners: tuple[Endpoint, ...]
    """Listeners for clients."""
    controller_listeners: tuple[Endpoint, ...]
    """Listeners for other nodes; they serve the same protocol."""
    advertised_listeners: Mapping[str, Endpoint]
    """By listener name; a listener without an entry advertises the address the client used."""
    listener_security_protocol_map: Mapping[str, str]
    """By name, for the listeners in use."""
    controller_quorum_voters: tuple[Voter, ...]
    controller_quorum_bootstrap_servers: tuple[str, ...]

    # The cluster
    auto_leader_rebalance_enable: bool
    broker_heartbeat_interval_ms: int
    broker_session_timeout_ms: int
    controlled_shutdown_enable: bool
    controller_quorum_election_timeout_ms: int
    follower_replication_throttled_rate: int
    inter_broker_listener_name: str | None
    leader_imbalance_check_interval_seconds: int
    leader_replication_throttled_rate: int
    metadata_log_max_record_bytes_between_snapshots: int
    replica_fetch_backoff_ms: int
    replica_fetch_max_bytes: int
    replica_fetch_min_bytes: int
    replica_fetch_response_max_bytes: int
    replica_fetch_wait_max_ms: int
    replica_lag_time_max_ms: int
    replica_selector_class: str | None
    replica_socket_timeout_ms: int
    unclean_leader_election_enable: bool

    # Connections and requests
    socket_listen_backlog_size: int
    socket_receive_buffer_bytes: int
    socket_send_buffer_bytes: int
    socket_request_max_bytes: int
    connections_max_idle_ms: int
    max_connections: int
    max_connections_per_ip: int
    max_connection_creation_rate: int
    queued_max_requests: int
    queued_max_request_bytes: int
    fetch_max_bytes: int
    max_incremental_fetch_session_cache_slots: int
    max_request_partition_size_limit: int

    # Topics
    num_partitions: int
    default_replication_factor: int
    auto_create_topics_enable: bool
    delete_topic_enable: bool

    # All logs; defaults of topic settings are in `TopicConfig`
    message_max_bytes: int
    compression_type: str
    log_cleaner_backoff_ms: int
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_enable: bool
    log_cleaner_io_buffer_load_factor: float
    log_cleaner_io_max_bytes_per_second: float
    log_flush_interval_messages: int
    log_flush_interval_ms: int
    log_flush_scheduler_interval_ms: int
    log_flush_offset_checkpoint_interval_ms: int
    log_flush_start_offset_checkpoint_interval_ms: int
    log_initial_task_delay_ms: int
    log_retention_check_interval_ms: int
    log_segment_delete_delay_ms: int
    num_recovery_threads_per_data_dir: int
    producer_id_expiration_ms: int
    producer_id_expiration_check_interval_ms: int
    replica_high_watermark_checkpoint_interval_ms: int

    # Groups and transactions
    add_partitions_to_txn_retry_backoff_ms: int
    add_partitions_to_txn_retry_backoff_max_ms: int
    group_initial_rebalance_delay_ms: int
    group_min_session_timeout_ms: int
    group_max_session_timeout_ms: int
    group_max_size: int
    group_consumer_assignors: tuple[str, ...]
    group_consumer_heartbeat_interval_ms: int
    group_consumer_session_timeout_ms: int
    group_consumer_max_size: int
    offset_metadata_max_bytes: int
    offsets_commit_timeout_ms: int
    offsets_retention_check_interval_ms: int
    offsets_retention_minutes: int
    offsets_topic_num_partitions: int
    offsets_topic_replication_factor: int
    offsets_topic_segment_bytes: int
    transaction_max_timeout_ms: int
    transactional_id_expiration_ms: int
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int
    transaction_partition_verification_enable: bool
    transaction_remove_expired_transaction_cleanup_interval_ms: int
    transaction_state_log_num_partitions: int
    transaction_state_log_replication_factor: int
    transaction_state_log_segment_bytes: int
    transaction_state_log_min_isr: int
    transaction_two_phase_commit_enable: bool

    # Penstock's own settings
    penstock_broker_lost_grace_ms: int
    penstock_cluster_id: str | None
    penstock_cluster_secret_file: str | None
    penstock_disk_hung_ms: int
    penstock_flush_threads: int
    penstock_gateway_max_idle_ms: int
    penstock_gateway_request_timeout_ms: int
    penstock_group_heartbeat_hold_ms: int
    penstock_group_rebalance_settle_ms: int
    penstock_http_allowed_hosts: tuple[str, ...]
    penstock_http_allowed_origins: tuple[str, ...]
    penstock_http_listener: Endpoint | None
    penstock_line_listener: Endpoint | None
    penstock_log_format: str
    penstock_loop_stall_ms: int
    penstock_requests_in_flight_per_connection: int
    penstock_shutdown_drain_ms: int
    penstock_voter_never_voted: str | None

    @property
    def log_dir(self) -> str:
        return self.log_dirs[0]

    @property
    def peer_listeners(self) -> tuple[Endpoint, ...]:
        """Listeners for other nodes, the advertised one first: the controller listeners, then the inter-broker
        listener, which is the first listener unless it is named."""
        name = self.inter_broker_listener_name
        named = [endpoint for endpoint in self.listeners if name and endpoint.name == name.upper()]
        between_brokers = named[0] if named else self.listeners[0]
        return (*self.controller_listeners, between_brokers)

    @property
    def is_clustered(self) -> bool:
        """Whether the settings name other nodes. Otherwise this node is the whole cluster."""
        others = any(voter.node_id != self.node_id for voter in self.controller_quorum_voters)
        return others or bool(self.bootstrap_addresses)

    @property
    def bootstrap_addresses(self) -> list[tuple[str, int]]:
        """controller.quorum.bootstrap.servers without this node: Kafka's example file names the node itself."""
        own = {(endpoint.host, endpoint.port) for endpoint in (*self.listeners, *self.controller_listeners)}
        ports = {port for _, port in own}
        addresses = [parse_address(server) for server in self.controller_quorum_bootstrap_servers]
        return [
            (host, port)
            for host, port in addresses
            if (host, port) not in own and not (host in _THIS_MACHINE and port in ports)
        ]

    @classmethod
    def load(
        cls,
        path: str | None = None,
        overrides: Mapping[str, str] | None = None,
        *,
        environ: Mapping[str, str] = MappingProxyType({}),
        working_directory: str = "/",
        source: str = "from --set",
        strict: bool = False,
    ) -> tuple[BrokerConfig, list[str]]:
        """Read a properties file (or none) and flags; flags win. Also returns warnings about ignored settings.

        `environ` and `working_directory` resolve a relative data directory, `~` and the default directory; a process
        takes both from `runtime.surroundings`. `source`: the origin of `overrides`, for error messages. `strict`
        refuses unknown names instead of warning.
        """
        overrides = overrides or {}
        given = dict(_WITHOUT_FILE) if path is None else _read_file(path)
        for name in overrides:
            given.pop(_OVERRIDE_DROPS.get(name, ""), None)
        given.update(overrides)
        static = {name: text for name, text in given.items() if name in BROKER_KEYS or listener_override(name)}
        warnings = [_unknown(name, "" if strict else " ignored") for name in given if name not in static]
        if strict and warnings:
            raise ConfigError(warnings[0])
        _check_values(static, overrides, source, f"in {path}")
        _settle_node_id(static, path)
        if not static.get("log.dirs"):
            static["log.dirs"] = static.get("log.dir") or _data_directory(environ)
        directories = split_list(static["log.dirs"])
        static["log.dirs"] = ",".join(_absolute(one, environ, working_directory) for one in directories)
        return cls.from_settings(Settings({}, {}, static)), warnings

    @classmethod
    def from_settings(cls, settings: Settings) -> BrokerConfig:
        """Check the settings against each other. Each field is named after its key, with _ for the dots."""
        _refuse_what_is_missing(settings)
        fields: dict[str, Any] = {"settings": settings, **_node(settings), **_listeners(settings)}
        for field in cls._fields:
            if field not in fields:
                names, unit = _sources(field)
                fields[field] = settings.first_value(names, unit=unit)
        config = cls(**fields)
        _check_bootstrap(config)
        if config.is_clustered:
            _check_membership(config)
        return config

    def with_dynamic(self, *, cluster: Mapping[str, str], broker: Mapping[str, str]) -> BrokerConfig:
        """Return the configuration of the same file with other dynamic settings."""
        return BrokerConfig.from_settings(Settings(dict(broker), dict(cluster), self.settings.static))


@cache
def _sources(field: str) -> tuple[tuple[str, ...], str]:
    """The keys that supply the field's value, nearest first, and its unit."""
    key = BROKER_KEYS[field.replace("_", ".")]
    return (key.name, *key.synonyms), key.unit


def _read_file(path: str) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read {path}: byte {error.start} is not UTF-8") from error
    try:
        return parse_properties(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _settle_node_id(static: dict[str, str], path: str | None) -> None:
    """Make node.id and its older name broker.id equal, as Kafka's DescribeConfigs shows them."""
    node_id = static.get("node.id")
    broker_id = static.get("broker.id")
    if node_id is None and broker_id is None:
        raise ConfigError(f"node.id is not set: add node.id=1 to {path}")
    if node_id is not None and broker_id is not None and node_id.strip() != broker_id.strip():
        raise ConfigError(f"node.id={node_id} and broker.id={broker_id} differ: remove broker.id")
    static["node.id"] = static["broker.id"] = node_id or broker_id or ""


def _check_values(static: Mapping[str, str], overrides: Mapping[str, str], source: str, file: str) -> None:
    """Checked here and not in `Settings`, because only this code knows where a value was written."""
    for name, text in static.items():
        try:
            broker_key(name).parse(text)
        except ConfigError as error:
            raise ConfigError(f"{error} ({source if name in overrides else file})") from None


def _absolute(path: str, environ: Mapping[str, str], working_directory: str) -> str:
    home = environ.get("HOME", "")
    if home and (path == "~" or path.startswith("~/")):
        path = home + path[1:]
    return posixpath.normpath(posixpath.join(working_directory, path))


def _data_directory(environ: Mapping[str, str]) -> str:
    base = environ.get("XDG_DATA_HOME", "")
    if not posixpath.isabs(base):
        # The XDG rules: a relative path counts as unset.
        home = environ.get("HOME")
        if not home:
            raise ConfigError(
                "there is no default data directory, because neither HOME nor XDG_DATA_HOME is set: "
                "name one with --data or log.dirs"
            )
        base = posixpath.join(home, ".local", "share")
    return posixpath.join(base, "penstock")


def _unknown(name: str, outcome: str) -> str:
    # Imported here so that only a file with unknown settings pays for it.
    from difflib import get_close_matches

    from penstock.config.topic_keys import TOPIC_SYNONYMS

    sentence = f"unknown setting '{name}'{outcome}"
    if name.startswith("zookeeper."):
        return f"{sentence}: ZooKeeper is not used, as in Kafka 4; metadata is in the data directory"
    near = TOPIC_SYNONYMS[name].split()[:1] if name in TOPIC_SYNONYMS else get_close_matches(name, BROKER_KEYS, 1, 0.8)
    return f"{sentence}: did you mean {near[0]}?" if near else sentence


def _refuse_what_is_missing(settings: Settings) -> None:
    """Refuse settings whose missing feature would leave a node less safe than its owner believes."""
    if settings.value("authorizer.class.name"):
        raise ConfigError("authorizer.class.name is set, but authorisation is not supported yet: remove it")
    if settings.value("remote.log.storage.system.enable"):
        raise ConfigError(
            "remote.log.storage.system.enable is true, but remote storage is not supported yet: remove it"
        )


def _node(settings: Settings) -> dict[str, Any]:
    node_id = cast(int, settings.value("node.id"))
    roles = cast(tuple[str, ...], settings.value("process.roles"))
    if set(roles) != {"broker", "controller"}:
        raise ConfigError(
            f"process.roles={','.join(roles)} is not supported: every node is broker and controller, "
            "use process.roles=broker,controller"
        )
    voters = parse_voters(cast(tuple[str, ...], settings.value("controller.quorum.voters")))
    if len({voter.node_id for voter in voters}) != len(voters):
        raise ConfigError("controller.quorum.voters names a node twice: give each voter its own id")
    if len(voters) == 1 and voters[0].node_id != node_id and not settings.value("controller.quorum.bootstrap.servers"):
        raise ConfigError(
            f"controller.quorum.voters names node {voters[0].node_id}, but node.id is {node_id}: use the same number, "
            "or name the cluster to join in controller.quorum.bootstrap.servers"
        )
    log_dirs = cast(tuple[str, ...], settings.value("log.dirs") or settings.value("log.dir"))
    if len(log_dirs) != 1:
        raise ConfigError(f"log.dirs names {len(log_dirs)} directories, but only one is supported yet: name one")
    cluster_id = cast("str | None", settings.value("penstock.cluster.id"))
    if cluster_id is not None and not re.fullmatch(r"[A-Za-z0-9_-]{22}", cluster_id):
        raise ConfigError(
            f"penstock.cluster.id: '{cluster_id}' is not a cluster id: use 22 characters of URL-safe base64"
        )
    bootstrap = cast(tuple[str, ...], settings.value("controller.quorum.bootstrap.servers"))
    for server in bootstrap:
        parse_address(server)
    return {
        "controller_quorum_voters": voters,
        "log_dirs": log_dirs,
    }


def _check_bootstrap(config: BrokerConfig) -> None:
    """The settings must say plainly whether a node forms a new cluster or joins one."""
    named = len(config.controller_quorum_bootstrap_servers)
    others = len(config.bootstrap_addresses)
    if 0 < others < named and not config.controller_quorum_voters:
        raise ConfigError(
            "controller.quorum.bootstrap.servers names this node and others: to form a new cluster, name its voters in "
            "controller.quorum.voters; to join a cluster, name only other nodes"
        )


def _check_membership(config: BrokerConfig) -> None:
    """Refuse settings that would get a broker fenced repeatedly or leave it unreachable."""
    interval_ms, timeout_ms = config.broker_heartbeat_interval_ms, config.broker_session_timeout_ms
    if not 0 < interval_ms < timeout_ms:
        raise ConfigError(
            f"broker.heartbeat.interval.ms={interval_ms} and broker.session.timeout.ms={timeout_ms}: "
            "the interval must be above 0 and shorter than the session timeout"
        )
    name = config.inter_broker_listener_name
    names = [endpoint.name for endpoint in config.listeners]
    if name and name.upper() not in names:
        raise ConfigError(f"inter.broker.listener.name={name} is not in listeners: use one of {', '.join(names)}")


def _listeners(settings: Settings) -> dict[str, Any]:
    name = "listener.security.protocol.map"
    listeners = assemble_listeners(
        cast(tuple[str, ...], settings.value("listeners")),
        cast("tuple[str, ...] | None", settings.value("advertised.listeners")) or (),
        cast(tuple[str, ...], settings.value("controller.listener.names")),
        parse_protocol_map(cast(str, settings.value(name))),
        protocols_given=any(name in layer for layer in (settings.broker_dynamic, settings.static)),
    )
    check_origins(cast(tuple[str, ...], settings.value(ALLOWED_ORIGINS)))
    return {
        "listeners": listeners.broker,
        "controller_listeners": listeners.controller,
        "advertised_listeners": listeners.advertised,
        "listener_security_protocol_map": listeners.security_protocols,
        "penstock_http_listener": parse_endpoint(HTTP_LISTENER, cast("str | None", settings.value(HTTP_LISTENER))),
        "penstock_line_listener": parse_endpoint(LINE_LISTENER, cast("str | None", settings.value(LINE_LISTENER))),
    }
