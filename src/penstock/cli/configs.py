"""`penstock configs`: settings of topics, brokers and groups at run time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, ParamSpec, TypeVar

import click

from penstock.cli.connection import Target, cluster_command, complete_groups, complete_topics, json_option
from penstock.cli.output import show_json, show_table
from penstock.cli.pairs import parse_pairs
from penstock.model.errors import ConfigError

if TYPE_CHECKING:
    from penstock.clients import ConfigSetting

P = ParamSpec("P")
R = TypeVar("R")
Kind = Literal["topic", "broker", "group"]


def resource_options(command: Callable[P, R]) -> Callable[P, R]:
    for option in (
        click.option("--group", help="Settings of a group.", shell_complete=complete_groups),
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
@click.option("--all", "show_all", is_flag=True, help="Defaults too.")
@json_option
@cluster_command
def describe(
    target: Target, topic: str | None, broker: str | None, group: str | None, show_all: bool, as_json: bool
) -> None:
    """Settings that differ from the default, and who set them."""
    kind, name = _resource(topic, broker, group)
    with target.admin() as admin:
        found = [one for one in admin.configs(kind, name) if show_all or one.source != "default"]
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
    else:
        click.echo(f"All settings of {kind} {name} are at their defaults (--all shows them).", err=True)


@configs.command("set")
@resource_options
@click.argument("settings", nargs=-1, required=True, metavar="KEY=VALUE...")
@json_option
@cluster_command
def set_(
    target: Target,
    topic: str | None,
    broker: str | None,
    group: str | None,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Change settings; the others stay as they are."""
    kind, name = _resource(topic, broker, group)
    wanted = parse_pairs("setting", settings)
    with target.admin() as admin:
        admin.alter_configs(kind, name, set_=wanted)
    if as_json:
        show_json({kind: name, "set": wanted})
        return
    for key, value in wanted.items():
        click.echo(f"{kind} {name}: {key}={value}")


@configs.command("delete")
@resource_options
@click.argument("names", nargs=-1, required=True, metavar="KEY...")
@json_option
@cluster_command
def delete(
    target: Target, topic: str | None, broker: str | None, group: str | None, names: tuple[str, ...], as_json: bool
) -> None:
    """Take settings back to their defaults."""
    kind, name = _resource(topic, broker, group)
    with target.admin() as admin:
        known = {one.name for one in admin.configs(kind, name)}
        unknown = [key for key in names if key not in known]
        if unknown:  # which brokers take as deleted already
            raise ConfigError(f"a {kind} has no setting {', '.join(unknown)}: nothing was changed")
        admin.alter_configs(kind, name, delete=names)
        now = {one.name: one for one in admin.configs(kind, name)}
    if as_json:
        show_json({kind: name, "deleted": {key: now[key].value if key in now else None for key in names}})
        return
    for key in names:
        click.echo(f"{kind} {name}: {key} is back at {_value(now[key]) if key in now else 'its default'}")


def _resource(topic: str | None, broker: str | None, group: str | None) -> tuple[Kind, str]:
    given: list[tuple[Kind, str]] = []
    if topic is not None:
        given.append(("topic", topic))
    if broker is not None:
        if not broker.isdigit():
            raise click.UsageError(f"--broker {broker}: give its number")
        given.append(("broker", broker))
    if group is not None:
        given.append(("group", group))
    if len(given) != 1:
        raise click.UsageError("give one of --topic, --broker, --group")
    return given[0]


def _value(setting: ConfigSetting) -> str:
    if setting.is_sensitive:
        return "(secret)"
    return "" if setting.value is None else setting.value
