"""`penstock configs`: settings of topics, brokers and groups at run time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Literal, ParamSpec, Protocol, TypeVar

import click

from penstock.cli.arguments.pairs import parse_pairs
from penstock.cli.arguments.setting_names import known_names
from penstock.cli.cluster.min_insync import MIN_INSYNC, warn_of_all_topics, warn_of_topic
from penstock.cli.output import show_json, show_table
from penstock.cli.reach.connection import Target, cluster_command, complete_groups, complete_topics, json_option
from penstock.cli.reach.wire_admin import broker_settings, wire_admin
from penstock.model.errors import ConfigError, ErrorCode, PenstockError

if TYPE_CHECKING:
    from penstock.sdk import BlockingAdmin, ConfigSetting
    from penstock.wire_client.blocking.broker_settings import BrokerSettings

P = ParamSpec("P")
R = TypeVar("R")
Kind = Literal["topic", "broker", "group"]
Resource = tuple[Kind, str] | None
"""Kind and name of a resource; None for all brokers."""


def resource_options(command: Callable[P, R]) -> Callable[P, R]:
    for option in (
        click.option("--group", help="Settings of a group.", shell_complete=complete_groups),
        click.option("--all-brokers", is_flag=True, help="Settings of all brokers."),
        click.option("--broker", help="Settings of a broker, by its id.", metavar="ID"),
        click.option("--topic", help="Settings of a topic.", shell_complete=complete_topics),
    ):
        command = option(command)
    return command


@click.group()
def configs() -> None:
    """Describe and change settings of topics, brokers and groups."""


@configs.command("describe")
@resource_options
@click.option("--all", "show_all", is_flag=True, help="Show defaults, too.")
@json_option
@cluster_command
def describe(
    target: Target,
    topic: str | None,
    broker: str | None,
    all_brokers: bool,
    group: str | None,
    show_all: bool,
    as_json: bool,
) -> None:
    """Show settings that are not defaults, and their source."""
    resource = _resource(topic, broker, group, all_brokers)
    if resource is None and show_all:
        raise click.UsageError(
            "--all cannot be used with --all-brokers: each broker has its own defaults; use --broker ID --all"
        )
    with _settings(target, resource) as settings:
        found = [one for one in settings.described() if show_all or one.source != "default"]
    if as_json:
        show_json(
            [
                {
                    "name": one.name,
                    "value": one.value,
                    "source": one.source,
                    "read_only": one.is_read_only,
                    "sensitive": one.is_sensitive,
                }
                for one in found
            ]
        )
    elif found:
        show_table(("NAME", "VALUE", "SET BY"), [(one.name, _value(one), one.source) for one in found])
    elif resource is None:
        click.echo("No settings are set for all brokers.", err=True)
    else:
        click.echo(f"All settings of {_noun(resource)} have their defaults (--all shows them).", err=True)


@configs.command("set")
@resource_options
@click.argument("settings", nargs=-1, required=True, metavar="KEY=VALUE...")
@json_option
@cluster_command
def set_(
    target: Target,
    topic: str | None,
    broker: str | None,
    all_brokers: bool,
    group: str | None,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Change settings. Other settings stay as they are."""
    resource = _resource(topic, broker, group, all_brokers)
    wanted = parse_pairs("setting", settings)
    kind: Kind = "broker" if resource is None else resource[0]
    listed = f"penstock configs describe --{kind} {'ID' if resource is None else resource[1]} --all"
    with _settings(target, resource) as found, known_names(kind, wanted, listed):
        found.alter(wanted, ())
    if MIN_INSYNC in wanted:
        _look_at_replicas(target, resource, wanted[MIN_INSYNC])
    if as_json:
        show_json({**_told(resource), "set": wanted})
        return
    for key, value in wanted.items():
        click.echo(f"{_noun(resource)}: {key}={value}")


@configs.command("delete")
@resource_options
@click.argument("names", nargs=-1, required=True, metavar="KEY...")
@json_option
@cluster_command
def delete(
    target: Target,
    topic: str | None,
    broker: str | None,
    all_brokers: bool,
    group: str | None,
    names: tuple[str, ...],
    as_json: bool,
) -> None:
    """Reset settings to their defaults."""
    resource = _resource(topic, broker, group, all_brokers)
    with _settings(target, resource) as settings:
        known = {one.name for one in settings.described()}
        unknown = [key for key in names if key not in known]
        if unknown:  # brokers would accept these names
            missing = ", ".join(unknown)
            raise ConfigError(
                f"{missing}: not set for all brokers; nothing was changed"
                if resource is None
                else f"a {resource[0]} has no setting {missing}: nothing was changed"
            )
        settings.alter({}, names)
        now = {one.name: one for one in settings.described()}
    if MIN_INSYNC in names:
        _look_at_replicas(target, resource, now[MIN_INSYNC].value if MIN_INSYNC in now else None)
    if as_json:
        show_json({**_told(resource), "deleted": {key: now[key].value if key in now else None for key in names}})
        return
    default = "the value in each broker's file" if resource is None else "its default"
    for key in names:
        click.echo(f"{_noun(resource)}: {key} is back at {_value(now[key]) if key in now else default}")


def _look_at_replicas(target: Target, resource: Resource, value: str | None) -> None:
    """`value`: the present value, None if each broker has its own."""
    with suppress(PenstockError), target.admin() as admin:  # the change itself is made
        if resource is not None and resource[0] == "topic":
            warn_of_topic(admin, resource[1])
        else:
            warn_of_all_topics(admin, value)


# -- whose settings -----------------------------------------------------------------------


class ResourceSettings(Protocol):
    """The settings of one resource."""

    def described(self) -> list[ConfigSetting]: ...

    def alter(self, set_: Mapping[str, str], delete: Sequence[str]) -> None: ...


class _Named:
    def __init__(self, admin: BlockingAdmin, kind: Kind, name: str) -> None:
        self._admin, self._kind, self._name = admin, kind, name

    def described(self) -> list[ConfigSetting]:
        return self._admin.configs(self._kind, self._name)

    def alter(self, set_: Mapping[str, str], delete: Sequence[str]) -> None:
        self._admin.alter_configs(self._kind, self._name, set_=set_, delete=delete)


class _OfAllBrokers:
    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings

    def described(self) -> list[ConfigSetting]:
        from penstock.sdk import ConfigSetting

        return [
            ConfigSetting(one.name, one.value, "cluster", one.is_read_only, one.is_sensitive)
            for one in self._settings.describe()
        ]

    def alter(self, set_: Mapping[str, str], delete: Sequence[str]) -> None:
        self._settings.alter(set_, delete)


@contextmanager
def _settings(target: Target, resource: Resource) -> Iterator[ResourceSettings]:
    if resource is None:
        with broker_settings(target) as found:
            yield _OfAllBrokers(found)
    else:
        from penstock.sdk import Refused

        with target.admin() as admin:
            try:
                yield _Named(admin, *resource)
            except Refused as error:
                if error.name == ErrorCode.BROKER_ID_NOT_REGISTERED.name and _is_down(target, resource[1]):
                    raise PenstockError(
                        f"broker {resource[1]} is down: only the broker itself knows its settings, so start it first"
                    ) from error
                raise


def _is_down(target: Target, broker_id: str) -> bool:
    with wire_admin(target) as admin:
        return any(str(one.node_id) == broker_id and one.is_fenced for one in admin.nodes().brokers)


def _resource(topic: str | None, broker: str | None, group: str | None, all_brokers: bool) -> Resource:
    given: list[Resource] = []
    if topic is not None:
        given.append(("topic", topic))
    if broker is not None:
        if not broker.isdigit():
            raise click.UsageError(f"--broker {broker}: give the id of a broker, a number")
        given.append(("broker", broker))
    if group is not None:
        given.append(("group", group))
    if all_brokers:
        given.append(None)
    if len(given) != 1:
        raise click.UsageError("give one of --topic, --broker, --all-brokers, --group")
    return given[0]


def _noun(resource: Resource) -> str:
    return "all brokers" if resource is None else " ".join(resource)


def _told(resource: Resource) -> dict[str, object]:
    return {"all_brokers": True} if resource is None else {resource[0]: resource[1]}


def _value(setting: ConfigSetting) -> str:
    if setting.is_sensitive:
        return "(secret)"
    return "" if setting.value is None else setting.value
