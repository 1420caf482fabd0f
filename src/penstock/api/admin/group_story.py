"""The history of a group as a setting: `penstock.story` of a group resource, read-only, JSON.

No Kafka API has room for it, and a new API could confuse clients. It is returned only if requested by name, so clients
that list the settings of a group do not see it. Shape: docs/groups.md.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from penstock.config.describe import ConfigEntry, Source
from penstock.config.keys import ConfigType
from penstock.core.group.story import StoryEvent

STORY: Final = "penstock.story"
MAX_BYTES: Final = 4 << 20
MAX_BYTES_BEFORE_V4: Final = 32_767
"""The length of a string was an int16."""

_DOC: Final = "The events of the group since its coordinator started, oldest first, as JSON."


def story_entry(events: Sequence[StoryEvent], version: int) -> ConfigEntry:
    """`version` of DescribeConfigs. If there is not enough room, the oldest events are left out."""
    room = (MAX_BYTES if version >= 4 else MAX_BYTES_BEFORE_V4) - len("[]")
    told: list[str] = []
    for event in reversed(events):
        text = json.dumps(_object(event), separators=(",", ":"))  # ASCII: characters are bytes
        room -= len(text) + len(",")
        if room < 0:
            break
        told.append(text)
    value = f"[{','.join(reversed(told))}]"
    return ConfigEntry(STORY, value, True, Source.GROUP_CONFIG, False, (), ConfigType.STRING, _DOC)


def _object(event: StoryEvent) -> dict[str, object]:
    told: dict[str, object] = {
        "at_ms": event.at_ms,
        "generation": event.generation,
        "event": event.what.name.lower(),
        "text": event.what.value,
    }
    if event.member is not None:
        told["member"] = event.member
    if event.why:
        told["why"] = event.why
    if event.assigned:
        told["assigned"] = [
            {"member": member, "partitions": {topic: list(partitions) for topic, partitions in held}}
            for (member, _), held in zip(event.assigned, event.holdings, strict=True)
        ]
    return told
