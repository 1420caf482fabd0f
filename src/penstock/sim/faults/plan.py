"""Which faults befall a history, and when: drawn from the seed before it begins.

Half of the histories get any few kinds of faults, the other half those of one theme, which work together: what many
kinds at random show once in a thousand histories, the right few show in one of ten. Some faults come right after the
one before, so that they meet. Every history is drawn from the same mixture, whether a bug is planted or not.
Must not know: clusters, how a fault is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

AMBUSHES = ("ambush", "power ambush")
"""At a telling moment: a process dies, or the power fails."""
INSIDE = ("kill inside", "power cut inside")
"""Of a change of several steps: at one of its next few changes of the disk."""
ROT_AND_CRASH = "rot and crash"
COORDINATOR_FALLS = "coordinator falls"
LOST_DISK = "lost disk"
FAILING_CHECKPOINT = "failing checkpoint"
LEAP = "clock leap"
LOST_METADATA = "lost metadata"
LATE_FLUSH = "late flush"
MOVED_MEANWHILE = "moved meanwhile"
MISREAD = "misread"
LOST_ANSWER = "lost answer"
LISTENING = (*AMBUSHES, *INSIDE, ROT_AND_CRASH, COORDINATOR_FALLS)
"""For what brokers do."""
POWER = ("crash", "blackout", "brownout", "fade out", "torn", "failing disk", "power ambush", "power cut inside")
"""The power fails, or the disk lies: fair only where every topic is durable."""
LONE_CRASH = "lone crash"
"""The power of one machine fails, with nothing else wrong: fair also where flushing is left to the system."""
UNSOUND = ("bit rot", ROT_AND_CRASH, LOST_DISK, LONE_CRASH, LATE_FLUSH, MISREAD)
"""One machine loses what it had, and needs others that have it."""
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
"""Nothing that clients sent arrives long after, and clocks go on as they did."""
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
"""Of disks, and nobody restarts the process."""
LATER_KINDS = (*PASSING, *INSIDE, *INSIDE, ROT_AND_CRASH, COORDINATOR_FALLS)
"""Take the place of some faults that were drawn, by chance of their own: all else of a history stays what it was."""
SCENE_CHANCE = 0.16


@dataclass(frozen=True, slots=True)
class Scene:
    """Faults that need each other, and what has to be set or small for them to meet. The faults that were drawn have
    their times, so that the rest of a history stays what it was."""

    kinds: tuple[str, ...]
    """The first at least once."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    compacted_segment_bytes: int | None = None
    """A topic is compacted, and has many segments."""
    is_once: bool = False


SCENES = (
    Scene((LOST_DISK,), is_once=True),
    # Between an election and the next checkpoint.
    Scene(
        (FAILING_CHECKPOINT, FAILING_CHECKPOINT, "kill"),
        {"penstock.storage.checkpoint_builder:_SNAPSHOT_EVERY_BYTES": 0},
        {"log.flush.offset.checkpoint.interval.ms": "200"},
    ),
    # What was compacted is cut, and the power fails.
    Scene((ROT_AND_CRASH,), {}, {"log.cleaner.backoff.ms": "300"}, compacted_segment_bytes=2048, is_once=True),
    # Of a leader whose records are kept for an hour: see `Plan.retention_ms`.
    Scene((LEAP, LEAP, "kill", "rolling restart")),
)
LATER_SCENES = (
    # A voter comes back without its metadata, and the controller dies.
    Scene((LOST_METADATA,), is_once=True),
    # A topic is to be flushed from now on, and a power fails before it is.
    Scene((LATE_FLUSH,), is_once=True),
    # A replica comes while its leader's log is compacted, and copies it batch by batch.
    Scene(
        (MOVED_MEANWHILE,),
        {},
        {"log.cleaner.backoff.ms": "300", "replica.fetch.max.bytes": "1", "replica.fetch.response.max.bytes": "1"},
        compacted_segment_bytes=2048,
        is_once=True,
    ),
    # What is read is not what is on the disk, for a moment.
    Scene((MISREAD,), is_once=True),
    # Nothing can be opened, again and again: also where a flush has to.
    Scene(("no descriptors", "no descriptors", "single failure"), {"penstock.storage.segment:_OPEN_FILES": 1}),
)
"""Drawn by chance of their own, in histories that have none of the others."""
LOST_ANSWER_CHANCE = 0.15
"""Of a controller that gives a vote, which is taken away meanwhile: by another chance, in any history."""
RARE = (LOST_METADATA, LATE_FLUSH)
"""Not fair everywhere, so drawn more often where they are."""
LATER_SCENE_CHANCE = 0.4
ALL_KINDS = tuple(
    dict.fromkeys((*KINDS, *LATER_KINDS, *(scene.kinds[0] for scene in (*SCENES, *LATER_SCENES)), LOST_ANSWER))
)
THEMES = (
    (*AMBUSHES, "power ambush", "slow disk", "isolate"),  # between two steps
    ("brownout", "fade out", "slow disk", "crash", "torn"),  # what was promised is on no platter
    ("strand", "strand", "one by one", "fade out"),  # who was in sync last is not who comes back first
    ("depose", "isolate", "headhunt", "suspend"),  # leaders that do not know they were replaced
    ("coup", "cut", "flap", "slow link"),  # elections of the metadata quorum
    (LONE_CRASH, LONE_CRASH, "rolling restart", "clock"),  # one after the other, and all is well in between
)
BUSY_THEMES = (
    (*AMBUSHES, "power ambush", "slow disk", "isolate"),  # between two steps
    ("torn", "isolate", "kill"),
    ("crash", "cut", "slow disk"),
    ("blackout", "flap", "isolate", "stop"),
)
"""Power and network fail together, while logs are compacted and an operator changes things."""
THEME_CHANCE = 0.5
LONE_CRASH_CHANCE = 0.4
LATER_CHANCE = 0.4
SOON_CHANCE = 0.25
SOON_S = 0.4
LENGTHY = ("one by one", "fade out", "strand", "brownout", "depose", "headhunt", "coup", LONE_CRASH, "rolling restart")
"""Each of these is several faults; so many at a time as of the others would only hide each other."""


@dataclass(frozen=True, slots=True)
class Fault:
    number: int
    kind: str
    at_s: float
    """From when the enemy is let loose."""
    lasts_s: float

    def __str__(self) -> str:
        return f"{self.number}: {self.kind} at {self.at_s:.2f} s for {self.lasts_s:.2f} s"


@dataclass(frozen=True, slots=True)
class FaultPlan:
    faults: tuple[Fault, ...]
    is_busy: bool
    """Logs are compacted and an operator is at work, whatever the seed says of them."""


def draw_plan(random: Random, seconds: float, *, is_power_fair: bool, without: Sequence[str] = ()) -> FaultPlan:
    """A subset of the kinds for each history: what many kinds together would hide, few show."""
    unfair = (LONE_CRASH,) if is_power_fair else POWER
    kinds = [kind for kind in KINDS if kind not in unfair and kind not in without]
    chosen = random.sample(kinds, random.randint(min(2, len(kinds)), min(7, len(kinds))))
    theme = random.choice((*THEMES, *BUSY_THEMES)) if random.random() < THEME_CHANCE else ()
    chosen = [kind for kind in theme if kind in kinds] or chosen
    if LONE_CRASH in kinds and random.random() < LONE_CRASH_CHANCE:  # the only power failure there is
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
    """With one or two of the later kinds in the place of some, in some histories."""
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
    """In some histories."""
    scene = random.choice(SCENES)
    return scene if random.random() < SCENE_CHANCE and scene.kinds[0] not in without else None


def draw_later_scene(random: Random, *, is_power_fair: bool, without: Sequence[str] = ()) -> Scene | None:
    """In some histories. Where every topic is durable, nothing is flushed late."""
    unfair = (*without, LATE_FLUSH) if is_power_fair else without
    scenes = [scene for scene in LATER_SCENES if scene.kinds[0] not in unfair]
    rare = [scene for scene in scenes if scene.kinds[0] in RARE]
    scene = random.choice((*scenes, *rare)) if scenes else None
    return scene if random.random() < LATER_SCENE_CHANCE else None


def staged(
    faults: Sequence[Fault], scene: Scene, random: Random, *, is_power_fair: bool, without: Sequence[str] = ()
) -> tuple[Fault, ...]:
    """With those of the scene in the place of some."""
    unfair = without if is_power_fair else (*without, *POWER)
    kinds = [kind for kind in scene.kinds if kind not in unfair]
    if not faults or not kinds:
        return tuple(faults)
    sure = 0 if scene.is_once and random.random() < 0.5 else random.randrange(len(faults))  # all is well at first
    chance = 0.0 if scene.is_once else 0.7
    return tuple(
        replace(fault, kind=kinds[0] if fault.number == sure else random.choice(kinds))
        if fault.number == sure or random.random() < chance
        else fault
        for fault in faults
    )
