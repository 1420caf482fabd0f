"""The state of exactly-once queries as an operator sees it, from the decisions and the coordinators.

Must not know: how it is shown, who decides. Invariant: it only reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from penstock.model.errors import ApiError, ErrorCode
from penstock.spark.sink.deciding import COMMITTED, ONGOING
from penstock.spark.sink.decisions import PREFIX, Decision, last_decisions
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.blocking.transaction_admin import TransactionAdmin
from penstock.wire_client.requests.transactions import TransactionFilter

OF_A_TASK = re.compile(re.escape(PREFIX) + r"(?P<query_id>.+)-[0-9a-f]{12}-[0-9]+")


class SinkQuery(NamedTuple):
    query_id: str
    decision: Decision | None
    """The last one. None: nothing is decided yet."""
    to_commit: tuple[str, ...]
    """Transactional ids that the decision lists and that are still open."""
    lost: tuple[str, ...]
    """Those that the decision lists and that were aborted: their records are missing."""
    undecided: tuple[str, ...]
    """Open transactions of tasks that the decision does not list: of the running batch, or left behind."""
    oldest_ms: int | None
    """The start of the oldest open transaction."""


def sink_queries(cluster: BlockingCluster) -> list[SinkQuery]:
    """Queries with a decision or an open transaction, by id. Raises ApiError, WireClientError, UnreadableDecision."""
    admin = TransactionAdmin(cluster)
    # Decisions first: what they list is committed later, so no transaction looks lost that is about to be committed.
    decisions = last_decisions(cluster)
    states = {
        one.transactional_id: one.state
        for one in admin.transactional_ids(TransactionFilter(pattern=f"{re.escape(PREFIX)}.*"))
        if one.transactional_id.startswith(PREFIX)
    }
    open_ids: dict[str, list[str]] = {}
    for name, state in states.items():
        query_id = query_of(name)
        if state == ONGOING and query_id is not None:
            open_ids.setdefault(query_id, []).append(name)
    found = []
    for query_id in sorted(decisions.keys() | open_ids.keys()):
        decision = decisions.get(query_id)
        listed = {one.transactional_id for one in decision.transactions} if decision is not None else set()
        names = sorted(open_ids.get(query_id, ()))
        found.append(
            SinkQuery(
                query_id,
                decision,
                to_commit=tuple(name for name in names if name in listed),
                lost=tuple(_lost(decision, states)),
                undecided=tuple(name for name in names if name not in listed),
                oldest_ms=_oldest_ms(admin, names),
            )
        )
    return found


def query_of(transactional_id: str) -> str | None:
    """The query whose task has this transactional id. None: it is not of a sink's task."""
    found = OF_A_TASK.fullmatch(transactional_id)
    return None if found is None else found["query_id"]


def _lost(decision: Decision | None, states: dict[str, str]) -> Iterable[str]:
    """Coordinators forget an id after a week without a transaction. Without a state it is taken for committed."""
    for one in decision.transactions if decision is not None else ():
        state = states.get(one.transactional_id)
        if state is not None and state != ONGOING and state not in COMMITTED:
            yield one.transactional_id


def _oldest_ms(admin: TransactionAdmin, names: Iterable[str]) -> int | None:
    starts = []
    for name in names:
        try:
            starts.append(admin.describe(name).start_ms)
        except ApiError as error:
            if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:  # it has expired meanwhile
                raise
    return min((start for start in starts if start is not None), default=None)
