"""`penstock completion`: a script that completes commands, options, topics and groups in the shell."""

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
    # Not BashComplete.source(): it runs bash to check its version.
    click.echo(made.source_template % made.source_vars())
