"""Sizes without a setting that a short history would never reach: smaller in some histories, as the seed decides.

So what happens every four megabytes, or with the sixty-fifth item, also happens in small histories. They are constants
of production code, read where they are used, so they cost nothing there. Must not know: clusters, faults.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from penstock.core.raft.settings import RaftSettings
from penstock.sim.places import replaced

SHRINK_CHANCE = 0.5
EACH_CHANCE = 0.6

SIZES: Mapping[str, tuple[int, ...]] = {
    "penstock.api.fetch.fetch_answers:INLINE_BYTES": (0, 500, 4000),
    "penstock.api.fetch.fetch_answers:MAX_LOOKUPS": (1, 2),
    "penstock.api.produce.produce_lane:MAX_TARGETS": (1, 3),
    "penstock.api.produce.produced_batch:FEW_RECORDS": (0, 2),
    "penstock.cluster.peer_links:MAX_QUEUED": (4, 16),
    "penstock.cluster.raft_store:READ_BYTES": (200, 2000),
    "penstock.cluster.topic_decisions:PRODUCER_ID_BLOCK": (1, 3),
    "penstock.coordination.hosted_shard:LOAD_BYTES": (300, 3000),
    "penstock.coordination.hosted_shard:MAX_BATCH_BYTES": (200, 2000),
    "penstock.coordination.hosted_shard:REPLAYED_IN_ONE_GO": (1, 7),
    "penstock.core.metadata.records:PARTITIONS_IN_ONE_GO": (1, 3),
    "penstock.net.connection:MAX_CORKED_PARTS": (1, 4),
    "penstock.storage.checkpoint_builder:_SNAPSHOT_EVERY_BYTES": (0, 500, 5000),
    "penstock.storage.cleaner.rewrite:_CHUNK_BYTES": (700, 3000),
    "penstock.storage.cleaner.rewrite:_MAX_SOURCES": (1, 2, 4),
    "penstock.storage.files:_WRITE_BYTES": (300, 3000),
    "penstock.storage.log_reader:_HINTS": (1, 3),
    "penstock.storage.recovery:_SMALL_BYTES": (0, 1000),
    "penstock.storage.replay:WALK_BYTES": (300, 3000),
    "penstock.storage.segments.scan:_CHUNK_BYTES": (300, 3000),
    "penstock.storage.segments.segment:_MOST_HEADERS": (1, 4),
    "penstock.storage.segments.segment:_OPEN_FILES": (1,),
    "penstock.storage.segments.segment:_SCAN_BYTES": (300, 3000),
    "penstock.storage.segments.sparse_index:_BLOCK": (1, 4),
}
RAFT: Mapping[str, tuple[int, ...]] = {
    "max_append_bytes": (100, 1000),
    "max_inflight_messages": (1, 4),
    "max_inflight_bytes": (100, 2000),
    "snapshot_chunk_bytes": (50, 500),
    "catch_up_entries": (1, 10),
}
EPOCHS = (
    "penstock.core.txn.transaction:LARGEST_EPOCH",
    "penstock.core.txn.shard:LARGEST_EPOCH",
    "penstock.storage.producers.producer_state:MAX_EPOCH",
)
"""These have the same value: a short history would never reach the last epoch of a producer id."""
LARGEST_EPOCHS = (3, 6, 12)
EPOCHS_CHANCE = 0.4
DRAWN_LAST = ("penstock.core.metadata.records:PARTITIONS_IN_ONE_GO",)
"""Added later: the draws of a seed for the others stay unchanged."""
RAFT_SETTINGS = "penstock.node.membership:_raft_settings"


def draw_sizes(random: Random) -> dict[str, int]:
    """By place; Raft's by name. None in half of the histories."""
    is_shrunk = random.random() < SHRINK_CHANCE
    every = {**SIZES, **RAFT}
    order = (*(name for name in every if name not in DRAWN_LAST), *DRAWN_LAST)
    drawn = {name: random.choice(every[name]) for name in order if random.random() < EACH_CHANCE}
    return drawn if is_shrunk else {}


def draw_epochs(random: Random, *, are_few: bool) -> dict[str, int]:
    """By place: where there are transactions. None in most of the histories, unless `are_few`: then the fewest."""
    largest = random.choice(LARGEST_EPOCHS)
    if random.random() < EPOCHS_CHANCE:
        return dict.fromkeys(EPOCHS, largest)
    return dict.fromkeys(EPOCHS, LARGEST_EPOCHS[0]) if are_few else {}


@contextmanager
def shrunk(sizes: Mapping[str, int]) -> Iterator[None]:
    with ExitStack() as stack:
        for place, size in sizes.items():
            if place in SIZES or place in EPOCHS:
                stack.enter_context(replaced(place, partial(_instead, size)))
        of_raft = {name: size for name, size in sizes.items() if name in RAFT}
        if of_raft:
            stack.enter_context(replaced(RAFT_SETTINGS, partial(_smaller, of_raft)))
        yield


def names_of(sizes: Mapping[str, int]) -> Counter[str]:
    """For people."""
    return Counter(name.rpartition(":")[2].strip("_").lower() for name in sizes)


def _instead(size: int, _: int) -> int:
    return size


def _smaller(sizes: Mapping[str, int], original: Any) -> Any:
    def settings(*args: Any) -> RaftSettings:
        made: RaftSettings = original(*args)
        return replace(made, **sizes)

    return settings
