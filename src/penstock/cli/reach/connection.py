"""How a command finds its cluster, and the error when no broker answers.

The address comes from `--bootstrap-server`, then PENSTOCK_BOOTSTRAP_SERVERS, then localhost:9092. A command first tries
the address with a plain socket and one small request: librdkafka would keep trying and could not say in one sentence
what is wrong. A command imports the client library only when it needs it; help and completion do not.
"""

from __future__ import annotations

import functools
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar

import click
from click.shell_completion import CompletionItem

from penstock.cli.arguments.numbers import Seconds
from penstock.cli.reach.probe import ABOUT_THE_CLUSTER, FRAME_LIMIT, METADATA_VERSION, frame
from penstock.model.addresses import parse_server
from penstock.model.errors import ApiError, ConfigError, ErrorCode, PenstockError
from penstock.wire.apis import Api
from penstock.wire_client.requests.versions import versions_request

if TYPE_CHECKING:
    from penstock.sdk import BlockingAdmin

P = ParamSpec("P")
R = TypeVar("R")

BOOTSTRAP_VARIABLE = "PENSTOCK_BOOTSTRAP_SERVERS"
DEFAULT_BOOTSTRAP_SERVERS = "localhost:9092"
DEFAULT_PORT = 9092
CONNECT_TIMEOUT_S = 3.0
HEAD_START_S = 0.3
COMPLETION_TIMEOUT_S = 2.0
IMPATIENT_AFTER_S = 1.0


HANGS = "it accepts connections but does not answer"
STUCK = "The broker process is stopped or hangs: resume or restart it."
START_ONE = "start one with `penstock start`"


class NoBroker(PenstockError):
    def __init__(self, servers: str, reason: str = "", advice: str = START_ONE) -> None:
        why = f" ({reason})" if reason else ""
        super().__init__(f"no broker answers at {servers}{why}: {advice}, or give another --bootstrap-server")


WRONG_PORT = (
    "Is this the port of the REST proxy (8082), of the line protocol (9099) or of a TLS listener? Kafka clients use "
    "9092 by default."
)


class AnotherProtocol(PenstockError):
    def __init__(self, address: str) -> None:
        super().__init__(
            f"the server at {address} does not speak Kafka's protocol. {WRONG_PORT} `penstock doctor` shows more"
        )


CLOSED_AT_ONCE = "closed the connection at once. It may have too many connections: see its log"


class ClosedAtOnce(PenstockError):
    def __init__(self, address: str) -> None:
        super().__init__(f"{address} {CLOSED_AT_ONCE}")


STARTING = "is starting or cut off: it cannot reach the other nodes of its cluster"
START_OTHERS = "Start the other nodes; its log names them. A majority of the voters must be up."


class Starting(PenstockError):
    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"{host}:{port} {STARTING}. {START_OTHERS.removesuffix('.')}")
        self.address = (host, port)


@dataclass(frozen=True)
class Target:
    """The cluster a command talks to."""

    servers: str
    source: str
    """The origin of `servers`: an option, the environment or the default."""
    timeout_s: float = 15.0
    settings: dict[str, object] = field(default_factory=dict)

    @classmethod
    def find(cls, option: str | None, timeout_s: float = 15.0, settings: dict[str, object] | None = None) -> Target:
        settings = dict(settings or {})
        named = settings.pop("bootstrap.servers", None)
        if option is not None:
            return cls(option, "--bootstrap-server", timeout_s, settings)
        if named:
            return cls(str(named), "--command-config", timeout_s, settings)
        if os.environ.get(BOOTSTRAP_VARIABLE):
            return cls(os.environ[BOOTSTRAP_VARIABLE], BOOTSTRAP_VARIABLE, timeout_s, settings)
        return cls(DEFAULT_BOOTSTRAP_SERVERS, "default", timeout_s, settings)

    def addresses(self) -> list[tuple[str, int]]:
        """At least one. Raises ConfigError."""
        found = [split_address(server) for server in self.servers.split(",") if server.strip()]
        if not found:
            raise _not_an_address(self.servers)
        return found

    def check(self) -> tuple[str, int]:
        """The first address where a broker serves clients. Raises PenstockError if there is none.

        The addresses are tried in their order. If one does not answer within a moment, the next one is tried as well:
        a broker that hangs must not use up the time of the others.
        """
        addresses = self.addresses()
        waiting = list(dict.fromkeys(addresses))
        answers: SimpleQueue[tuple[tuple[str, int], str | PenstockError]] = SimpleQueue()

        def ask(host: str, port: int) -> None:
            answers.put(((host, port), self._try(host, port)))

        found: dict[tuple[str, int], str | PenstockError] = {}
        while len(found) < len(set(addresses)):
            if waiting:
                # A daemon thread: the command does not wait for answers that it no longer needs.
                threading.Thread(target=ask, args=waiting.pop(0), daemon=True).start()
            try:
                at, one = answers.get(timeout=HEAD_START_S if waiting else None)
            except Empty:
                continue
            if not one:
                return at
            found[at] = one
        strangers = [one for one in map(found.get, addresses) if isinstance(one, PenstockError)]
        if strangers:  # a node of the cluster first, then whatever else listens
            raise min(strangers, key=lambda one: isinstance(one, AnotherProtocol))
        reasons = {f"{host}:{port}": str(found[host, port]) for host, port in addresses}
        hangs = any(why.startswith(HANGS) for why in reasons.values())
        advice = "the broker process is stopped or hangs: restart it" if hangs else START_ONE
        raise NoBroker(self.servers, _summary(reasons), advice)

    def serving(self) -> str | None:
        """The broker to connect to first; None if the command cannot tell which brokers are starting.

        A client library that first reaches a starting broker would take it for the whole cluster.
        """
        host, port = self.check()
        if not self._can_tell_who_is_starting():
            return None
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _can_tell_who_is_starting(self) -> bool:
        """Whether the check works: it speaks neither TLS nor SASL."""
        protocol = str(self.settings.get("security.protocol", "")).lower()
        return "ssl" not in protocol and "sasl" not in protocol

    def _try(self, host: str, port: int) -> str | PenstockError:
        """Empty if a broker serves clients there, else the reason."""
        protocol = str(self.settings.get("security.protocol", "")).lower()
        problem = connect_problem(host, port)
        if problem or "ssl" in protocol:
            return problem
        answer = ask_api_versions(host, port, self.timeout_s)
        if answer == "nothing":
            return f"{HANGS} for {self.timeout_s:g} s"
        if answer == "closed":
            return ClosedAtOnce(f"{host}:{port}")
        if answer == "other":
            return AnotherProtocol(f"{host}:{port}")
        return Starting(host, port) if self._can_tell_who_is_starting() and is_starting(host, port) else ""

    def admin(self) -> BlockingAdmin:
        from penstock.sdk import BadSetting, BlockingAdmin

        try:
            return BlockingAdmin(
                self.servers,
                timeout_s=self.timeout_s,
                client_id="penstock-cli",
                begin_with=self.serving(),
                settings=self.settings,
            )
        except BadSetting as error:
            raise ConfigError(f"{error}: correct the file of --command-config") from error

    def silence(self) -> NoBroker:
        """The error if brokers accept connections but the client cannot talk to them."""
        protocol = str(self.settings.get("security.protocol", "PLAINTEXT")).upper()
        if protocol == "PLAINTEXT":
            return NoBroker(self.servers)
        advice = "check security.protocol and the other settings in the file of --command-config"
        return NoBroker(self.servers, f"by {protocol}", advice)


REFUSED = "connection refused"
NO_PARTITION = " has no partition "  # as in the client's sentence "topic 'orders' has no partition 7"


def _summary(reasons: dict[str, str]) -> str:
    """Empty if all addresses refuse the connection: the error needs no reason then."""
    different = set(reasons.values())
    if different <= {REFUSED}:
        return ""
    return different.pop() if len(different) == 1 else "; ".join(f"{at}: {why}" for at, why in reasons.items())


def connect_problem(host: str, port: int, timeout_s: float = CONNECT_TIMEOUT_S) -> str:
    """Empty when a TCP connection opens, else the reason."""
    try:
        socket.create_connection((host, port), timeout_s).close()
    except (socket.gaierror, UnicodeError):  # UnicodeError: a part of the name is empty or too long
        return f"the name {host} does not resolve"
    except TimeoutError:
        return f"no answer from {host} within {timeout_s:g} s"
    except ConnectionRefusedError:
        return REFUSED
    except ConnectionResetError:
        return ""  # closed as soon as it was open: the next request reports it
    except OSError as error:
        return error.strerror or str(error)
    return ""


def ask_api_versions(host: str, port: int, timeout_s: float) -> Literal["kafka", "other", "closed", "nothing"]:
    """Whether the server answers as a broker does. A server that waits for a line end gets one, so that it answers."""
    deadline = time.monotonic() + timeout_s
    answer = b""
    is_impatient = False
    try:
        with socket.create_connection((host, port), CONNECT_TIMEOUT_S) as connection:
            connection.sendall(frame(Api.API_VERSIONS, 0, versions_request()))
            connection.settimeout(min(IMPATIENT_AFTER_S, timeout_s))
            while len(answer) < 8:
                try:
                    piece = connection.recv(8 - len(answer))
                except TimeoutError:
                    if is_impatient:
                        return "nothing"
                    is_impatient = True
                    connection.sendall(b"\r\n\r\n")
                    connection.settimeout(max(0.1, deadline - time.monotonic()))
                    continue
                if not piece:
                    return "other" if answer or is_impatient else "closed"
                answer += piece
    except ConnectionError:
        return "other" if answer or is_impatient else "closed"
    except OSError:
        return "other"
    size, correlation_id = struct.unpack(">ii", answer)
    return "kafka" if 0 < size <= FRAME_LIMIT and correlation_id == 1 else "other"


def is_starting(host: str, port: int) -> bool:
    """Whether the broker closes the connection on a metadata request: it is not, or no longer, part of its cluster."""
    try:
        with socket.create_connection((host, port), CONNECT_TIMEOUT_S) as connection:
            connection.sendall(frame(Api.METADATA, METADATA_VERSION, ABOUT_THE_CLUSTER))
            return not connection.recv(1)
    except ConnectionError:
        return True
    except OSError:
        return False  # no answer in time: the next request reports it


def split_address(server: str) -> tuple[str, int]:
    address = parse_server(server)
    if address is None:
        raise _not_an_address(server)
    return address


def _not_an_address(text: str) -> ConfigError:
    return ConfigError(f"{text!r} is not a broker address: write HOST:PORT, for example localhost:9092")


def cluster_command(command: Callable[Concatenate[Target, P], R]) -> Callable[..., R]:
    """Adds the connection options to a command, and passes the `Target` to it."""

    @click.option(
        "--bootstrap-server",
        "servers",
        metavar="HOST:PORT[,...]",
        help=f"Addresses of brokers (default: ${BOOTSTRAP_VARIABLE}, else {DEFAULT_BOOTSTRAP_SERVERS}).",
    )
    @click.option(
        "--command-config", metavar="FILE", help="Properties file with client settings, for example for TLS or SASL."
    )
    @click.option(
        "--timeout",
        "timeout_s",
        type=Seconds(),
        default=15.0,
        show_default=True,
        help="Seconds to wait for an answer.",
    )
    @functools.wraps(command)
    def run(*args: Any, servers: str | None, command_config: str | None, timeout_s: float, **kwargs: Any) -> R:
        target = Target.find(servers, timeout_s, client_settings(command_config))
        try:
            return command(target, *args, **kwargs)
        except NoBroker:
            raise
        except PenstockError as error:
            from penstock.cli.reach.no_controller import no_controller
            from penstock.sdk import TimedOut, UnknownGroup, UnknownTopic, Unreachable
            from penstock.wire_client.requests.errors import NoSuchTopic

            without_controller = no_controller(target, error)
            if without_controller is not None:
                raise without_controller from error
            if isinstance(error, Unreachable):
                raise target.silence() from error
            if isinstance(error, TimedOut):
                raise PenstockError(f"{error}: `penstock doctor` may show why, --timeout gives it longer") from error
            if isinstance(error, NoSuchTopic) and NO_PARTITION in str(error):
                raise PenstockError(f"{error}; `penstock topics describe` shows the partitions of a topic") from error
            if isinstance(error, UnknownTopic | NoSuchTopic):
                raise PenstockError(f"{error}; `penstock topics list` shows all topics") from error
            if isinstance(error, UnknownGroup):
                raise PenstockError(f"{error}; `penstock groups list` shows all groups") from error
            if isinstance(error, ApiError) and error.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise PenstockError(f"{error}; `penstock transactions list` shows all") from error
            raise

    return run


def json_option(command: Callable[P, R]) -> Callable[P, R]:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def client_settings(path: str | None) -> dict[str, object]:
    """Of a properties file. Raises ConfigError."""
    if path is None:
        return {}
    from penstock.config.properties import parse_properties

    try:
        with open(path, encoding="utf-8") as file:
            return dict(parse_properties(file.read()))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a UTF-8 text file: write NAME=VALUE on each line") from error


# -- completion ----------------------------------------------------------------------------------------------


def complete_topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _complete(ctx, incomplete, lambda admin: [topic.name for topic in admin.topics() if not topic.is_internal])


def complete_groups(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _complete(ctx, incomplete, lambda admin: [group.group_id for group in admin.groups()])


def complete_transactional_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from penstock.cli.reach.wire_admin import transaction_admin

    try:
        with transaction_admin(Target.find(ctx.params.get("servers"), COMPLETION_TIMEOUT_S)) as admin:
            found = [one.transactional_id for one in admin.transactional_ids()]
    except PenstockError:
        return []
    return [CompletionItem(name) for name in found if name.startswith(incomplete)]


def _complete(ctx: click.Context, incomplete: str, names: Callable[[BlockingAdmin], list[str]]) -> list[CompletionItem]:
    """No names instead of an error: an error message would disturb the command line."""
    try:
        target = Target.find(ctx.params.get("servers"), COMPLETION_TIMEOUT_S)
        with target.admin() as admin:
            return [CompletionItem(name) for name in names(admin) if name.startswith(incomplete)]
    except PenstockError:
        return []
