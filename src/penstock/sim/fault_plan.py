"""Which faults befall a history, and when: drawn from the seed before it begins.

Half of the histories get any few kinds of faults, the other half those of one theme, which work together: what many
kinds at random show once in a thousand histories, the right few show in one of ten. Every history is drawn from the
same mixture, whether a bug is planted or not. Must not know: clusters, how a fault is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

POWER = ("crash", "blackout", "brownout", "fade out", "torn", "failing disk")
"""The power fails, or the disk lies: fair only where every topic is durable."""
KINDS = (
    "kill",
    "crash",
    "blackout",
    "brownout",
    "one by one",
    "fade out",
    "strand",
    "torn",
    "stop",
    "pause",
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
    "full disk",
    "bit rot",
    "clock",
)
THEMES = (
    ("brownout", "fade out", "slow disk", "crash", "torn"),  # what was promised is on no platter
    ("strand", "strand", "one by one", "fade out"),  # who was in sync last is not who comes back first
    ("depose", "isolate", "headhunt"),  # leaders that do not know they were replaced
    ("coup", "cut", "flap", "slow link"),  # elections of the metadata quorum
)
THEME_CHANCE = 0.5
LENGTHY = ("one by one", "fade out", "strand", "brownout", "depose", "headhunt", "coup")
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


def draw_plan(random: Random, seconds: float, *, is_power_fair: bool, without: Sequence[str] = ()) -> list[Fault]:
    """A subset of the kinds for each history: what many kinds together would hide, few show."""
    kinds = [kind for kind in KINDS if (is_power_fair or kind not in POWER) and kind not in without]
    chosen = random.sample(kinds, random.randint(min(2, len(kinds)), min(7, len(kinds))))
    if random.random() < THEME_CHANCE:
        chosen = [kind for kind in random.choice(THEMES) if kind in kinds] or chosen
    gap_s = random.choice((0.6, 1.5, 3.0))
    plan: list[Fault] = []
    at_s = random.uniform(0.2, 1.5)
    while at_s < seconds:
        fault = Fault(len(plan), random.choice(chosen), at_s, random.uniform(0.1, random.choice((0.6, 2.0, 5.0))))
        plan.append(fault)
        at_s += random.uniform(0.1, 2) * max(gap_s, 2.0 if fault.kind in LENGTHY else 0.0)
    return plan
