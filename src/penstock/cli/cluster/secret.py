"""`penstock cluster secret` and `penstock start --join`: bring the secret of a cluster to a new node.

Both use only files of this machine. No broker gives the secret away.
"""

from __future__ import annotations

import os

import click

from penstock.config.broker import BrokerConfig
from penstock.model.errors import ConfigError
from penstock.runtime.clock import SystemEntropy
from penstock.runtime.cluster_secret import (
    CLUSTER_SECRET,
    MAX_FILE_BYTES,
    is_secret,
    new_secret,
    parse_secrets,
    read_secrets,
    write_secrets,
)
from penstock.runtime.surroundings import load_config


@click.command("secret", short_help="Print the cluster secret for a new node, or make one.")
@click.argument("properties", required=False, metavar="[FILE]")
@click.option("--data", metavar="DIR", help="Data directory of a node, or of penstock start --nodes.")
@click.option("--new", "new", metavar="PATH", help="Write a new secret to PATH, for the nodes of a new cluster.")
def secret(properties: str | None, data: str | None, new: str | None) -> None:
    """Print the cluster secret from the files of a node on this machine. Every node of the cluster needs the secret.

    FILE is the node's properties file. Without FILE and --data the command reads the default data directory. Give the
    secret to a new node in a file, or on standard input: penstock start FILE --join -. Do not write it on a command
    line: others can read command lines. Keep the secret to yourself: anybody who has it can join the cluster.
    """
    if new is not None:
        if properties is not None or data is not None:
            raise ConfigError("--new makes a new secret: leave out FILE and --data")
        write_secrets(new, new_secret(SystemEntropy()))
        click.echo(f"wrote {new}: copy it to every node, and set penstock.cluster.secret.file to its path", err=True)
        return
    path = secret_path(load_config(properties, {"log.dirs": data} if data is not None else {})[0])
    if read_secrets(path) is None:
        raise ConfigError(
            f"there is no {path}: give the properties file or --data of a node that has been started before"
        )
    with open(path, encoding="ascii") as file:
        click.echo(file.read().strip())


def secret_path(config: BrokerConfig) -> str:
    return config.penstock_cluster_secret_file or os.path.join(config.log_dir, CLUSTER_SECRET)


def join(config: BrokerConfig, source: str) -> None:
    """Stores the secret of the cluster that this node joins; a second call changes nothing. Raises ConfigError."""
    if config.penstock_cluster_secret_file is not None:
        raise ConfigError("give --join or penstock.cluster.secret.file, not both")
    if not config.is_clustered:
        raise ConfigError(
            "--join is for a node that joins a cluster: set controller.quorum.bootstrap.servers to other nodes"
        )
    if is_secret(source) and not os.path.exists(source):
        raise ConfigError(
            "--join takes a file, not the secret itself: others can read command lines (ps), and the shell keeps them. "
            "Give the path of a file with the secret, or use standard input: penstock start FILE --join -"
        )
    try:
        with click.open_file(source, encoding="ascii") as file:
            text = file.read(MAX_FILE_BYTES)
    except OSError as error:
        raise ConfigError(f"cannot read {source}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source} holds no cluster secret: `penstock cluster secret` prints it") from error
    given = parse_secrets(text, source)
    path = secret_path(config)
    known = read_secrets(path)
    if known is None:
        os.makedirs(config.log_dir, exist_ok=True)
        write_secrets(path, text)
    elif known != given:
        raise ConfigError(
            f"{path} holds another secret than {source}: delete {path} to move this node to another cluster"
        )
