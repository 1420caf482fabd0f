"""The plan of a history, which its seed decides in advance: machines, topics, clients, faults.

Each part has its own random stream, so a new part does not change the others. Must not know: how any of it is carried
out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from penstock.sim.faults.plan import (
    ALL_KINDS,
    LEAP,
    LOST_ANSWER,
    LOST_ANSWER_CHANCE,
    LOST_DISK,
    LOST_METADATA,
    MEANWHILE,
    POWER,
    PROMPT,
    ROT_BELOW_TOMBSTONES,
    STEERED,
    UNSOUND,
    Fault,
    draw_later_scene,
    draw_plan,
    draw_scene,
    draw_steered_scene,
    staged,
    widened,
)
from penstock.sim.judges.history import Place
from penstock.sim.settings import DRAWN_OF_TRANSACTIONS, draw_settings
from penstock.sim.sizes import draw_epochs, draw_sizes
from penstock.sim.tuning import PINNED

PLAIN_TOPIC = "data-plain"
ENDINGS = ("power failure", "kill", "stop")
"""Applied to all machines in some histories before the final read; the first only where that is fair."""
VOTER_CHANGES_CHANCE = 0.25
TUNER_CHANCE = 0.35
TRANSACTIONS_CHANCE = 0.25
TWO_PHASES_CHANCE, ODD_ENDS_CHANCE = 0.4, 0.4
OLDER_HISTORIES = frozenset((27, 36, 102))
"""Seeds that show a planted bug as they are. They get no transactions and no steered scene, which would make them other
histories."""
UNCLEAN_CHANCE = 0.1
MANY_TOPIC, MANY, MANY_CHANCE = "many", 24, 0.06
RETENTION_MS = 3_600_000
COMPACTED_SEGMENT_BYTES = 8192
MIN_INSYNC_REPLICAS = "min.insync.replicas"
FORGETTING_CHANCE, FORGOTTEN_AFTER_S = 0.08, 1.2
FORGETTING = {
    "producer.id.expiration.ms": str(round(FORGOTTEN_AFTER_S * 1000)),
    "log.retention.check.interval.ms": "50",  # when idle producers are checked
}


@dataclass(frozen=True, slots=True)
class TopicPlan:
    name: str
    partitions: int
    settings: dict[str, str]
    used: int | None = None
    """Number of partitions, from the first, that clients create in advance; None: all."""


@dataclass(frozen=True, slots=True)
class TransactionPlan:
    sources: int
    """Partitions that are read and transformed, each with its own transactional id."""
    made: int
    """Partitions that are written to."""
    rivals: int
    """The number of transactional ids that two instances use again and again."""
    is_slow: bool
    """Transactions stay open for a long time, so that coordinators move meanwhile."""
    has_two_phases: bool
    """Some are decided outside, and have no timeout."""
    has_odd_ends: bool
    """Some are ended to which nothing was added, and some are aborted after the coordinator has done so."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything about a history that is decided before it begins."""

    seed: int
    nodes: int
    joins: int
    seconds: float
    is_durable: bool
    settings: dict[str, str]
    """The settings of all brokers."""
    sizes: dict[str, int]
    """Sizes without a setting: see `sim.sizes`."""
    topics: tuple[TopicPlan, ...]
    producers: int
    readers: int
    has_replica_reader: bool
    is_compacting: bool
    tombstones_go: bool
    """Within the history, if it compacts."""
    compacted_segment_bytes: int
    members: int
    consumers: int
    """Members of a group of the new protocol."""
    has_operator: bool
    has_trimmed: bool
    """Records of a topic are deleted from the start."""
    is_retaining: bool
    """Also by retention."""
    retention_ms: int | None
    """Also by age: only where clocks leap further than that."""
    forgotten_after_s: float | None
    """Brokers forget idle producers after this time, only where requests are not delayed and clocks do not change. A
    late batch of a forgotten producer is written twice, as in Kafka."""
    has_reborn: bool
    """A topic is deleted and recreated while in use."""
    has_voter_changes: bool
    """Votes in the metadata quorum are taken away and given."""
    has_unclean: bool
    """A topic may get a leader that was not in sync."""
    has_tuner: bool
    """Settings of topics and brokers change."""
    may_flush_less: bool
    """How often logs are flushed changes too: where no power fails, except on one machine while all else is well."""
    transactions: TransactionPlan | None
    """Rows are transformed in transactions."""
    max_down: int
    faults: tuple[Fault, ...]
    ending: str
    """One of ENDINGS, or empty."""

    @property
    def all_places(self) -> list[Place]:
        """Includes partitions that are neither written nor read."""
        return [Place(topic.name, index) for topic in self.topics for index in range(topic.partitions)]

    @property
    def places(self) -> list[Place]:
        return [Place(topic.name, index) for topic in self.topics for index in range(topic.used or topic.partitions)]


def draw(
    seed: int, *, nodes: int | None = None, only: Sequence[int] | None = None, without: Sequence[str] = ()
) -> Plan:
    """`nodes` overrides the seed; `only`: these faults of the plan; `without`: excluded kinds of faults."""
    random = Random(f"{seed}/plan")
    size = random.choice((3, 3, 5)) if nodes is None else nodes
    is_durable = random.random() < 0.7
    seconds = random.choice((3.0, 5.0, 8.0))
    has_tuner = Random(f"{seed}/tuner").random() < TUNER_CHANCE
    topics = []
    minimum, trimming = Random(f"{seed}/minimum"), Random(f"{seed}/trimming")
    for number in range(random.randint(1, 2)):
        settings = {"internal.segment.bytes": str(random.choice((2 << 10, 8 << 10, 1 << 20)))}
        if not is_durable:
            settings["flush.messages"] = "9223372036854775807"
        if minimum.random() < 0.4:
            settings[MIN_INSYNC_REPLICAS] = "1"
        if has_tuner:
            settings |= PINNED
        topics.append(TopicPlan(f"data-{number}", random.randint(1, 2), settings))
    topics.append(TopicPlan(PLAIN_TOPIC, 1, dict(PINNED) if has_tuner else {}))
    if Random(f"{seed}/many").random() < MANY_CHANCE:
        topics.append(TopicPlan(MANY_TOPIC, MANY, dict(PINNED) if has_tuner else {}, used=1))
    has_voter_changes = size > 1 and Random(f"{seed}/voters").random() < VOTER_CHANGES_CHANCE
    if size < 3:  # other nodes must have the lost data, or take replicas
        without = (*without, *UNSOUND, LOST_METADATA, MEANWHILE, *STEERED)
    if has_voter_changes:
        without = (*without, LOST_DISK, LOST_METADATA)  # votes are changed by another client
    forgets = Random(f"{seed}/forgetting").random() < FORGETTING_CHANCE
    if forgets:
        without = (*without, *(kind for kind in ALL_KINDS if kind not in PROMPT))
    fault_plan = draw_plan(Random(f"{seed}/faults"), seconds, is_power_fair=is_durable, without=without)
    chance = Random(f"{seed}/later faults")
    planned = widened(fault_plan.faults, chance, is_power_fair=is_durable, without=without)
    chance = Random(f"{seed}/scene")
    scene = draw_scene(chance, without=without)
    if scene is None and not has_voter_changes:  # which are rare enough
        chance = Random(f"{seed}/later scene")
        scene = draw_later_scene(chance, is_power_fair=is_durable, without=without)
    if scene is not None:
        planned = staged(planned, scene, chance, is_power_fair=is_durable, without=without)
    has_unclean = size > 1 and Random(f"{seed}/unclean").random() < UNCLEAN_CHANCE
    if has_unclean and "strand" not in without:
        planned = tuple(replace(fault, kind="strand") if fault.number == 0 else fault for fault in planned)
    chance = Random(f"{seed}/lost answer")
    if size > 1 and not has_voter_changes and LOST_ANSWER not in without and planned:
        last = len(planned) - 1  # nothing else follows
        if chance.random() < LOST_ANSWER_CHANCE and planned[last].kind not in (LOST_DISK, LOST_METADATA):
            planned = (*planned[:-1], replace(planned[last], kind=LOST_ANSWER))
    is_plain = size == 3 and not (has_tuner or forgets or has_unclean or seed in OLDER_HISTORIES)
    if scene is None and is_plain and Random(f"{seed}/transactions").random() >= TRANSACTIONS_CHANCE:
        chance = Random(f"{seed}/scene, steered")
        scene = draw_steered_scene(chance, without=without)
        if scene is not None:
            planned = staged(planned, scene, chance, is_power_fair=is_durable, without=without)
    faults = [fault for fault in planned if only is None or fault.number in only]
    ending = _draw_ending(Random(f"{seed}/ending"), is_durable, planned)
    compacted_bytes = None if scene is None else scene.compacted_segment_bytes
    leaps = any(fault.kind == LEAP for fault in planned)
    needs_tombstones_gone = any(fault.kind in (MEANWHILE, ROT_BELOW_TOMBSTONES) for fault in planned)
    is_compacting = Random(f"{seed}/compaction").random() < 0.3 or fault_plan.is_busy or compacted_bytes is not None
    has_transactions = not forgets and seed not in OLDER_HISTORIES
    transactions = None
    if has_transactions:
        transactions = _draw_transactions(Random(f"{seed}/transactions"), Random(f"{seed}/two phases"))
    of_transactions = Random(f"{seed}/settings of transactions")
    loses_power = any(fault.kind in POWER for fault in planned) or ending == ENDINGS[0]
    return Plan(
        seed=seed,
        nodes=size,
        joins=1 if size > 1 and random.random() < 0.15 else 0,
        seconds=seconds,
        is_durable=is_durable,
        settings={
            **draw_settings(Random(f"{seed}/settings")),
            **(scene.settings if scene is not None else {}),
            **(FORGETTING if forgets else {}),
            **(draw_settings(of_transactions, DRAWN_OF_TRANSACTIONS) if transactions is not None else {}),
        },
        sizes={
            **draw_sizes(Random(f"{seed}/sizes")),
            **(scene.sizes if scene is not None else {}),
            **_draw_epochs(of_transactions, transactions),
        },
        topics=tuple(topics),
        producers=random.randint(1, 2),
        readers=random.randint(1, 2),
        has_replica_reader=Random(f"{seed}/replica reader").random() < 0.4,
        is_compacting=is_compacting and not forgets,
        tombstones_go=Random(f"{seed}/tombstones").random() < 0.7 or needs_tombstones_gone,
        compacted_segment_bytes=COMPACTED_SEGMENT_BYTES if compacted_bytes is None else compacted_bytes,
        members=random.choice((0, 1, 2, 3)),
        consumers=max(0, Random(f"{seed}/consumers").randint(-1, 3)),
        has_trimmed=trimming.random() < 0.3 or leaps,
        is_retaining=trimming.random() < 0.6,
        retention_ms=RETENTION_MS if leaps else None,
        forgotten_after_s=FORGOTTEN_AFTER_S if forgets else None,
        has_reborn=Random(f"{seed}/reborn").random() < 0.3 and not forgets,
        has_voter_changes=has_voter_changes,
        has_operator=random.random() < 0.5 or fault_plan.is_busy,
        has_unclean=has_unclean,
        has_tuner=has_tuner,
        may_flush_less=not loses_power,
        transactions=transactions,
        max_down=random.choice((1, 1, (size + 1) // 2, size)),
        faults=tuple(faults),
        ending=ending,
    )


def _draw_transactions(random: Random, later: Random) -> TransactionPlan | None:
    """`later`: for draws that were added later, so that the rest stays unchanged."""
    if random.random() >= TRANSACTIONS_CHANCE:
        return None
    sources = random.randint(1, 4)
    return TransactionPlan(
        sources,
        random.randint(2, 4),
        random.randint(0, sources),
        random.random() < 0.4,
        later.random() < TWO_PHASES_CHANCE,
        later.random() < ODD_ENDS_CHANCE,
    )


def _draw_epochs(random: Random, transactions: TransactionPlan | None) -> dict[str, int]:
    """Odd ends are odder at the last epoch."""
    return {} if transactions is None else draw_epochs(random, are_few=transactions.has_odd_ends)


def _draw_ending(random: Random, is_durable: bool, faults: Sequence[Fault]) -> str:
    """Not always: restarting all machines takes a sixth of a history. Preferably where no power failed."""
    is_due = is_durable and not any(fault.kind in POWER for fault in faults)
    if random.random() >= (0.5 if is_due else 0.2):
        return ""
    return ENDINGS[0] if is_durable and random.random() < 0.7 else random.choice(ENDINGS[1:])
