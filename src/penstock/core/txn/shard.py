"""One partition of `__transaction_state`: its transactional ids, their transactions, their deadlines. Sans-IO.

Decide, then replay: an operation reads the state and returns an `Outcome`; the caller appends its records, passes each
to `replay`, and answers when they are committed. A decision to end a transaction is such a record. Its markers are a
deed of the same outcome, so they are written only after the decision is committed. When every partition has its marker,
another record completes the transaction.

The missing markers are not stored. After a crash or a change of leader all of them are due again; a partition that
already has its marker does not append it twice.

Must not know: partitions' leaders, connections, wire versions, clocks. Time (see `wall_clock`) and unused producer ids
are arguments.

Invariants
- Every token is answered exactly once; the caller replays the records of an outcome before the next operation.
- Only `replay` changes `transactions`. An epoch that could not be stored was never raised.
- A transaction is Ongoing, or is ending with markers due, or has no partitions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

from penstock.core.shard.exchange import Outcome, Token
from penstock.core.shard.records import CoordinatorRecord, Decoder, decode, fits
from penstock.core.shard.timers import Timers
from penstock.core.shard.wall_clock import WallClock
from penstock.core.txn.exchange import (
    NEEDS_PRODUCER_ID,
    AddReply,
    AddRequest,
    DescribedTransaction,
    DescribeReply,
    EndReply,
    EndRequest,
    InitReply,
    InitRequest,
    ListFilter,
    ListReply,
    MarkersDue,
    TimedOut,
    VerifyReply,
)
from penstock.core.txn.records import DECODERS, TransactionStored, TransactionTombstone
from penstock.core.txn.settings import TransactionSettings
from penstock.core.txn.states import Act, Move, Request, State, answer
from penstock.core.txn.transaction import (
    FIRST_WITH_RISING_EPOCHS,
    LARGEST_EPOCH,
    LATEST_VERSION,
    NEVER_MS,
    NO_EPOCH,
    NO_PARTITIONS,
    NO_PRODUCER_ID,
    Partition,
    Transaction,
)
from penstock.model.errors import ErrorCode

TIMEOUT: Final = "timeout"
COMPLETE: Final = "complete"
EXPIRE: Final = "expire"
PARKED: Final = "parked"
RETRY_MS: Final = 500
PARKED_MS: Final = 1_000
"""How long a request waits for the previous transaction's markers; then the answer is CONCURRENT_TRANSACTIONS."""
PARKED_PER_ID: Final = 16
EXPIRED_IN_ONE_GO: Final = 1_000
LOOKED_AT_IN_ONE_GO: Final = 10_000

TRANSACTION_STATE_TOPIC: Final = "__transaction_state"


class TransactionShard:
    decoders: ClassVar[dict[int, Decoder]] = DECODERS

    def __init__(self, settings: TransactionSettings, version: Callable[[], int] = lambda: LATEST_VERSION) -> None:
        """`version`: the finalized level of transaction.version, under which the coordinator's own aborts count."""
        self.settings = settings
        self._version = version
        self.transactions: dict[str, Transaction] = {}
        self.timers = Timers()
        self.wall = WallClock()
        self._missing: dict[str, frozenset[Partition]] = {}
        """Of ending transactions: the partitions whose marker is not yet confirmed."""
        self._parked: dict[str, list[tuple[Token, InitRequest | AddRequest]]] = {}
        """Requests that wait for the previous transaction's markers, in order."""
        self._is_loaded = False
        self._to_look_at: list[str] = []  # for expiry, the next one last

    def __len__(self) -> int:
        return len(self.transactions)

    def configure(self, settings: TransactionSettings) -> None:
        """Settings changed at run time; existing deadlines stay."""
        self.settings = settings

    # -- the log ------------------------------------------------------------------------

    def decode(self, key: bytes, value: bytes | None) -> CoordinatorRecord | None:
        return decode(TRANSACTION_STATE_TOPIC, key, value, self.decoders)

    def decode_pending(self, producer_id: int, key: bytes, value: bytes | None) -> CoordinatorRecord | None:
        """The coordinator writes outside of transactions."""
        return None

    def replay_marker(self, producer_id: int, *, is_commit: bool) -> None:
        """No marker belongs here."""

    def replay(self, record: CoordinatorRecord) -> None:
        """The only writer of hard state, for new decisions and at load."""
        match record:
            case TransactionStored(transaction):
                transactional_id = transaction.transactional_id
                self.transactions[transactional_id] = transaction
                if transaction.is_ending:
                    self._missing[transactional_id] = transaction.partitions
                else:
                    self._missing.pop(transactional_id, None)
                    self.timers.cancel((COMPLETE, transactional_id))
                if transaction.state is not State.ONGOING:
                    self.timers.cancel((TIMEOUT, transactional_id))
                elif self._is_loaded:
                    # It was written just now; the clock may have been set back since the transaction began.
                    self._set_timeout(transaction, transaction.last_update_ms - self.wall.ahead_ms)
            case TransactionTombstone(transactional_id):
                self.transactions.pop(transactional_id, None)
                self._missing.pop(transactional_id, None)
                self.timers.cancel((TIMEOUT, transactional_id))

    def loaded(self, now_ms: int) -> Outcome:
        """The whole log has been replayed, and is committed."""
        out = Outcome()
        self._is_loaded = True
        for transaction in self.transactions.values():
            if transaction.is_ending:
                self._markers_due(transaction, out, now_ms)
            elif transaction.state is State.ONGOING:
                self._set_timeout(transaction, now_ms)
        self.timers.set((EXPIRE,), now_ms + self.settings.expiration_check_interval_ms)
        return out

    def _set_timeout(self, transaction: Transaction, now_ms: int) -> None:
        """No later than its timeout from now: the begin may have been written by a clock that is days ahead."""
        if not transaction.is_decided_outside:
            began_ms = min(transaction.start_ms - self.wall.ahead_ms, now_ms)
            self.timers.set((TIMEOUT, transaction.transactional_id), began_ms + transaction.timeout_ms)

    # # -- InitProducerId -----------------------------------------------------------------

    def init_producer_id(self, request: InitRequest, token: Token, now_ms: int) -> Outcome:
        out = Outcome()
        code = self._check_init(request)
        if code is not ErrorCode.NONE:
            out.reply(token, InitReply(code))
            return out
        self._init(request, out, token, now_ms, may_wait=True)
        return out

    def _init(self, request: InitRequest, out: Outcome, token: Token, now_ms: int, *, may_wait: bool) -> None:
        timeout_ms = NEVER_MS if request.is_decided_outside else request.timeout_ms
        known = self.transactions.get(request.transactional_id)
        if known is None:
            self._init_new(request, timeout_ms, out, token, now_ms)
        elif request.producer_id >= 0 and not _may_go_on(request, known):
            out.reply(token, InitReply(ErrorCode.PRODUCER_FENCED))
        else:
            waiting = self._init_known(request, known, timeout_ms, out, token, now_ms)
            if waiting is not None and not (may_wait and self._park(request, token, now_ms)):
                out.reply(token, InitReply(waiting))

    def _check_init(self, request: InitRequest) -> ErrorCode:
        if not request.transactional_id or not fits(request.transactional_id):
            return ErrorCode.INVALID_REQUEST
        if request.is_decided_outside and not self.settings.allows_two_phase_commit:
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if request.keeps_prepared:
            return ErrorCode.UNSUPPORTED_VERSION
        if not request.is_decided_outside and not 0 < request.timeout_ms <= self.settings.max_timeout_ms:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT
        return ErrorCode.NONE

    def _init_new(self, request: InitRequest, timeout_ms: int, out: Outcome, token: Token, now_ms: int) -> None:
        if request.spare_producer_id < 0:
            out.reply(token, NEEDS_PRODUCER_ID)
            return
        made = Transaction(
            request.transactional_id,
            request.spare_producer_id,
            0,
            timeout_ms,
            State.EMPTY,
            NO_PARTITIONS,
            self.wall.at(now_ms),
        )
        self._store(made, out)
        out.reply(token, InitReply(ErrorCode.NONE, made.producer_id, made.epoch))

    def _init_known(
        self, request: InitRequest, known: Transaction, timeout_ms: int, out: Outcome, token: Token, now_ms: int
    ) -> ErrorCode | None:
        """The error for the client if the request does not wait for markers. None: it is answered."""
        act = answer(known.state, Request.INIT)
        wall_ms = self.wall.at(now_ms)
        if isinstance(act, ErrorCode):
            return act
        if act is Act.FENCE:
            if request.producer_id >= 0 and (request.producer_id, request.epoch) != (known.producer_id, known.epoch):
                # Only its own producer knows the epoch of an open transaction: an earlier one must not abort it.
                out.reply(token, InitReply(ErrorCode.PRODUCER_FENCED))
                return None
            # No client gets this epoch: once the markers are written the producer gets the next one.
            self._fence(known, out, now_ms)
            return ErrorCode.CONCURRENT_TRANSACTIONS
        # The last epoch is of markers: a producer whose transaction was aborted with it goes on with another id, too.
        may_rotate = request.epoch in (NO_EPOCH, known.epoch) or (
            known.has_last_epoch and request.epoch == known.last_epoch
        )
        if known.is_exhausted and may_rotate:
            if request.spare_producer_id < 0:
                out.reply(token, NEEDS_PRODUCER_ID)
                return None
            rotated = known.with_producer_id(request.spare_producer_id, request.epoch, timeout_ms, wall_ms)
            self._store(rotated, out)
            out.reply(token, InitReply(ErrorCode.NONE, rotated.producer_id, rotated.epoch))
        else:
            self._raise_epoch(request, known, timeout_ms, out, token, wall_ms)
        return None

    def _raise_epoch(
        self, request: InitRequest, known: Transaction, timeout_ms: int, out: Outcome, token: Token, wall_ms: int
    ) -> None:
        if request.epoch < 0:
            follow = known.initialised(known.epoch + 1, NO_EPOCH, timeout_ms, wall_ms)
        elif request.epoch == known.epoch:
            follow = known.initialised(known.epoch + 1, known.epoch, timeout_ms, wall_ms)
        elif request.epoch == known.last_epoch:
            # A repeated request: its epoch was raised, and the answer was lost.
            # It may come yet again, with the id from before a change of ids.
            follow = known.initialised(known.epoch, known.last_epoch, timeout_ms, wall_ms)
            follow = follow._replace(previous_producer_id=known.previous_producer_id)
        else:
            out.reply(token, InitReply(ErrorCode.PRODUCER_FENCED))
            return
        self._store(follow, out)
        out.reply(token, InitReply(ErrorCode.NONE, follow.producer_id, follow.epoch))

    # -- partitions ---------------------------------------------------------------------

    def add_partitions(self, request: AddRequest, token: Token, now_ms: int) -> Outcome:
        out = Outcome()
        self._add(request, out, token, now_ms)
        return out

    def _add(self, request: AddRequest, out: Outcome, token: Token, now_ms: int) -> None:
        known, code = self._of_producer(request.transactional_id, request.producer_id, request.epoch)
        if known is None:
            out.reply(token, AddReply(code))
            return
        act = answer(known.state, Request.ADD)
        if isinstance(act, ErrorCode):
            if not (request.may_wait and self._park(request, token, now_ms)):
                out.reply(token, AddReply(act))
            return
        if known.state is not State.ONGOING or not request.partitions <= known.partitions:
            self._store(known.with_partitions(request.partitions, request.version, self.wall.at(now_ms)), out)
        out.reply(token, AddReply(ErrorCode.NONE))

    def verify_partitions(self, request: AddRequest, token: Token, now_ms: int) -> Outcome:
        """Whether these partitions are part of the open transaction; nothing is added."""
        out = Outcome()
        known, code = self._of_producer(request.transactional_id, request.producer_id, request.epoch)
        if known is None:
            out.reply(token, VerifyReply(code))
        elif known.is_ending:
            out.reply(token, VerifyReply(ErrorCode.CONCURRENT_TRANSACTIONS))
        else:
            out.reply(token, VerifyReply(ErrorCode.NONE, request.partitions - known.partitions))
        return out

    def _of_producer(self, transactional_id: str, producer_id: int, epoch: int) -> tuple[Transaction | None, ErrorCode]:
        if not transactional_id:
            return None, ErrorCode.INVALID_REQUEST
        known = self.transactions.get(transactional_id)
        valid_epoch = None if known is None else known.epoch_of(producer_id)
        if valid_epoch is None:
            return None, ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if epoch != valid_epoch or epoch >= LARGEST_EPOCH:
            return None, ErrorCode.PRODUCER_FENCED
        return known, ErrorCode.NONE

    # # -- end of a transaction ------------------------------------------------------------

    def end(self, request: EndRequest, token: Token, now_ms: int) -> Outcome:
        out = Outcome()
        if not request.transactional_id:
            out.reply(token, EndReply(ErrorCode.INVALID_REQUEST))
            return out
        known = self.transactions.get(request.transactional_id)
        if known is None:
            out.reply(token, EndReply(ErrorCode.INVALID_PRODUCER_ID_MAPPING))
            return out
        asked = _asked(request, known)
        if isinstance(asked, ErrorCode):
            out.reply(token, EndReply(asked))
            return out
        act = answer(known.state, asked)
        if isinstance(act, ErrorCode):
            out.reply(token, EndReply(act))
        elif act is Act.CONFIRM and known.has_last_epoch:
            # The coordinator aborted it, and the producer must begin anew: the next epoch does not exist.
            out.reply(token, EndReply(ErrorCode.PRODUCER_FENCED))
        elif act is Act.CONFIRM:
            out.reply(token, EndReply(ErrorCode.NONE, known.producer_id, known.epoch))
        else:
            self._decide(request, known, act, out, token, now_ms)
        return out

    def _decide(
        self, request: EndRequest, known: Transaction, act: Act, out: Outcome, token: Token, now_ms: int
    ) -> None:
        next_producer_id = NO_PRODUCER_ID
        if request.version >= FIRST_WITH_RISING_EPOCHS and known.is_exhausted:
            if request.spare_producer_id < 0:
                out.reply(token, NEEDS_PRODUCER_ID)
                return
            next_producer_id = request.spare_producer_id
        move = Move.COMMIT if act is Act.COMMIT else Move.ABORT
        ended = known.ended(move, request.version, next_producer_id, self.wall.at(now_ms))
        if act is Act.ABORT_EMPTY:
            ended = ended._replace(partitions=NO_PARTITIONS)
        self._store_ended(ended, out, now_ms)
        out.reply(token, EndReply(ErrorCode.NONE, *ended.follow_up))

    def _fence(self, known: Transaction, out: Outcome, now_ms: int) -> None:
        self._store_ended(known.fenced(self._version(), self.wall.at(now_ms)), out, now_ms)

    def _store_ended(self, ended: Transaction, out: Outcome, now_ms: int) -> None:
        self._store(ended, out)
        if ended.partitions:
            self._markers_due(ended, out, now_ms)
        else:
            self._store(ended.completed(self.wall.at(now_ms)), out)

    def _markers_due(self, ending: Transaction, out: Outcome, now_ms: int) -> None:
        if not ending.partitions:
            self.timers.set((COMPLETE, ending.transactional_id), now_ms)
            return
        out.deeds.append(
            MarkersDue(
                ending.transactional_id,
                ending.producer_id,
                ending.epoch,
                ending.state is State.PREPARE_COMMIT,
                ending.version,
                ending.partitions,
            )
        )

    def markers_written(self, due: MarkersDue, partitions: frozenset[Partition], now_ms: int) -> Outcome:
        """These partitions have the marker of `due`, or do not need it any more."""
        out = Outcome()
        known = self.transactions.get(due.transactional_id)
        is_same = known is not None and (known.producer_id, known.epoch) == (due.producer_id, due.epoch)
        if known is None or not is_same or not known.is_ending:
            return out  # it was already complete, or another leader continued it
        missing = self._missing[due.transactional_id] - partitions
        self._missing[due.transactional_id] = missing
        if not missing:
            self._complete(known, out, now_ms)
        return out

    def _complete(self, known: Transaction, out: Outcome, now_ms: int) -> None:
        self.timers.set((COMPLETE, known.transactional_id), now_ms + RETRY_MS)  # in case the record cannot be appended
        self._store(known.completed(self.wall.at(now_ms)), out)
        if known.transactional_id in self._parked:
            self.timers.set((PARKED, known.transactional_id), now_ms)
            out.is_continued = True

    # -- requests that wait for markers ---------------------------------------------------

    def _park(self, request: InitRequest | AddRequest, token: Token, now_ms: int) -> bool:
        """Return whether the request is parked; otherwise the client tries again, some time after the markers are
        written.
        """
        transactional_id = request.transactional_id
        parked = self._parked.setdefault(transactional_id, [])
        if len(parked) >= PARKED_PER_ID:
            return False
        if not parked:
            self.timers.set((PARKED, transactional_id), now_ms + PARKED_MS)
        parked.append((token, request))
        return True

    def _release(self, key: tuple[str, ...], out: Outcome, now_ms: int) -> None:
        """The markers are written, or the requests have waited long enough."""
        known = self.transactions.get(key[1])
        parked = self._parked.pop(key[1], [])
        for at, (token, request) in enumerate(parked):
            if known is not None and known.is_ending:
                code = ErrorCode.CONCURRENT_TRANSACTIONS
                out.reply(token, InitReply(code) if isinstance(request, InitRequest) else AddReply(code))
            elif out.records:  # replay these before the next request
                self._parked[key[1]] = [*parked[at:], *self._parked.get(key[1], ())]
                self.timers.set(key, now_ms)
                out.is_continued = True
                break
            elif isinstance(request, InitRequest):
                self._init(request, out, token, now_ms, may_wait=False)
            else:
                self._add(request._replace(may_wait=False), out, token, now_ms)

    # -- views --------------------------------------------------------------------------

    def describe(self, transactional_id: str, token: Token, now_ms: int) -> Outcome:
        out = Outcome()
        known = self.transactions.get(transactional_id)
        if not transactional_id:
            out.reply(token, DescribeReply(ErrorCode.INVALID_REQUEST))
        elif known is None:
            out.reply(token, DescribeReply(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND))
        else:
            out.reply(token, DescribeReply(ErrorCode.NONE, _described(known)))
        return out

    def list_transactions(self, which: ListFilter, token: Token, now_ms: int) -> Outcome:
        wall_ms = self.wall.at(now_ms)
        out = Outcome()
        found = (one for one in self.transactions.values() if _is_listed(one, which, wall_ms))
        out.reply(token, ListReply(tuple(_described(one) for one in found)))
        return out

    # -- time ---------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        return self.timers.next_deadline()

    def tick(self, now_ms: int) -> Outcome:
        out = Outcome()
        for key in self.timers.take_due(now_ms):
            self._due[key[0]](self, key, out, now_ms)
            if out.records:
                break  # replay these before the next deadline
        return out

    def _time_out(self, key: tuple[str, ...], out: Outcome, now_ms: int) -> None:
        known = self.transactions.get(key[1])
        if known is not None and known.state is State.ONGOING:
            self.timers.set(key, now_ms + RETRY_MS)  # in case the decision cannot be appended
            self._fence(known, out, now_ms)
            out.deeds.append(TimedOut(known.transactional_id))
            out.notices.append(
                f"transaction of {known.transactional_id} is aborted: it is open for longer than its timeout of "
                f"{known.timeout_ms} ms"
            )

    def _complete_again(self, key: tuple[str, ...], out: Outcome, now_ms: int) -> None:
        known = self.transactions.get(key[1])
        if known is not None and known.is_ending:
            self._complete(known, out, now_ms)

    def _expire(self, key: tuple[str, ...], out: Outcome, now_ms: int) -> None:
        """One part of the walk over all transactional ids."""
        if not self._to_look_at:
            self._to_look_at = list(self.transactions)
        oldest_ms = self.wall.at(now_ms) - self.settings.id_expiration_ms
        for _ in range(LOOKED_AT_IN_ONE_GO):
            if not self._to_look_at or len(out.records) >= EXPIRED_IN_ONE_GO:
                break
            known = self.transactions.get(self._to_look_at.pop())
            if known is not None and known.may_expire and known.last_update_ms < oldest_ms:
                out.records.append(TransactionTombstone(known.transactional_id))
        pause_ms = 1 if self._to_look_at else self.settings.expiration_check_interval_ms
        self.timers.set(key, now_ms + pause_ms)

    _due: ClassVar[dict[str, Callable[[TransactionShard, tuple[str, ...], Outcome, int], None]]] = {
        TIMEOUT: _time_out,
        COMPLETE: _complete_again,
        EXPIRE: _expire,
        PARKED: _release,
    }

    def _store(self, transaction: Transaction, out: Outcome) -> None:
        out.records.append(TransactionStored(transaction))


def _may_go_on(request: InitRequest, known: Transaction) -> bool:
    """Whether a producer that sends its id may continue; its epoch is compared when it is raised.

    The id may be the previous one if its epochs were used up: then an answer was lost.
    """
    is_before = request.producer_id == known.previous_producer_id and request.epoch >= LARGEST_EPOCH - 1
    return is_before or known.epoch_of(request.producer_id) is not None


def _asked(request: EndRequest, known: Transaction) -> Request | ErrorCode:
    """Which request this is, by producer id and epoch. Under version 2 the epoch distinguishes a repetition."""
    if request.epoch >= LARGEST_EPOCH:  # which no producer was given
        return ErrorCode.PRODUCER_FENCED
    if request.version < FIRST_WITH_RISING_EPOCHS:
        if known.producer_id != request.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if known.epoch != request.epoch:
            return ErrorCode.PRODUCER_FENCED
        return Request.COMMIT_V1 if request.is_commit else Request.ABORT_V1
    has_new_id = (
        known.previous_producer_id == request.producer_id
        and request.epoch == LARGEST_EPOCH - 1
        and known.epoch == 0
        and known.producer_id != request.producer_id
    )
    valid_epoch = known.epoch_of(request.producer_id)
    if valid_epoch is None and not has_new_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    # Not by the epoch alone: another producer may have been given the next one.
    if known.last_epoch == request.epoch and (has_new_id or valid_epoch == request.epoch + 1):
        return Request.COMMIT_AGAIN if request.is_commit else Request.ABORT_AGAIN
    if request.epoch != valid_epoch:
        return ErrorCode.PRODUCER_FENCED
    return Request.COMMIT if request.is_commit else Request.ABORT


def _described(transaction: Transaction) -> DescribedTransaction:
    return DescribedTransaction(
        transaction.transactional_id,
        transaction.producer_id,
        transaction.epoch,
        transaction.timeout_ms,
        transaction.state,
        transaction.start_ms,
        tuple(sorted(transaction.partitions)),
    )


def _is_listed(transaction: Transaction, which: ListFilter, wall_ms: int) -> bool:
    if which.states and transaction.state not in which.states:
        return False
    if which.producer_ids and transaction.producer_id not in which.producer_ids:
        return False
    if which.longer_than_ms < 0:
        return True
    is_open = transaction.state is State.ONGOING or transaction.is_ending
    return is_open and wall_ms - transaction.start_ms > which.longer_than_ms
