"""Output of commands: tables for people, JSON for programs, progress bars for terminals."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import click
from click._termui_impl import ProgressBar

from penstock.model.errors import PenstockError


def show_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns are as wide as their widest cell; columns of numbers are right-aligned."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    leans_right = [
        {int} <= set(map(type, column)) <= {int, type(None)}
        for column in (zip(*rows, strict=True) if rows else [()] * len(headers))
    ]
    for row in (list(headers), *cells):
        padded = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, leans_right, strict=True)
        ]
        click.echo("  ".join(padded).rstrip())


def _cell(value: object) -> str:
    return "-" if value is None else str(value)


def confirmed(question: str) -> bool:
    """Raises PenstockError if nobody can answer: standard input has ended."""
    try:
        return click.confirm(question)
    except click.Abort as error:
        if isinstance(error.__context__, EOFError):
            click.echo()
            raise PenstockError("nothing was changed: nobody can answer, so give --yes") from error
        raise


def show_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def progress(length: int, label: str) -> ProgressBar[int]:
    """A progress bar on standard error, shown only on a terminal and with a known length."""
    return click.progressbar(
        length=length,
        label=label,
        file=sys.stderr,
        hidden=not length or not sys.stderr.isatty(),
        show_eta=True,
        update_min_steps=max(1, length // 200),
    )
