"""The driver's part of an exactly-once batch: to decide which transactions count, and to end them.

commit   take over -> is the batch decided? -> if not: check that its transactions are open, then decide
         -> commit what the decision lists, until every coordinator has confirmed -> abort what it rejects
abort    take over -> abort the batch's transactions, except those that a decision lists -> reject all others and abort
         them

The commit of the decision is the commit point (`sink.decisions`). A process may die anywhere. Spark repeats the batch
then: its tasks skip their rows if the batch is decided, and `commit` finishes the decision. Nothing is kept in memory
from batch to batch: Spark may call each commit in another process. Two drivers on one checkpoint fence each other. The
later one sees what the earlier one has decided, so a batch is never decided twice.

A decision rejects every other open transaction of the query: leftovers of failed attempts and of earlier runs. Only
after that they are aborted, and only if they have the same epoch still. A driver that comes later finds its own
transactions among the rejected ones, and does not list them. So a slow driver never aborts what a later one decides.

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
from penstock.spark.sink.decisions import NONE_DECIDED, Decision, Decisions, is_fenced, task_prefix
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
        self._sweeping = Transactions(sweeping)
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
        """After a task or `commit` has failed. A decision stays. Raises ApiError, WireClientError."""
        reach(Step.ABORT_CALLED)
        driver = self._decisions.take_over()
        last = self._decisions.last()
        decided = frozenset(last.transactions if last is not None else ())
        # No other driver lists the transactions of this one.
        self._transactions.end([one for one in transactions if one not in decided], is_commit=False)
        self.sweep(self._reject_rest(driver, last))
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
            try:
                if last is not None and last.batch_id >= batch_id:
                    return self._reject_rest(driver, last)
                self._check_open(batch_id, transactions, last)
                reach(Step.CHECKED)
                return self._decisions.decide(driver, batch_id, transactions, self._others(transactions, last))
            except ApiError as error:
                if not is_fenced(error) or attempt == ATTEMPTS:
                    raise
                logger.info("another driver of query %s has taken over; trying again", self._query_id)
                time.sleep(PAUSE_S * attempt)
        raise AssertionError

    def _reject_rest(self, driver: OpenTransaction, last: Decision | None) -> Decision:
        """The last decision, written again if it does not reject all that is open. Raises ApiError if fenced."""
        known = last or Decision(self._query_id, NONE_DECIDED, (), 0)
        others = self._others(known.transactions, last)
        rejected = tuple(dict.fromkeys((*known.rejected, *others)))
        if rejected == known.rejected:
            return known
        return self._decisions.decide(driver, known.batch_id, known.transactions, rejected)

    def _others(self, kept: Sequence[OpenTransaction], last: Decision | None) -> tuple[OpenTransaction, ...]:
        """Open transactions of the query's tasks besides `kept`. If a broker does not tell: what `last` rejects."""
        names = {one.transactional_id for one in kept}
        try:
            found = self._sweeping.describe(name for name in self.open_ids() if name not in names)
            version = self._sweeping.version() if found else 0
        except (ApiError, WireClientError) as error:
            logger.warning("transactions of query %s may stay open until its next batch: %s", self._query_id, error)
            return last.rejected if last is not None else ()
        return tuple(
            OpenTransaction(name, seen.producer_id, seen.producer_epoch, version, seen.is_decided_outside)
            for name, seen in found.items()
            if seen.state == ONGOING
        )

    def _check_open(self, batch_id: int, transactions: Sequence[OpenTransaction], last: Decision | None) -> None:
        found = self._transactions.describe(one.transactional_id for one in transactions)
        rejected = {one[:3] for one in last.rejected} if last is not None else frozenset()
        for one in transactions:
            seen = found.get(one.transactional_id)
            state = "unknown to its coordinator" if seen is None else seen.state
            if one[:3] in rejected:
                seen, state = None, "rejected by another driver"
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
        return self._decisions.decide(driver, last.batch_id, (), last.rejected)

    def finish_all(self) -> Decision:
        """For a person, if the query does not come back. A query that runs must be started again after this.

        Raises DecidedButAborted, ApiError, WireClientError.
        """
        driver = self._decisions.take_over()
        decision = self._reject_rest(driver, self._decisions.last())
        self.sweep(decision)
        self.finish(decision)
        return decision

    def forget(self) -> None:
        """Withdraws the query's decision. Only for a query that never comes back: it might repeat its last batch."""
        self._decisions.withdraw(self._decisions.take_over())

    def sweep(self, decision: Decision) -> None:
        """Aborts what the decision rejects. Failures are left to the next batch."""
        try:
            codes = self._sweeping.end(decision.rejected, is_commit=False)
        except (ApiError, WireClientError) as error:
            logger.warning("transactions of query %s may stay open until its next batch: %s", self._query_id, error)
            return
        for one, code in codes.items():
            if code is ErrorCode.NONE:
                logger.info("aborted transaction %s, which no decision lists", one.transactional_id)

    def open_ids(self) -> list[str]:
        """The transactional ids of tasks with an open transaction, sorted."""
        prefix = task_prefix(self._query_id)
        which = TransactionFilter(states=(ONGOING,), pattern=f"{re.escape(prefix)}.*")
        found = (one.transactional_id for one in self._admin.transactional_ids(which))
        return [name for name in found if name.startswith(prefix)]


def decider_for(options: ClusterOptions, query_id: str) -> Decider:
    return Decider(cluster_for(options), cluster_for(options, SWEEP_S), query_id)
