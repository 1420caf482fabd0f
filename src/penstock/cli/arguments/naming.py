"""Names on the command line: the names of topics, names that must not be empty, and `OPTION NAME` or the name alone."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from penstock.model.errors import ConfigError

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
Decorator = Callable[[Callable[..., None]], Callable[..., None]]

NAME_SHOWN = 300
_TOPIC = re.compile(r"(?!\.\.?$)[a-zA-Z0-9._-]{1,249}")


class Name(click.ParamType[str]):
    """Not empty: an empty name often comes from a variable of the shell that is not set."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not text:
            self.fail("the name is empty", param, ctx)
        return text


class TopicName(Name):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = super().convert(value, param, ctx)
        problem = topic_name_problem(text)
        if problem:
            self.fail(problem, param, ctx)
        return text


NAME = Name()
TOPIC_NAME = TopicName()


def topic_name_problem(text: str) -> str:
    """Empty if a topic may have this name."""
    if _TOPIC.fullmatch(text):
        return ""
    return f"{text[:NAME_SHOWN]!r} is not a topic name: use letters, digits, '.', '_' and '-', at most 249"


def check_topic_name(text: str) -> str:
    """Raises ConfigError."""
    problem = topic_name_problem(text)
    if problem:
        raise ConfigError(problem)
    return text


def named(
    noun: str, option: str, parameter: str, complete: Complete, *, required: bool = True, kind: Name = NAME
) -> Decorator:
    """Gives a command `parameter`, from `OPTION NAME` or NAME. It may be None unless `required`."""
    shown = noun.upper().replace(" ", "-")

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @click.argument("alone", metavar=f"[{shown}]", required=False, type=kind, shell_complete=complete)
        @click.option(option, parameter, type=kind, help=f"The {noun}, in place of {shown}.", shell_complete=complete)
        @functools.wraps(command)
        def run(*args: Any, alone: str | None, **kwargs: Any) -> None:
            given = kwargs.pop(parameter)
            if alone is not None and given is not None:
                raise click.UsageError(f"name the {noun} once: {shown} or {option} {shown}")
            chosen = alone if given is None else given
            if required and chosen is None:
                raise click.UsageError(f"name the {noun}: {shown} or {option} {shown}")
            command(*args, **{parameter: chosen}, **kwargs)

        return run

    return decorate
