"""`penstock pipeline sinks` against a real broker, with what queries have left there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.spark.sink.deciding import Decider
from penstock.spark.sink.decisions import Decisions
from penstock.testing import Broker
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.blocking.transaction_admin import TransactionAdmin
from penstock.wire_client.requests.producing_transactions import OpenTransaction
from support.clients.sink_tasks import PATIENCE_S, connected, is_held_back, write_task
from support.processes.command_line import CommandLine

QUERY = "7d4b1b6e-57a7-4a6b-9f39-1f0c9a3e5b2d"


@pytest.fixture
def penstock_broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def cluster(penstock_broker: Broker) -> Iterator[BlockingCluster]:
    made = connected(penstock_broker)
    yield made
    made.close()


def decide(cluster: BlockingCluster, batch_id: int, *transactions: OpenTransaction, query_id: str = QUERY) -> None:
    """As a driver that dies right after its decision."""
    decisions = Decisions(cluster, query_id)
    decisions.decide(decisions.take_over(), batch_id, transactions)


def commit(cluster: BlockingCluster, batch_id: int, *transactions: OpenTransaction, query_id: str = QUERY) -> None:
    Decider(cluster, cluster, query_id).commit(batch_id, transactions)


def listed(cli: CommandLine) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(cli("pipeline", "sinks", "list", "--json").out)
    return found


def test_no_query(cli: CommandLine) -> None:
    ran = cli("pipeline", "sinks")
    assert (ran.code, ran.out, ran.err) == (0, "", "No query writes to topics of this cluster exactly once.\n")
    assert listed(cli) == []
    for command in ("finish", "forget"):
        refused = cli("pipeline", "sinks", command, "nobody", "--yes")
        assert (refused.code, refused.out) == (1, "")
        assert refused.err == (
            "penstock: this cluster knows no query 'nobody' that writes exactly once; "
            "`penstock pipeline sinks` lists those that it knows\n"
        )


def test_list(cli: CommandLine, penstock_broker: Broker, cluster: BlockingCluster) -> None:
    commit(cluster, 0, write_task(penstock_broker, "one", 0), query_id="one")
    decide(cluster, 4, write_task(penstock_broker, "two", 4), write_task(penstock_broker, "two", 4), query_id="two")
    write_task(penstock_broker, "three", 0)
    assert cli("lag", "--json").out == "[]\n"  # their groups hold batch numbers
    header, *rows = cli("pipeline", "sinks", "--timeout", "20").lines
    assert header.split("  ")[0] == "QUERY"
    assert [row.split()[0] for row in rows] == ["one", "three", "two"]
    assert rows[0].split()[1] == "0"
    assert rows[0].split()[-4:] == ["1", "committed", "0", "-"]
    assert "2  2 to commit     0" in rows[2]
    one, three, two = listed(cli)
    assert (one["last_batch"], one["transactions"], one["to_commit"], one["undecided"]) == (0, 1, [], [])
    assert (three["last_batch"], three["decided_ms"]) == (None, None)
    assert [str(name)[: len("penstock-sink-three-")] for name in three["undecided"]] == ["penstock-sink-three-"]  # type: ignore[attr-defined]
    assert isinstance(three["oldest_open_ms"], int)
    assert (two["last_batch"], two["transactions"], len(two["to_commit"])) == (4, 2, 2)  # type: ignore[arg-type]


def test_finish(cli: CommandLine, penstock_broker: Broker, cluster: BlockingCluster, tmp_path: Path) -> None:
    commit(cluster, 0, write_task(penstock_broker, QUERY, 0))
    decide(cluster, 1, write_task(penstock_broker, QUERY, 1), write_task(penstock_broker, QUERY, 1))
    write_task(penstock_broker, QUERY, 2)
    assert is_held_back(cluster)
    declined = cli("pipeline", "sinks", "finish", QUERY, stdin=b"n\n")
    assert declined.code == 1
    assert declined.out.splitlines()[:3] == [
        f"Query {QUERY}: the last decision is about batch 1, with 2 transactions.",
        "To commit: 2 transactions. Readers will see their records.",
        "To abort:  1 transaction in no decision. If the query is running, its batch fails, and you must start the "
        "query again.",
    ]
    assert is_held_back(cluster)
    (tmp_path / "metadata").write_text(json.dumps({"id": QUERY}))
    assert cli("pipeline", "sinks", "finish", "--checkpoint", str(tmp_path), "--yes").lines == [
        "Committed: 2 transactions of the last decision.",
        "Aborted:   1 transaction in no decision.",
    ]
    assert not is_held_back(cluster, PATIENCE_S)
    assert cli("pipeline", "sinks", "finish", QUERY).lines == [
        f"Query {QUERY} has nothing open: there is nothing to do."
    ]
    told = json.loads(cli("pipeline", "sinks", "finish", QUERY, "--json", "--yes").out)
    assert told == {"query_id": QUERY, "committed": [], "aborted": [], "lost": [], "still_open": []}
    commit(cluster, 2, write_task(penstock_broker, QUERY, 2))  # the query has come back after all
    assert not is_held_back(cluster, PATIENCE_S)


def test_finish_before_the_first_decision(cli: CommandLine, penstock_broker: Broker, cluster: BlockingCluster) -> None:
    transaction = write_task(penstock_broker, QUERY, 0)
    told = json.loads(cli("pipeline", "sinks", "finish", QUERY, "--json", "--yes").out)
    assert (told["committed"], told["aborted"]) == ([], [transaction.transactional_id])
    assert not is_held_back(cluster, PATIENCE_S)
    (left,) = listed(cli)
    assert (left["last_batch"], left["undecided"]) == (None, [])
    assert cli("pipeline", "sinks").lines[1].split()[0] == QUERY
    commit(cluster, 0, write_task(penstock_broker, QUERY, 0))
    assert not is_held_back(cluster, PATIENCE_S)


def test_loss_is_told_and_accepted(cli: CommandLine, penstock_broker: Broker, cluster: BlockingCluster) -> None:
    lost, kept = write_task(penstock_broker, QUERY, 0), write_task(penstock_broker, QUERY, 0)
    decide(cluster, 0, lost, kept)
    TransactionAdmin(cluster).fence(lost.transactional_id)
    assert "1 lost, 1 to commit" in cli("pipeline", "sinks").lines[1]
    refused = cli("pipeline", "sinks", "finish", QUERY, "--yes")
    assert refused.code == 1
    assert "1 of its 2 transactions were aborted" in refused.err
    assert f"penstock pipeline sinks finish {QUERY} --accept-loss" in refused.err
    (only,) = listed(cli)
    assert (only["lost"], only["to_commit"]) == ([lost.transactional_id], [])
    accepted = cli("pipeline", "sinks", "finish", QUERY, "--accept-loss", stdin=b"y\n")
    assert accepted.code == 0
    assert "Lost:      1 transaction of the decision." in accepted.out
    assert accepted.lines[-1] == "Lost:      the records of 1 transaction."
    (only,) = listed(cli)
    assert (only["last_batch"], only["lost"], only["transactions"]) == (0, [], 0)
    commit(cluster, 1, write_task(penstock_broker, QUERY, 1))
    assert not is_held_back(cluster, PATIENCE_S)


def test_forget(cli: CommandLine, penstock_broker: Broker, cluster: BlockingCluster) -> None:
    transaction = write_task(penstock_broker, QUERY, 0)
    refused = cli("pipeline", "sinks", "forget", QUERY, "--yes")
    assert (refused.code, refused.err) == (
        1,
        f"penstock: query {QUERY} has open transactions: first end them by `penstock pipeline sinks finish {QUERY}`\n",
    )
    commit(cluster, 0, transaction)
    assert cli("pipeline", "sinks", "forget", QUERY, stdin=b"n\n").out.endswith("Nothing was changed.\n")
    assert cli("pipeline", "sinks", "forget", QUERY, "--yes").lines == [f"Forgot query {QUERY}."]
    assert listed(cli) == []


def test_the_doctor_names_the_query(
    cli: CommandLine, penstock_broker: Broker, cluster: BlockingCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said() -> list[dict[str, str]]:
        return [one for one in json.loads(cli("doctor", "--json").out) if one["about"] == "transactions"]

    monkeypatch.setattr("penstock.cli.doctor.transactions.LONG_MS", 0)
    for _ in range(2):
        transaction = write_task(penstock_broker, QUERY, 0)
    (warning,) = said()
    assert warning["state"] == "warning"
    assert warning["sentence"].startswith(
        f"Spark query {QUERY}, which writes exactly once, has had 2 open transactions in out-0 for "
    )
    assert f"`penstock pipeline sinks finish {QUERY}` ends them" in warning["advice"]
    declined = cli("transactions", "abort", "--transactional-id", transaction.transactional_id, stdin=b"n\n")
    assert f"`penstock pipeline sinks finish {QUERY}` commits what is decided" in declined.out
    assert cli("pipeline", "sinks", "finish", QUERY, "--yes").code == 0
    monkeypatch.undo()  # coordinators may still be completing transactions
    assert not is_held_back(cluster, PATIENCE_S)


def test_wrong_arguments(cli: CommandLine, tmp_path: Path) -> None:
    for arguments in ((), (QUERY, "--checkpoint", str(tmp_path))):
        refused = cli("pipeline", "sinks", "finish", *arguments)
        assert refused.code == 2
        assert "give the query's id, which `penstock pipeline sinks` shows, or its --checkpoint DIR" in refused.err
    assert "--json cannot ask" in cli("pipeline", "sinks", "finish", QUERY, "--json").err
    missing = cli("pipeline", "sinks", "finish", "--checkpoint", str(tmp_path))
    assert (missing.code, "No such file or directory. Is " in missing.err) == (2, True)
    (tmp_path / "metadata").write_text("v1")
    assert "has no query id" in cli("pipeline", "sinks", "finish", "--checkpoint", str(tmp_path)).err
    remote = cli("pipeline", "sinks", "finish", "--checkpoint", "s3://bucket/checkpoint")
    assert (remote.code, "is not a local directory" in remote.err) == (2, True)


def test_nobody_there(run: CommandLine) -> None:
    ran = run("pipeline", "sinks", "--bootstrap-server", "127.0.0.1:1")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("penstock: no broker answers at 127.0.0.1:1")


def test_help(run: CommandLine) -> None:
    text = run("pipeline", "sinks", "--help").out
    assert all(name in text for name in ("list", "finish", "forget"))
    assert "exactly once" in run("pipeline", "--help").out
