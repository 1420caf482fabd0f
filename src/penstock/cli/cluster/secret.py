"""`penstock cluster secret` and `penstock start --join`: the secret of a cluster on its way to a new node.

Both work on files of this machine alone: the secret is asked of no broker, and no broker gives it away.
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


@click.command("secret", short_help="Print the secret that a new node needs, or make one.")
@click.argument("properties", required=False, metavar="[FILE]")
@click.option("--data", metavar="DIR", help="Data directory of a node, or of penstock start --nodes.")
@click.option("--new", "new", metavar="PATH", help="Write a new secret to PATH, for the nodes of a new cluster.")
def secret(properties: str | None, data: str | None, new: str | None) -> None:
    """Print the cluster's secret, which every node must have, from the files of a node on this machine.

    FILE is the node's properties file; without it and without --data it is the default data directory. Give the output
    to a new node in a file, or on standard input: penstock start FILE --join -. Never on its command line, which others
    can read. Whoever has the secret can join the cluster: keep it to yourself.
    """
    if new is not None:
        if properties is not None or data is not None:
            raise ConfigError("--new needs neither FILE nor --data: it makes a secret that no node has yet")
        write_secrets(new, new_secret(SystemEntropy()))
        click.echo(f"wrote {new}: copy it to every node, and name it in penstock.cluster.secret.file", err=True)
        return
    path = secret_path(load_config(properties, {"log.dirs": data} if data is not None else {})[0])
    if read_secrets(path) is None:
        raise ConfigError(f"there is no {path}: name the properties file or --data of a node that has started once")
    with open(path, encoding="ascii") as file:
        click.echo(file.read().strip())


def secret_path(config: BrokerConfig) -> str:
    return config.penstock_cluster_secret_file or os.path.join(config.log_dir, CLUSTER_SECRET)


def join(config: BrokerConfig, source: str) -> None:
    """Keep the secret of the cluster that this node joins. Once more is as good as once. Raises ConfigError."""
    if config.penstock_cluster_secret_file is not None:
        raise ConfigError("give --join or penstock.cluster.secret.file, not both")
    if not config.is_clustered:
        raise ConfigError(
            "--join is for a node that joins a cluster: name other nodes in controller.quorum.bootstrap.servers"
        )
    if is_secret(source) and not os.path.exists(source):
        raise ConfigError(
            "--join takes a file, not the secret itself: others can read command lines (ps), and the shell keeps them. "
            "Put the secret into a file and name that, or give it on standard input: penstock start FILE --join -"
        )
    try:
        with click.open_file(source, encoding="ascii") as file:
            text = file.read(MAX_FILE_BYTES)
    except OSError as error:
        raise ConfigError(f"cannot read {source}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source} holds no cluster secret: penstock cluster secret prints one") from error
    given = parse_secrets(text, source)
    path = secret_path(config)
    known = read_secrets(path)
    if known is None:
        os.makedirs(config.log_dir, exist_ok=True)
        write_secrets(path, text)
    elif known != given:
        raise ConfigError(f"{path} holds another secret than {source}: remove it if this node shall change its cluster")
