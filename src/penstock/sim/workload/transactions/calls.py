"""Requests of a transactional client: repeated until they are answered, sometimes sent late, and sometimes the last.

A client of transaction version 2 sends some requests twice, the second time much later. A process may be gone while its
request is under way. Must not know: what is asked, faults, checkers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NamedTuple, TypeVar

from penstock.model.addresses import Address
from penstock.model.errors import ApiError, ErrorCode
from penstock.sim.judges.transactions import TransactionHistory
from penstock.sim.workload.caller import TROUBLE, Caller
from penstock.sim.workload.transactions.codes import OVER, PASSING, MustAbort, ProducerOver, Vanished
from penstock.wire.apis import Api
from penstock.wire.primitives import Message
from penstock.wire_client.requests.errors import BrokerUnreachable
from penstock.wire_client.requests.producer_ids import TWO_PHASE_VERSION
from penstock.wire_client.requests.producing_transactions import ADDED_BY_BROKERS

R = TypeVar("R", bound=Message)

NEWEST: Final[dict[int, dict[Api, int]]] = {
    0: {
        Api.INIT_PRODUCER_ID: 4,
        Api.ADD_PARTITIONS_TO_TXN: 3,
        Api.ADD_OFFSETS_TO_TXN: 3,
        Api.TXN_OFFSET_COMMIT: 3,
        Api.PRODUCE: 11,
        Api.END_TXN: 4,
    },
    2: {Api.INIT_PRODUCER_ID: 5, Api.TXN_OFFSET_COMMIT: 5, Api.PRODUCE: 12, Api.END_TXN: 5},
}
RETRY_S = 0.04
LONGEST_RETRY_S = 0.4
GIVES_UP_S = (1.5, 6.0)
LATE_CHANCE, LATE_END_CHANCE = 0.1, 0.3
LATE_S = (0.05, 0.5, 2.0)
"""At least, and at most: of half of them the first, of the others the second."""
VANISHES_CHANCE = 0.01
"""Of a process, at each request: while it is under way."""


class Temper(NamedTuple):
    version: int
    """The transaction version."""
    timeout_ms: int
    is_calm: bool = False
    """It asks for everything once, and does not vanish."""
    is_two_phase: bool = False
    begins_once: bool = False
    """It asks for InitProducerId once, too."""


class TransactionalCalls:
    def __init__(
        self, caller: Caller, history: TransactionHistory, transactional_id: str, instance: int, temper: Temper
    ) -> None:
        self._caller = caller
        self._history = history
        self._transactional_id = transactional_id
        self._instance = instance
        self._temper = temper
        self._sends_late = not temper.is_calm and temper.version >= ADDED_BY_BROKERS
        self._vanishes_chance = 0.0 if temper.is_calm else VANISHES_CHANCE
        self.vanishes_at_end_chance = self._vanishes_chance
        self._gives_up_s = caller.random.uniform(*GIVES_UP_S)
        self.is_in_doubt = False
        """Of version 0: something may still arrive."""
        self._coordinators: dict[str, Address] = {}
        self.under_way: list[asyncio.Future[None]] = []

    async def until_told(self, ask: Callable[[], Awaitable[ErrorCode]]) -> ErrorCode:
        """Again and again while what stands in the way may pass. The last word; NETWORK_EXCEPTION: none was heard."""
        time, tries = asyncio.get_running_loop().time, 0
        ends_s = time() + self._gives_up_s
        while True:
            code = ErrorCode.NETWORK_EXCEPTION
            try:
                code = await ask()
            except ApiError as error:
                code = error.code
            except TROUBLE as error:
                self._caller.note(error)
                if not isinstance(error, BrokerUnreachable):
                    self.is_in_doubt = True
            if code is not ErrorCode.NONE:
                self._caller.counts[code.name] += 1
            if code not in PASSING or time() > ends_s:
                return code
            self._coordinators.clear()
            await self._caller.pause(min(RETRY_S * 2**tries, LONGEST_RETRY_S))
            tries = min(tries + 1, 10)

    async def told(self, ask: Callable[[], Awaitable[ErrorCode]]) -> None:
        code = await self.until_told(ask)
        if code in OVER:
            raise ProducerOver(code.name)
        if code is not ErrorCode.NONE:
            raise MustAbort(code.name)

    async def send(self, address: Address, api: Api, request: Message, kind: type[R], purpose: str) -> R:
        caller, newest = self._caller, self._newest(api)
        random = caller.random
        is_end = api is Api.END_TXN
        if self.may_come_late(api) and random.random() < (LATE_END_CHANCE if is_end else LATE_CHANCE):
            self.leave_behind(self._arrive_late(address, api, request, kind))
        asking = caller.ask(address, api, request, kind, purpose=purpose, newest=newest)
        if random.random() < (self.vanishes_at_end_chance if is_end else self._vanishes_chance):
            self.leave_behind(unheard(asking))
            await caller.pause(RETRY_S / 4)
            raise Vanished(f"{self._transactional_id}.{self._instance}")
        return await asking

    def _newest(self, api: Api) -> int:
        if self._temper.is_two_phase and api is Api.INIT_PRODUCER_ID:
            return TWO_PHASE_VERSION
        return NEWEST[self._temper.version][api]

    def may_come_late(self, api: Api) -> bool:
        return self._sends_late and not (self._temper.begins_once and api is Api.INIT_PRODUCER_ID)

    async def _arrive_late(self, address: Address, api: Api, request: Message, kind: type[R]) -> None:
        """As one that was given up on, sent again over another connection, and that the network had kept."""
        await asyncio.sleep(self.late_s())
        self._history.counts["late requests"] += 1
        newest = self._newest(api)
        await unheard(self._caller.ask(address, api, request, kind, purpose="late", newest=newest))

    def late_s(self) -> float:
        least_s, soon_s, most_s = LATE_S
        return self._caller.random.uniform(least_s, self._caller.random.choice((soon_s, most_s)))

    def leave_behind(self, work: Coroutine[Any, Any, None]) -> None:
        self.under_way.append(asyncio.ensure_future(work))

    async def coordinator(self) -> Address:
        if "transactions" not in self._coordinators:
            found = await self._caller.transaction_coordinator(self._transactional_id)
            self._coordinators["transactions"] = found
        return self._coordinators["transactions"]

    async def group_coordinator(self, group: str) -> Address:
        if group not in self._coordinators:
            self._coordinators[group] = await self._caller.coordinator(group)
        return self._coordinators[group]


async def unheard(work: Awaitable[object]) -> None:
    try:
        await work
    except (*TROUBLE, Vanished):
        pass
