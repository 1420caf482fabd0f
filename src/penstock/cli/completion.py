"""`penstock completion`: a script that teaches the shell our commands, options, topics and groups."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command()
@click.argument("shell", metavar="SHELL", type=click.Choice(list(SHELLS)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a completion script for bash, zsh or fish, for example: eval "$(penstock completion bash)"."""
    root = ctx.find_root()
    name = root.info_name or "penstock"
    variable = f"_{name}_complete".replace("-", "_").upper()
    kind = SHELLS[shell]
    made = kind(root.command, {}, name, variable)
    # Not source() of bash: it runs bash to see which version is installed here.
    click.echo(made.source_template % made.source_vars())
