"""`penstock pipeline sinks`: the exactly-once queries of a cluster, and what they have left open.

It needs no PySpark and no project: everything is on the brokers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click

from penstock.cli.output import confirmed, show_json, show_table
from penstock.cli.pipeline.output import count
from penstock.cli.reach.connection import Target, cluster_command, json_option
from penstock.cli.reach.wire_admin import wire_cluster
from penstock.cli.transactions.old import moment, since
from penstock.model.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from penstock.spark.sink.deciding import Decider
    from penstock.spark.sink.operating import SinkQuery
    from penstock.wire_client.blocking.cluster import BlockingCluster

P = ParamSpec("P")
R = TypeVar("R")

LIST = "list"
RUNNING = "If the query is running, its batch fails, and you must start the query again."


class ListsByDefault(click.Group):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in self.get_help_option_names(ctx)):
            args = [LIST, *args]
        return super().parse_args(ctx, args)


@click.group(cls=ListsByDefault, short_help="List and finish queries that write exactly once.")
def sinks() -> None:
    """List queries that write to topics exactly once, and finish what they have left open.

    Without a command: list.
    """


def query_arguments(command: Callable[P, R]) -> Callable[P, R]:
    command = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")(command)
    command = click.option(
        "--checkpoint",
        metavar="DIR",
        help="Checkpoint directory of the query, in place of its id.",
    )(command)
    return click.argument("query_id", required=False)(command)


# -- list -------------------------------------------------------------------------------


@sinks.command(LIST, short_help="List queries, with their last decision and their open transactions.")
@json_option
@cluster_command
def list_(target: Target, as_json: bool) -> None:
    """List the queries that write to topics exactly once.

    A decision says which transactions belong to a batch. STATE: committed, or the number of transactions that are
    still to be committed, or that are lost. OPEN: open transactions that no decision lists; a running query has some.
    """
    from penstock.spark.sink.operating import sink_queries

    with wire_cluster(target) as cluster:
        found = sink_queries(cluster)
    if as_json:
        show_json([_object(one) for one in found])
    elif found:
        show_table(
            ("QUERY", "LAST BATCH", "DECIDED", "AGE", "TRANSACTIONS", "STATE", "OPEN", "OPEN FOR"),
            [_row(one) for one in found],
        )
    else:
        click.echo("No query writes to topics of this cluster exactly once.", err=True)


def _row(one: SinkQuery) -> tuple[object, ...]:
    open_for = None if one.oldest_ms is None else since(one.oldest_ms)
    if one.decision is None or one.decision.batch_id < 0:
        return one.query_id, None, None, None, None, None, len(one.undecided), open_for
    decided_ms = one.decision.decided_ms
    return (
        one.query_id,
        one.decision.batch_id,
        moment(decided_ms),
        since(decided_ms),
        len(one.decision.transactions),
        _state(one),
        len(one.undecided),
        open_for,
    )


def _state(one: SinkQuery) -> str:
    parts = [
        f"{len(names)} {what}" for names, what in ((one.lost, "lost"), (one.to_commit, "to commit")) if len(names) > 0
    ]
    return ", ".join(parts) or "committed"


def _object(one: SinkQuery) -> dict[str, Any]:
    decision = one.decision if one.decision is not None and one.decision.batch_id >= 0 else None
    return {
        "query_id": one.query_id,
        "last_batch": None if decision is None else decision.batch_id,
        "decided_ms": None if decision is None else decision.decided_ms,
        "transactions": 0 if decision is None else len(decision.transactions),
        "to_commit": list(one.to_commit),
        "lost": list(one.lost),
        "undecided": list(one.undecided),
        "oldest_open_ms": one.oldest_ms,
    }


# -- finish -----------------------------------------------------------------------------


@sinks.command("finish", short_help="Commit what the last decision lists, and abort everything else.")
@query_arguments
@click.option(
    "--accept-loss",
    is_flag=True,
    help="If transactions of the last batch were aborted: give up their records, so that the query can continue.",
)
@json_option
@cluster_command
def finish(
    target: Target, query_id: str | None, checkpoint: str | None, yes: bool, accept_loss: bool, as_json: bool
) -> int:
    """Finish a query that does not come back.

    Commits the transactions that its last decision lists, and aborts those that no decision lists. A query that is
    started again does this by itself.
    """
    name = _query_id(query_id, checkpoint)
    _check_asking(as_json, yes)
    with wire_cluster(target) as cluster:
        query = _Query(cluster, name)
        before = query.look()
        if not (before.to_commit or before.undecided or before.lost or accept_loss):
            return _tell_nothing(before, as_json)
        if not yes and (before.to_commit or before.undecided or accept_loss):
            _explain(before, accept_loss)
            if not confirmed("Continue?"):
                click.echo("Nothing was changed.")
                return 1
        decider = query.decider()
        if accept_loss:
            decider.accept_loss()
        decider.finish_all()
        after = query.look()
    still_open = [*after.to_commit, *after.undecided]
    done = {
        "query_id": name,
        "committed": [one for one in before.to_commit if one not in after.to_commit],
        "aborted": [one for one in before.undecided if one not in after.undecided],
        "lost": list(before.lost) if accept_loss else [],
        "still_open": still_open,
    }
    if as_json:
        show_json(done)
    else:
        click.echo(f"Committed: {count(len(done['committed']), 'transaction')} of the last decision.")
        click.echo(f"Aborted:   {count(len(done['aborted']), 'transaction')} in no decision.")
        if done["lost"]:
            click.echo(f"Lost:      the records of {count(len(done['lost']), 'transaction')}.")
    if still_open:
        click.echo(
            f"penstock: query {name} still has {count(len(still_open), 'open transaction')}: it is running, or a "
            "broker did not answer. Stop the query, and try again",
            err=True,
        )
    return 1 if still_open else 0


def _tell_nothing(before: SinkQuery, as_json: bool) -> int:
    if as_json:
        show_json({"query_id": before.query_id, "committed": [], "aborted": [], "lost": [], "still_open": []})
    else:
        click.echo(f"Query {before.query_id} has nothing open: there is nothing to do.")
    return 0


def _explain(found: SinkQuery, accept_loss: bool) -> None:
    if found.decision is not None and found.decision.batch_id >= 0:
        listed = count(len(found.decision.transactions), "transaction")
        click.echo(
            f"Query {found.query_id}: the last decision is about batch {found.decision.batch_id}, with {listed}."
        )
    else:
        click.echo(f"Nothing is decided for query {found.query_id}.")
    if found.to_commit:
        click.echo(f"To commit: {count(len(found.to_commit), 'transaction')}. Readers will see their records.")
    if found.undecided:
        click.echo(f"To abort:  {count(len(found.undecided), 'transaction')} in no decision. {RUNNING}")
    if found.lost and accept_loss:
        click.echo(
            f"Lost:      {count(len(found.lost), 'transaction')} of the decision. Their records stay missing in the "
            "topics, and the query will continue after them."
        )


# -- forget -----------------------------------------------------------------------------


@sinks.command("forget", short_help="Remove a query from the list, if it never comes back.")
@query_arguments
@json_option
@cluster_command
def forget(target: Target, query_id: str | None, checkpoint: str | None, yes: bool, as_json: bool) -> int:
    """Remove the last decision of a query that never comes back, so that `list` no longer shows it.

    If such a query is started again from its checkpoint, it may fail, or write its last batch again.
    """
    name = _query_id(query_id, checkpoint)
    _check_asking(as_json, yes)
    with wire_cluster(target) as cluster:
        query = _Query(cluster, name)
        found = query.look()
        if found.to_commit or found.undecided:
            raise PenstockError(
                f"query {name} has open transactions: first end them by `penstock pipeline sinks finish {name}`"
            )
        if not yes:
            click.echo(f"Query {name} must never be started again from its checkpoint.")
            if not confirmed("Forget it?"):
                click.echo("Nothing was changed.")
                return 1
        query.decider().forget()
    if as_json:
        show_json({"query_id": name, "forgotten": True})
    else:
        click.echo(f"Forgot query {name}.")
    return 0


# -- shared -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Query:
    cluster: BlockingCluster
    query_id: str

    def look(self) -> SinkQuery:
        """Raises PenstockError for a query that the cluster does not know: to fence it would create it."""
        from penstock.spark.sink.operating import sink_queries

        for one in sink_queries(self.cluster):
            if one.query_id == self.query_id:
                return one
        raise PenstockError(
            f"this cluster knows no query '{self.query_id}' that writes exactly once; "
            "`penstock pipeline sinks` lists those that it knows"
        )

    def decider(self) -> Decider:
        from penstock.spark.sink.deciding import Decider

        return Decider(self.cluster, self.cluster, self.query_id)


def _check_asking(as_json: bool, yes: bool) -> None:
    if as_json and not yes:
        raise click.UsageError("--json cannot ask for confirmation: give --yes as well")


def _query_id(given: str | None, checkpoint: str | None) -> str:
    """Raises ConfigError, click.UsageError."""
    if given and checkpoint is None:
        return given
    if given is None and checkpoint:
        return _id_in(checkpoint)
    raise click.UsageError("give the query's id, which `penstock pipeline sinks` shows, or its --checkpoint DIR")


def _id_in(checkpoint: str) -> str:
    """The id that Spark has written into the checkpoint when the query began."""
    text = checkpoint.removeprefix("file://")
    if "://" in text:
        raise ConfigError(f"{checkpoint} is not a local directory: read its file 'metadata', and give the id in it")
    path = Path(text) / "metadata"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["id"]
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}. Is {checkpoint} the checkpoint of a streaming query that has run?"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} has no query id: it is not the file of a streaming query's checkpoint") from error
    return str(found)
