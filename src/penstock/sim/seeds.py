"""Many histories in several processes: which seeds, with which bug, and their verdicts.

A worker is a real process, so histories cannot affect each other. Must not know: how results are shown.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice

from penstock.sim.plan import draw
from penstock.sim.planted.bugs import BUGS
from penstock.sim.scenario import Verdict, play

WAITING_PER_WORKER = 4


@dataclass(frozen=True, slots=True)
class HistoryRequest:
    """One history to play."""

    seed: int
    nodes: int | None = None
    only: tuple[int, ...] | None = None
    bug: str | None = None
    keep_trace: bool = False

    @property
    def command(self) -> str:
        """The command that shows the same history again."""
        words = ["penstock sim", f"--seed {self.seed}"]
        if self.nodes is not None:
            words.append(f"--nodes {self.nodes}")
        if self.only is not None:
            words.append(f"--faults {','.join(map(str, self.only))}")
        if self.bug is not None:
            words.append(f"--bug {self.bug}")
        return " ".join((*words, "--trace"))


def play_one(request: HistoryRequest) -> Verdict:
    with ExitStack() as stack:
        stack.enter_context(_no_collection())
        if request.bug is not None:
            stack.enter_context(BUGS[request.bug].planted())
        return play(draw(request.seed, nodes=request.nodes, only=request.only), keep_trace=request.keep_trace)


@contextmanager
def _no_collection() -> Iterator[None]:
    """The collector would walk a world that is about to end. Afterwards it finds only reference cycles."""
    had_gc = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if had_gc:
            gc.enable()


def play_many(requests: Iterable[HistoryRequest], jobs: int) -> Iterator[Verdict]:
    """In the order of the requests. Closing the iterator stops the rest."""
    if jobs == 1:
        yield from map(play_one, requests)
        return
    coming = iter(requests)
    waiting: deque[Future[Verdict]] = deque()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, _end_with_parent) as pool:
        try:
            while True:
                for request in islice(coming, jobs * WAITING_PER_WORKER - len(waiting)):
                    waiting.append(pool.submit(play_one, request))
                if not waiting:
                    return
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _end_with_parent() -> None:
    """A killed parent cannot stop its workers, which would play on."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def find(bug: str, seeds: Iterable[int], jobs: int = 1) -> Verdict | None:
    """The first history that the bug's own judge condemns and that is good without the bug; None: there is none."""
    for verdict in play_many((HistoryRequest(seed, bug=bug) for seed in seeds), jobs):
        if verdict.what == BUGS[bug].judge and play_one(HistoryRequest(verdict.seed)).is_good:
            return verdict
    return None
