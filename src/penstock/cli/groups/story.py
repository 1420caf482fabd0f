"""The history of a group as lines of text, for `penstock groups explain`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from penstock.cli.reach.connection import Target
from penstock.model.errors import ConfigError

MEMBERS_SHOWN = 12
_SECURITY = ("security.", "sasl.", "ssl.")


def fetch_story(target: Target, group_id: str) -> list[dict[str, Any]]:
    from penstock.wire_client.aio.cluster import AsyncCluster
    from penstock.wire_client.aio.group_story import group_story

    if any(name.startswith(_SECURITY) for name in target.settings):
        raise ConfigError("groups explain supports plaintext listeners only: leave out --command-config")

    async def ask() -> list[dict[str, Any]]:
        cluster = AsyncCluster(target.addresses(), "penstock-cli")
        try:
            return await asyncio.wait_for(group_story(cluster, group_id), target.timeout_s)
        finally:
            cluster.close()

    return asyncio.run(ask())


def story_lines(told: Sequence[dict[str, Any]], *, show_all: bool) -> Iterator[str]:
    for event in told:
        at = datetime.fromtimestamp(event["at_ms"] / 1000, UTC)
        time = at.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
        yield f"{time}  {_sentence(event)}"
        yield from _shares(event.get("assigned", []), " " * (len(time) + 4), show_all)


def _sentence(event: dict[str, Any]) -> str:
    member, why, text = event.get("member"), event.get("why"), str(event["text"])
    if event["event"] == "assigned":
        members = event.get("assigned", [])
        sizes = [_size(one) for one in members]
        spread = f"{min(sizes)}" if len(set(sizes)) == 1 else f"{min(sizes)} to {max(sizes)}" if sizes else ""
        shared = f"{_many(sum(sizes), 'partition')} to {_many(len(sizes), 'member')}, {spread} each" if sizes else text
        return f"generation {event['generation']}: {shared}" + (f" ({why})" if why else "")
    subject = member if member is not None else "the group was" if event["event"] == "loaded" else "the group:"
    return f"{subject} {text}" + (f": {why}" if why else "")


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _size(share: dict[str, Any]) -> int:
    return sum(map(len, share["partitions"].values()))


def _shares(assigned: Sequence[dict[str, Any]], indent: str, show_all: bool) -> Iterator[str]:
    shown = assigned if show_all or len(assigned) <= MEMBERS_SHOWN else assigned[: MEMBERS_SHOWN - 1]
    for share in shown:
        held = "; ".join(f"{topic} {_ranges(numbers)}" for topic, numbers in share["partitions"].items())
        yield f"{indent}{share['member']}: {held or 'nothing'}"
    if len(shown) < len(assigned):
        yield f"{indent}and {len(assigned) - len(shown)} more (--all)"


def _ranges(numbers: Sequence[int]) -> str:
    """0-2, 5"""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
