"""The faults of a history and their times, drawn from the seed before it begins.

Half of the histories get a few random kinds of faults, the other half the kinds of one theme, which work together: the
right few kinds show a bug in one of ten histories, many random kinds in one of a thousand. Some faults follow directly
on the previous one, so that they overlap. All histories are drawn from the same mixture, with or without a planted bug.
Must not know: clusters, how a fault is carried out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

AMBUSHES = ("ambush", "power ambush")
"""At a critical moment, a process dies or the power fails."""
INSIDE = ("kill inside", "power cut inside")
"""During a change of several steps: at one of its next changes on disk."""
ROT_AND_CRASH = "rot and crash"
COORDINATOR_FALLS = "coordinator falls"
LOST_DISK = "lost disk"
FAILING_CHECKPOINT = "failing checkpoint"
LEAP = "clock leap"
LOST_METADATA = "lost metadata"
LATE_FLUSH = "late flush"
MEANWHILE = "moved meanwhile"
MISREAD = "misread"
LOST_ANSWER = "lost answer"
ROT_BELOW_TOMBSTONES = "rot below tombstones"
EARLY_BATCH = "early batch"
KILL_IN_SWAP, POWER_CUT_IN_SWAP = "kill in a swap", "power cut in a swap"
LISTENING = (*AMBUSHES, *INSIDE, ROT_AND_CRASH, COORDINATOR_FALLS)
"""Aimed at actions of brokers."""
POWER = (
    "crash",
    "blackout",
    "brownout",
    "fade out",
    "torn",
    "failing disk",
    "power ambush",
    "power cut inside",
    POWER_CUT_IN_SWAP,
)
"""The power fails, or the disk lies: fair only if every topic is durable."""
LONE_CRASH = "lone crash"
"""The power of one machine fails while nothing else is wrong: fair also without forced flushes."""
UNSOUND = ("bit rot", ROT_AND_CRASH, LOST_DISK, LONE_CRASH, LATE_FLUSH, MISREAD, ROT_BELOW_TOMBSTONES)
"""One machine loses data and needs others that have it."""
KINDS = (
    "kill",
    "crash",
    LONE_CRASH,
    "blackout",
    "brownout",
    "one by one",
    "fade out",
    "strand",
    "torn",
    *AMBUSHES,
    "stop",
    "rolling restart",
    "pause",
    "suspend",
    "depose",
    "headhunt",
    "coup",
    "cut",
    "cut one way",
    "isolate",
    "flap",
    "slow link",
    "reset",
    "hang",
    "slow disk",
    "failing disk",
    "bad writes",
    "full disk",
    "cold cache",
    "bit rot",
    "clock",
)
PROMPT = (
    "kill",
    "crash",
    LONE_CRASH,
    "blackout",
    "brownout",
    "one by one",
    "fade out",
    "torn",
    *AMBUSHES,
    "stop",
    "rolling restart",
    "reset",
    "bad writes",
    "full disk",
    "cold cache",
    "passing errors",
    "passing shortage",
    "no descriptors",
    *INSIDE,
    COORDINATOR_FALLS,
)
"""Requests do not arrive late, and clocks do not change."""
PASSING = (
    "passing errors",
    "passing shortage",
    "no descriptors",
    "single failure",
    "single failure",
    "hung disk",
    "stalled disk",
    "crawling disk",
)
"""Disk faults without a restart of the process."""
LATER_KINDS = (*PASSING, *INSIDE, *INSIDE, ROT_AND_CRASH, COORDINATOR_FALLS)
"""They replace some drawn faults, with their own random stream: the rest of a history stays unchanged."""
SCENE_CHANCE = 0.16


@dataclass(frozen=True, slots=True)
class Scene:
    """Faults that need each other, with the settings and sizes they need to meet. The replaced faults keep their times,
    so the rest of a history stays unchanged."""

    kinds: tuple[str, ...]
    """The first fault of the scene occurs at least once."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    compacted_segment_bytes: int | None = None
    """A topic is compacted, and has many segments."""
    is_once: bool = False
    is_first: bool = False
    """In the place of the first fault, and at once: it takes long, and faults that would begin meanwhile are left
    out."""


SCENES = (
    Scene((LOST_DISK,), is_once=True),
    # Between an election and the next checkpoint.
    Scene(
        (FAILING_CHECKPOINT, FAILING_CHECKPOINT, "kill"),
        {"penstock.storage.checkpoint_builder:_SNAPSHOT_EVERY_BYTES": 0},
        {"log.flush.offset.checkpoint.interval.ms": "200"},
    ),
    # A compacted log is cut, and the power fails.
    Scene((ROT_AND_CRASH,), {}, {"log.cleaner.backoff.ms": "300"}, compacted_segment_bytes=2048, is_once=True),
    # Clocks leap past the retention of an hour: see `Plan.retention_ms`.
    Scene((LEAP, LEAP, "kill", "rolling restart")),
)
LATER_SCENES = (
    # A voter returns without its metadata, and the controller dies.
    Scene((LOST_METADATA,), is_once=True),
    # A topic becomes durable, and the power fails before its first flush.
    Scene((LATE_FLUSH,), is_once=True),
    # A replica is added while its leader's log is compacted, and copies it batch by batch.
    Scene(
        (MEANWHILE,),
        {},
        {"log.cleaner.backoff.ms": "300", "replica.fetch.max.bytes": "1", "replica.fetch.response.max.bytes": "1"},
        compacted_segment_bytes=2048,
        is_once=True,
    ),
    # A read briefly returns other bytes than the disk has.
    Scene((MISREAD,), is_once=True),
    # Files repeatedly cannot be opened, also for a flush.
    Scene(("no descriptors", "no descriptors", "single failure"), {"penstock.storage.segments.segment:_OPEN_FILES": 1}),
)
"""Drawn from their own random stream, in histories without one of the others."""
LOST_ANSWER_CHANCE = 0.15
"""The chance of losing the answer of a controller that gives a vote, which is then taken away: from its own random
stream, in any history."""
STEERED_SCENES = (
    # A compacted log is damaged below tombstones that its leader has dropped.
    Scene(
        (ROT_BELOW_TOMBSTONES,),
        {},
        {"log.cleaner.backoff.ms": "300", "log.flush.offset.checkpoint.interval.ms": "200"},
        compacted_segment_bytes=2048,
        is_once=True,
        is_first=True,
    ),
    # The first batches of a producer come while a broker learns that it leads.
    Scene((EARLY_BATCH,), is_once=True, is_first=True),
    # A broker ends between the renames that swap a compacted segment in.
    Scene(
        (POWER_CUT_IN_SWAP, KILL_IN_SWAP),
        {},
        {"log.cleaner.backoff.ms": "300"},
        compacted_segment_bytes=2048,
        is_once=True,
        is_first=True,
    ),
)
"""Each steers the cluster into its situation. Drawn from a random stream of their own, in histories without another
scene."""
STEERED_CHANCE = 0.3
RARE = (LOST_METADATA, LATE_FLUSH)
"""These are not fair in every history, so they are drawn more often where they are."""
LATER_SCENE_CHANCE = 0.4
STEERED = tuple(kind for scene in STEERED_SCENES for kind in scene.kinds)
ALL_KINDS = tuple(
    dict.fromkeys(
        (*KINDS, *LATER_KINDS, *(scene.kinds[0] for scene in (*SCENES, *LATER_SCENES)), LOST_ANSWER, *STEERED)
    )
)
THEMES = (
    (*AMBUSHES, "power ambush", "slow disk", "isolate"),  # between two steps
    ("brownout", "fade out", "slow disk", "crash", "torn"),  # promised data is on no platter
    ("strand", "strand", "one by one", "fade out"),  # the last in-sync replica is not the first to return
    ("depose", "isolate", "headhunt", "suspend"),  # leaders that do not know that they were replaced
    ("coup", "cut", "flap", "slow link"),  # elections of the metadata quorum
    (LONE_CRASH, LONE_CRASH, "rolling restart", "clock"),  # one after the other, with everything well in between
)
BUSY_THEMES = (
    (*AMBUSHES, "power ambush", "slow disk", "isolate"),  # between two steps
    ("torn", "isolate", "kill"),
    ("crash", "cut", "slow disk"),
    ("blackout", "flap", "isolate", "stop"),
)
"""Power and network fail together, during compaction and changes by an operator."""
THEME_CHANCE = 0.5
LONE_CRASH_CHANCE = 0.4
LATER_CHANCE = 0.4
SOON_CHANCE = 0.25
SOON_S = 0.4
LENGTHY = ("one by one", "fade out", "strand", "brownout", "depose", "headhunt", "coup", LONE_CRASH, "rolling restart")
"""Each is several faults; if there were as many of these as of other faults, they would hide each other."""


@dataclass(frozen=True, slots=True)
class Fault:
    number: int
    kind: str
    at_s: float
    """Seconds after the enemy is released."""
    lasts_s: float

    def __str__(self) -> str:
        return f"{self.number}: {self.kind} at {self.at_s:.2f} s for {self.lasts_s:.2f} s"


@dataclass(frozen=True, slots=True)
class FaultPlan:
    faults: tuple[Fault, ...]
    is_busy: bool
    """Logs are compacted and an operator is active, whatever the seed says."""


def draw_plan(random: Random, seconds: float, *, is_power_fair: bool, without: Sequence[str] = ()) -> FaultPlan:
    """Each history gets a subset of the kinds: many kinds together hide what a few show."""
    unfair = (LONE_CRASH,) if is_power_fair else POWER
    kinds = [kind for kind in KINDS if kind not in unfair and kind not in without]
    chosen = random.sample(kinds, random.randint(min(2, len(kinds)), min(7, len(kinds))))
    theme = random.choice((*THEMES, *BUSY_THEMES)) if random.random() < THEME_CHANCE else ()
    chosen = [kind for kind in theme if kind in kinds] or chosen
    if LONE_CRASH in kinds and random.random() < LONE_CRASH_CHANCE:  # the only possible power failure
        chosen.append(LONE_CRASH)
    gap_s = random.choice((0.6, 1.5, 3.0))
    faults: list[Fault] = []
    at_s = random.uniform(0.2, 1.5)
    while at_s < seconds:
        fault = Fault(len(faults), random.choice(chosen), at_s, random.uniform(0.1, random.choice((0.6, 2.0, 5.0))))
        faults.append(fault)
        pause_s = random.uniform(0.1, 2) * max(gap_s, 2.0 if fault.kind in LENGTHY else 0.0)
        at_s += random.uniform(0, SOON_S) if random.random() < SOON_CHANCE else pause_s
    return FaultPlan(tuple(faults), theme in BUSY_THEMES)


def widened(
    faults: Sequence[Fault], random: Random, *, is_power_fair: bool, without: Sequence[str] = ()
) -> tuple[Fault, ...]:
    """In some histories, replace some faults with one or two of the later kinds."""
    without = without if is_power_fair else (*without, *POWER)
    kinds = [kind for kind in LATER_KINDS if kind not in without]
    chosen = random.sample(kinds, min(random.randint(1, 2), len(kinds)))
    if not faults or not chosen or random.random() >= LATER_CHANCE:
        return tuple(faults)
    sure = random.randrange(len(faults))
    return tuple(
        replace(fault, kind=random.choice(chosen)) if fault.number == sure or random.random() < 0.4 else fault
        for fault in faults
    )


def draw_scene(random: Random, *, without: Sequence[str] = ()) -> Scene | None:
    """A scene, in some histories."""
    scene = random.choice(SCENES)
    return scene if random.random() < SCENE_CHANCE and scene.kinds[0] not in without else None


def draw_later_scene(random: Random, *, is_power_fair: bool, without: Sequence[str] = ()) -> Scene | None:
    """A later scene, in some histories. If every topic is durable, nothing is flushed late."""
    unfair = (*without, LATE_FLUSH) if is_power_fair else without
    scenes = [scene for scene in LATER_SCENES if scene.kinds[0] not in unfair]
    rare = [scene for scene in scenes if scene.kinds[0] in RARE]
    scene = random.choice((*scenes, *rare)) if scenes else None
    return scene if random.random() < LATER_SCENE_CHANCE else None


def draw_steered_scene(random: Random, *, without: Sequence[str] = ()) -> Scene | None:
    """A steered scene, in some histories."""
    scenes = [scene for scene in STEERED_SCENES if scene.kinds[0] not in without]
    scene = random.choice(scenes) if scenes else None
    return scene if random.random() < STEERED_CHANCE else None


def staged(
    faults: Sequence[Fault], scene: Scene, random: Random, *, is_power_fair: bool, without: Sequence[str] = ()
) -> tuple[Fault, ...]:
    """Replace some faults with those of the scene."""
    unfair = without if is_power_fair else (*without, *POWER)
    kinds = [kind for kind in scene.kinds if kind not in unfair]
    if not faults or not kinds:
        return tuple(faults)
    is_first = scene.is_first or (scene.is_once and random.random() < 0.5)
    sure = 0 if is_first else random.randrange(len(faults))  # all is well at first
    chance = 0.0 if scene.is_once else 0.7
    replaced = [
        replace(fault, kind=kinds[0] if fault.number == sure else random.choice(kinds))
        if fault.number == sure or random.random() < chance
        else fault
        for fault in faults
    ]
    if scene.is_first:
        replaced[0] = replace(replaced[0], at_s=0.0)
    return tuple(replaced)
