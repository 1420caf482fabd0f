"""Names for commands that only read: `OPTION NAME`, or the name alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def named(noun: str, option: str, parameter: str, complete: Complete, *, required: bool = True) -> Decorator:
    """Gives a command `parameter`, from `OPTION NAME` or NAME. It may be None unless `required`."""
    shown = noun.upper()

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @click.argument("alone", metavar=f"[{shown}]", required=False, shell_complete=complete)
        @click.option(option, parameter, help=f"Name of the {noun}.", shell_complete=complete)
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
