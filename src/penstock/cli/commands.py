"""The commands by name, and how their errors are reported.

A command is imported only when it is called, so that `penstock start` is up at once. Bad input gives one sentence and
exit code 2, never a traceback. A bug in a command is one sentence, too, except where the traceback matters more: in a
broker and in a simulation.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from difflib import get_close_matches
from types import TracebackType
from typing import Any

import click

from penstock import __version__
from penstock.cli import INTERRUPTED
from penstock.cli.stdout import BROKEN_PIPE, OutputClosed, OutputFailed, flush, give_up, output_errors
from penstock.model.errors import ConfigError, PenstockError

COMMANDS = {
    "start": ("penstock.cli.start.command", "start", "Run a broker in the foreground."),
    "topics": ("penstock.cli.topics", "topics", "Create, list, describe, alter and delete topics."),
    "groups": ("penstock.cli.groups.command", "groups", "List, describe, reset and delete consumer groups."),
    "lag": ("penstock.cli.groups.lag", "lag", "Show the lag of groups."),
    "transactions": (
        "penstock.cli.transactions.command",
        "transactions",
        "List, describe and abort transactions, and find those that hang.",
    ),
    "cluster": ("penstock.cli.cluster.command", "cluster", "Show the health of the cluster, and move replicas."),
    "produce": ("penstock.cli.records.produce", "produce", "Send records from standard input or files."),
    "consume": ("penstock.cli.records.consume", "consume", "Print records."),
    "pipeline": (
        "penstock.cli.pipeline.command",
        "pipeline",
        "Create, check, run and watch data pipelines on Spark.",
    ),
    "table": ("penstock.cli.tables.command", "table", "Keep topics as tables in an open format."),
    "configs": ("penstock.cli.configs", "configs", "Describe and change settings of topics, brokers and groups."),
    "log": ("penstock.cli.log", "log", "Print and verify log segments and indexes."),
    "doctor": ("penstock.cli.doctor.command", "doctor", "Check the connection to the cluster, and say what is wrong."),
    "sim": ("penstock.cli.sim", "sim", "Simulate a cluster from seeds, with faults."),
    "completion": ("penstock.cli.completion", "completion", "Print a completion script for the shell."),
}
WITH_TRACEBACK = ("start", "sim")
TRACEBACK_VARIABLE = "PENSTOCK_TRACEBACK"


class LazyGroup(click.Group):
    """Lists names and one-line help texts without importing a command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        if name not in WITH_TRACEBACK:
            sys.excepthook = one_sentence
        module, attribute, _ = COMMANDS[name]
        __import__(module)
        command: click.Command = getattr(sys.modules[module], attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """click suggests only commands that it has loaded."""
        close = [] if args[0] in COMMANDS else get_close_matches(args[0], COMMANDS, 1)
        if close and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {close[0]!r}?")
        return super().resolve_command(ctx, args)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with output_errors():  # prints --help; click itself exits with 1 if the pipe is closed
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with output_errors():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "-V", "--version", message="penstock %(version)s")
def penstock() -> None:
    """An event streaming platform that every Kafka client already speaks to."""


def run() -> int:
    """The exit code. KeyboardInterrupt passes through, or arrives as click's Abort."""
    try:
        code = _run()
        flush()  # an error can still be reported here
    except OutputClosed:
        give_up()
        return BROKEN_PIPE
    except OutputFailed as error:
        give_up()
        return fail(str(error), 1)
    return code


def _run() -> int:
    try:
        # Not standalone: click would say "Aborted!" and exit with 1.
        name = os.path.basename(sys.argv[0])
        outcome = penstock.main(prog_name="penstock" if name.endswith(".py") else name, standalone_mode=False)
    except click.Abort:
        return INTERRUPTED
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except (OutputClosed, OutputFailed):
        raise
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except ConfigError as error:
        return fail(str(error), 2)
    except PenstockError as error:
        return fail(str(error), 1)
    return outcome if isinstance(outcome, int) else 0


def one_sentence(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Reports a bug in Penstock in one sentence. The traceback is printed on request."""
    if os.environ.get(TRACEBACK_VARIABLE):
        sys.__excepthook__(kind, error, trace)
        return
    said, _, _ = str(error).strip().partition("\n")
    click.echo(
        f"penstock: unexpected {kind.__name__}{f': {said}' if said else ''} "
        f"(a bug in penstock; {TRACEBACK_VARIABLE}=1 prints the traceback)",
        err=True,
    )


def fail(sentence: str, code: int) -> int:
    with suppress(OSError):  # standard error is closed, too
        click.echo(f"penstock: {sentence}", err=True)
    return code
