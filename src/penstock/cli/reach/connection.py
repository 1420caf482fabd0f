"""How a command finds its cluster, and what it says when there is none.

`--bootstrap-server`, then PENSTOCK_BOOTSTRAP_SERVERS, then localhost:9092. The address is tried with a plain socket
and one small request first: librdkafka would keep trying and could not say in one sentence what is wrong. The client
library is imported by the command that needs it, not for help or completion.
"""

from __future__ import annotations

import functools
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar

import click
from click.shell_completion import CompletionItem

from penstock.cli.arguments.numbers import Seconds
from penstock.cli.reach.probe import ABOUT_THE_CLUSTER, FRAME_LIMIT, METADATA_VERSION, frame
from penstock.model.addresses import parse_server
from penstock.model.errors import ConfigError, PenstockError
from penstock.wire.apis import Api
from penstock.wire.messages.api_versions import ApiVersionsRequest

if TYPE_CHECKING:
    from penstock.sdk import BlockingAdmin

P = ParamSpec("P")
R = TypeVar("R")

BOOTSTRAP_VARIABLE = "PENSTOCK_BOOTSTRAP_SERVERS"
TRACEBACK_VARIABLE = "PENSTOCK_TRACEBACK"
DEFAULT_BOOTSTRAP_SERVERS = "localhost:9092"
DEFAULT_PORT = 9092
CONNECT_TIMEOUT_S = 3.0
HEAD_START_S = 0.3
COMPLETION_TIMEOUT_S = 2.0
IMPATIENT_AFTER_S = 1.0


HANGS = "it accepts connections and says nothing"
STUCK = "Its process is stopped or stuck: continue or restart it."


class NoBroker(PenstockError):
    def __init__(self, servers: str, reason: str = "", *, hangs: bool = False) -> None:
        why = f" ({reason})" if reason else ""
        what = "its process is stopped or stuck: restart it" if hangs else "start one with `penstock start`"
        super().__init__(f"no broker answers at {servers}{why}: {what} or use --bootstrap-server")


class AnotherProtocol(PenstockError):
    def __init__(self, address: str) -> None:
        super().__init__(
            f"something listens at {address} that does not speak Kafka's protocol: is this the HTTP door (8082), the "
            "line door (9099) or a TLS listener? Kafka clients use 9092 by default; `penstock doctor` looks closer"
        )


CLOSED_AT_ONCE = "closed the connection at once: it may be full; see its log"


class ClosedAtOnce(PenstockError):
    def __init__(self, address: str) -> None:
        super().__init__(f"{address} {CLOSED_AT_ONCE}")


STARTING = "is starting or cut off: it looks for the other nodes of its cluster"
START_OTHERS = "Start the others, which its log names: a majority of the nodes that vote must be up."


class Starting(PenstockError):
    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"{host}:{port} {STARTING}. {START_OTHERS.removesuffix('.')}")
        self.address = (host, port)


@dataclass(frozen=True)
class Target:
    """The cluster a command talks to."""

    servers: str
    source: str
    """Who said so: the option, the environment or nobody."""
    timeout_s: float = 15.0
    settings: dict[str, object] = field(default_factory=dict)

    @classmethod
    def find(cls, option: str | None, timeout_s: float = 15.0, settings: dict[str, object] | None = None) -> Target:
        settings = dict(settings or {})
        named = settings.pop("bootstrap.servers", None)
        if option:
            return cls(option, "--bootstrap-server", timeout_s, settings)
        if named:
            return cls(str(named), "--command-config", timeout_s, settings)
        if os.environ.get(BOOTSTRAP_VARIABLE):
            return cls(os.environ[BOOTSTRAP_VARIABLE], BOOTSTRAP_VARIABLE, timeout_s, settings)
        return cls(DEFAULT_BOOTSTRAP_SERVERS, "default", timeout_s, settings)

    def addresses(self) -> list[tuple[str, int]]:
        return [split_address(server) for server in self.servers.split(",") if server.strip()]

    def check(self) -> tuple[str, int]:
        """Something listens at one of the addresses, and it is a broker that serves clients: the first that says so.

        In their order, and the next one as well where one has not answered in a moment: one that hangs must not take
        the time of the others.
        """
        addresses = self.addresses()
        waiting = list(dict.fromkeys(addresses))
        answers: SimpleQueue[tuple[tuple[str, int], str | PenstockError]] = SimpleQueue()

        def ask(host: str, port: int) -> None:
            answers.put(((host, port), self._try(host, port)))

        found: dict[tuple[str, int], str | PenstockError] = {}
        while len(found) < len(set(addresses)):
            if waiting:
                # As a daemon: the command need not wait for those it has no use for.
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
        raise NoBroker(self.servers, _summary(reasons), hangs=hangs)

    def serving(self) -> str | None:
        """The broker to begin with: a library that happens to try one that is starting first would take it for the
        whole cluster. None where that cannot be told.
        """
        host, port = self.check()
        if not self._can_tell_who_is_starting():
            return None
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _can_tell_who_is_starting(self) -> bool:
        """Without talking TLS or SASL."""
        protocol = str(self.settings.get("security.protocol", "")).lower()
        return "ssl" not in protocol and "sasl" not in protocol

    def _try(self, host: str, port: int) -> str | PenstockError:
        """Empty if a broker serves there, else why not."""
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
        from penstock.sdk import BlockingAdmin

        return BlockingAdmin(
            self.servers,
            timeout_s=self.timeout_s,
            client_id="penstock-cli",
            begin_with=self.serving(),
            settings=self.settings,
        )


REFUSED = "connection refused"


def _summary(reasons: dict[str, str]) -> str:
    """Empty where all refuse, which goes without saying."""
    different = set(reasons.values())
    if different <= {REFUSED}:
        return ""
    return different.pop() if len(different) == 1 else "; ".join(f"{at}: {why}" for at, why in reasons.items())


def connect_problem(host: str, port: int, timeout_s: float = CONNECT_TIMEOUT_S) -> str:
    """Empty when a TCP connection opens, else why not."""
    try:
        socket.create_connection((host, port), timeout_s).close()
    except (socket.gaierror, UnicodeError):  # the latter where a part of a name is empty or too long
        return f"the name {host} does not resolve"
    except TimeoutError:
        return f"no answer from {host} within {timeout_s:g} s"
    except ConnectionRefusedError:
        return REFUSED
    except ConnectionResetError:
        return ""  # closed as soon as it was open: whoever asks says so
    except OSError as error:
        return error.strerror or str(error)
    return ""


def ask_api_versions(host: str, port: int, timeout_s: float) -> Literal["kafka", "other", "closed", "nothing"]:
    """Whether it answers as brokers do. Whoever waits for the end of a line is given one, and then shows what it is."""
    deadline = time.monotonic() + timeout_s
    answer = b""
    is_impatient = False
    try:
        with socket.create_connection((host, port), CONNECT_TIMEOUT_S) as connection:
            connection.sendall(frame(Api.API_VERSIONS, 0, ApiVersionsRequest()))
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
    """Whether a broker hangs up on whoever asks for the cluster's metadata: it is not part of it yet, or no more."""
    try:
        with socket.create_connection((host, port), CONNECT_TIMEOUT_S) as connection:
            connection.sendall(frame(Api.METADATA, METADATA_VERSION, ABOUT_THE_CLUSTER))
            return not connection.recv(1)
    except ConnectionError:
        return True
    except OSError:
        return False  # no answer in time: whoever asks next says so


def split_address(server: str) -> tuple[str, int]:
    address = parse_server(server)
    if address is None:
        raise ConfigError(f"{server!r} is no address of a broker: write HOST:PORT, for example localhost:9092")
    return address


def cluster_command(command: Callable[Concatenate[Target, P], R]) -> Callable[..., R]:
    """Gives a command the options that lead to a cluster, and hands it the `Target`."""

    @click.option(
        "--bootstrap-server",
        "servers",
        metavar="HOST:PORT[,...]",
        help=f"Where the cluster is (else ${BOOTSTRAP_VARIABLE}, else {DEFAULT_BOOTSTRAP_SERVERS}).",
    )
    @click.option(
        "--command-config", metavar="FILE", help="Client settings as a properties file, for example security."
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
        sys.excepthook = _one_sentence
        target = Target.find(servers, timeout_s, _client_settings(command_config))
        try:
            return command(target, *args, **kwargs)
        except NoBroker:
            raise
        except PenstockError as error:
            from penstock.cli.reach.no_controller import no_controller
            from penstock.sdk import UnknownTopic, Unreachable
            from penstock.wire_client.requests.errors import NoSuchTopic

            without_controller = no_controller(target, error)
            if without_controller is not None:
                raise without_controller from error
            if isinstance(error, Unreachable):
                raise NoBroker(target.servers) from error
            if isinstance(error, UnknownTopic | NoSuchTopic):
                raise PenstockError(f"{error}; `penstock topics list` shows those there are") from error
            raise

    return run


def json_option(command: Callable[P, R]) -> Callable[P, R]:
    return click.option("--json", "as_json", is_flag=True, help="JSON for programs.")(command)


def _client_settings(path: str | None) -> dict[str, object]:
    if path is None:
        return {}
    from penstock.config.properties import parse_properties

    try:
        with open(path, encoding="utf-8") as file:
            return dict(parse_properties(file.read()))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no text in UTF-8: write NAME=VALUE on each line") from error


def _one_sentence(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A mistake of ours, told as such. The traceback is for those who ask."""
    if os.environ.get(TRACEBACK_VARIABLE):
        sys.__excepthook__(kind, error, trace)
        return
    click.echo(
        f"penstock: unexpected {kind.__name__}: {error} (a mistake in penstock; {TRACEBACK_VARIABLE}=1 shows where)",
        err=True,
    )


# -- completion ----------------------------------------------------------------------------------------------


def complete_topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _complete(ctx, incomplete, lambda admin: [topic.name for topic in admin.topics() if not topic.is_internal])


def complete_groups(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _complete(ctx, incomplete, lambda admin: [group.group_id for group in admin.groups()])


def _complete(ctx: click.Context, incomplete: str, names: Callable[[BlockingAdmin], list[str]]) -> list[CompletionItem]:
    """Nothing rather than an error: a shell that completes must not be disturbed."""
    try:
        target = Target.find(ctx.params.get("servers"), COMPLETION_TIMEOUT_S)
        with target.admin() as admin:
            return [CompletionItem(name) for name in names(admin) if name.startswith(incomplete)]
    except PenstockError:
        return []
