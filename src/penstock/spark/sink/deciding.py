"""The driver's part of an exactly-once batch: to decide which transactions count, and to end them.

commit   take over -> is the batch decided? -> if not: check that its transactions are open, then decide
         -> commit what the decision lists, until every coordinator has confirmed -> abort all others of the query
abort    take over -> abort the batch's transactions, except those that a decision lists

The commit of the decision is the commit point (`sink.decisions`). A process may die anywhere. Spark repeats the batch
then: its tasks skip their rows if the batch is decided, and `commit` finishes the decision. Nothing is kept in memory
from batch to batch: Spark may call each commit in another process. Two drivers on one checkpoint fence each other. The
later one sees what the earlier one has decided, so a batch is never decided twice.

Must not know: Arrow, tasks. Invariants: a transaction that a decision lists is never aborted here. Only `Decisions`
tells what is decided, and only after taking over.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence

from penstock.model.errors import ApiError, ErrorCode, PenstockError
from penstock.spark.options.cluster import ClusterOptions
from penstock.spark.sink.decisions import Decision, Decisions, is_fenced, task_prefix
from penstock.spark.sink.steps import Step, reach
from penstock.spark.worker import cluster_for
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.blocking.transaction_admin import TransactionAdmin
from penstock.wire_client.blocking.transactions import Transactions
from penstock.wire_client.requests.errors import WireClientError
from penstock.wire_client.requests.producing_transactions import OpenTransaction
from penstock.wire_client.requests.transactions import TransactionFilter

logger = logging.getLogger(__name__)

ATTEMPTS = 5
"""How often a driver takes over again after another driver of the query has fenced it."""
PAUSE_S = 0.2
SWEEP_S = 5.0
"""How long a sweep waits for a broker."""
SHOWN = 3
ONGOING = "Ongoing"
COMMITTED = frozenset(("PrepareCommit", "CompleteCommit"))


class NotOpen(PenstockError):
    """A transaction of the batch was ended before the decision. Nothing of the batch counts; Spark may repeat it."""


class DecidedButAborted(PenstockError):
    """Records of a decided batch are lost: their transaction was aborted. A repetition does not help."""


class Decider:
    def __init__(self, cluster: BlockingCluster, sweeping: BlockingCluster, query_id: str) -> None:
        """`sweeping` has a short timeout: a broker that is away must not delay a batch that is committed."""
        self._query_id = query_id
        self._transactions = Transactions(cluster)
        self._admin = TransactionAdmin(sweeping)
        self._decisions = Decisions(cluster, query_id)

    # -- what Spark calls -----------------------------------------------------------------

    def commit(self, batch_id: int, transactions: Sequence[OpenTransaction]) -> Decision:
        """Returns when everything that the batch's decision lists is committed.

        Raises NotOpen, DecidedButAborted, ApiError, WireClientError.
        """
        reach(Step.COMMIT_CALLED)
        decision = self._settle(batch_id, transactions)
        self.finish(decision)
        reach(Step.FINISHED)
        self.sweep(decision)
        reach(Step.SWEPT)
        return decision

    def abort(self, batch_id: int, transactions: Sequence[OpenTransaction]) -> None:
        """After a task or `commit` has failed. What is decided stays. Raises ApiError, WireClientError."""
        reach(Step.ABORT_CALLED)
        self._decisions.take_over()
        last = self._decisions.last()
        decided = frozenset(last.transactions if last is not None else ())
        self._transactions.end([one for one in transactions if one not in decided], is_commit=False)
        self.sweep(last)
        reach(Step.ABORTED)
        if decided.intersection(transactions):
            logger.info("batch %d is decided: the next run of the query finishes it", batch_id)

    # -- deciding -------------------------------------------------------------------------

    def _settle(self, batch_id: int, transactions: Sequence[OpenTransaction]) -> Decision:
        """The decision about the batch: that of an earlier attempt, or a new one."""
        for attempt in range(1, ATTEMPTS + 1):
            driver = self._decisions.take_over()
            reach(Step.TAKEN_OVER)
            last = self._decisions.last()
            if last is not None and last.batch_id >= batch_id:
                return last
            self._check_open(batch_id, transactions)
            reach(Step.CHECKED)
            try:
                return self._decisions.decide(driver, batch_id, transactions)
            except ApiError as error:
                if not is_fenced(error) or attempt == ATTEMPTS:
                    raise
                logger.info("another driver of query %s has taken over; trying again", self._query_id)
                time.sleep(PAUSE_S * attempt)
        raise AssertionError

    def _check_open(self, batch_id: int, transactions: Sequence[OpenTransaction]) -> None:
        found = self._transactions.describe(one.transactional_id for one in transactions)
        for one in transactions:
            seen = found.get(one.transactional_id)
            state = "unknown to its coordinator" if seen is None else seen.state
            if seen is None or seen.state != ONGOING or (seen.producer_id, seen.producer_epoch) != one[1:3]:
                raise NotOpen(
                    f"batch {batch_id}: transaction '{one.transactional_id}' of a finished task is no longer open "
                    f"(state: {state}). It timed out, or another driver of this query or an operator aborted it. No "
                    "record of the batch counts. Start the query again: it repeats the batch"
                )

    # -- ending ---------------------------------------------------------------------------

    def finish(self, decision: Decision) -> None:
        """Commits all transactions of a decision. May be repeated. Raises DecidedButAborted, ApiError."""
        codes = self._transactions.end(decision.transactions, is_commit=True, on_answer=lambda: reach(Step.ENDED_ONE))
        refused = {one: code for one, code in codes.items() if code is not ErrorCode.NONE}
        if not refused:
            return
        found = self._transactions.describe(one.transactional_id for one in refused)
        lost: list[str] = []
        for one, code in refused.items():
            seen = found.get(one.transactional_id)
            if seen is not None and seen.state in COMMITTED:
                continue
            if seen is None and one.is_two_phase:
                # It has no timeout, and an id expires only after its transaction has ended.
                logger.warning("transactional id '%s' has expired: its transaction was committed before", one[0])
                continue
            lost.append(f"{one.transactional_id} ({code.name}, {'forgotten' if seen is None else seen.state})")
        if lost:
            named = f"{', '.join(lost[:SHOWN])}{', ...' if len(lost) > SHOWN else ''}"
            raise DecidedButAborted(
                f"batch {decision.batch_id} of query {decision.query_id} is decided, but {len(lost)} of its "
                f"{len(decision.transactions)} transactions were aborted before they could be committed: {named}. "
                "The target topics lack their records. The transactions timed out before the driver came back, because "
                "the cluster has no two-phase commit; or an operator aborted them. Write these records again by other "
                f"means. Then let the query continue: penstock pipeline sinks finish {decision.query_id} --accept-loss"
            )

    def accept_loss(self) -> Decision | None:
        """Commits what the last decision lists and can still be committed, and forgets the rest.

        Only for a person, after DecidedButAborted. None: nothing is decided.
        """
        driver = self._decisions.take_over()
        last = self._decisions.last()
        if last is None:
            return None
        self._transactions.end(last.transactions, is_commit=True)
        return self._decisions.decide(driver, last.batch_id, ())

    def sweep(self, decision: Decision | None) -> None:
        """Aborts open transactions of the query's tasks that the decision does not list: leftovers of earlier runs and
        of attempts that failed. Failures are left to the next sweep."""
        kept = {one.transactional_id for one in decision.transactions} if decision is not None else frozenset()
        try:
            for name in self.open_ids():
                if name not in kept:
                    self._admin.fence(name)
                    logger.info("aborted transaction %s, which no decision lists", name)
        except (ApiError, WireClientError) as error:
            logger.warning("some transactions of query %s may still be open: %s", self._query_id, error)

    def open_ids(self) -> list[str]:
        """The transactional ids of tasks with an open transaction, sorted."""
        prefix = task_prefix(self._query_id)
        which = TransactionFilter(states=(ONGOING,), pattern=f"{re.escape(prefix)}.*")
        found = (one.transactional_id for one in self._admin.transactional_ids(which))
        return [name for name in found if name.startswith(prefix)]


def decider_for(options: ClusterOptions, query_id: str) -> Decider:
    return Decider(cluster_for(options), cluster_for(options, SWEEP_S), query_id)
