"""Writes docs/reference/{topic,broker}-settings.md from the key tables; `--check` only compares.

python tools/generate_reference.py [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from penstock.config.broker_keys import LOG_ROWS, NODE_ROWS, PENSTOCK_ROWS
from penstock.config.broker_keys_cluster import CLUSTER_ROWS
from penstock.config.broker_keys_coordination import COORDINATION_ROWS
from penstock.config.broker_keys_security import SECURITY_ROWS
from penstock.config.group import GROUP_KEYS
from penstock.config.keys import LONG_MAX, ConfigKey
from penstock.config.settings import BROKER_KEYS
from penstock.config.topic import TOPIC_KEYS

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"
GENERATED = "<!-- Written by tools/generate_reference.py from the key tables. -->"
EFFECT = """*Effect* says whether Penstock acts on a setting. Those without are Kafka's: they are accepted,
checked, stored and reported, so that files and tools made for Kafka work, and change nothing."""

TOPIC_INTRO = f"""# Topic settings

{GENERATED}

Names, types, limits and defaults are those of Apache Kafka 4.3, with one exception: `flush.messages` is 1,
so a batch is on disk before it is acknowledged. Every topic setting can be changed while the broker runs.
A topic without a value of its own takes the first of its *broker defaults* that has one.
{EFFECT}
"""
GROUP_INTRO = """## Settings of groups

Settings of consumer, share and streams groups; they can be set before the group exists.
"""
BROKER_INTRO = f"""# Broker settings

{GENERATED}

The keys of `server.properties`. Names, types, limits and defaults are those of Apache Kafka 4.3, with these
exceptions: `log.flush.interval.messages` is 1, so a batch is on disk before it is acknowledged; `log.dir` is a
directory that outlives a reboot (below `$XDG_DATA_HOME` where that is set); `process.roles` and
`controller.listener.names` may be left out; `listeners` are read at the start only.
`penstock start` without a file listens on `PLAINTEXT://127.0.0.1:9092` as node 1.
*Change* says whether a setting can be changed while the broker runs: not at all (read-only), for one broker
(per-broker), or for one broker and for all of them (cluster-wide).
`listener.name.<listener>.<setting>` is accepted, stored and reported for every setting, without effect.
{EFFECT}
"""
SECTIONS = (
    ("The node and its connections", NODE_ROWS),
    ("Topics and logs", LOG_ROWS),
    ("Penstock's own", PENSTOCK_ROWS),
    ("Controllers, replication, remote storage", CLUSTER_ROWS),
    ("Group, share and transaction coordinators", COORDINATION_ROWS),
    ("Security", SECURITY_ROWS),
)

Column = tuple[str, Callable[[ConfigKey], str]]


def _default(key: ConfigKey) -> str:
    if key.default is None:
        return ""
    return f"`{key.default}`" if key.default else "empty"


def _range(key: ConfigKey) -> str:
    if key.choices:
        return ", ".join(f"`{choice}`" for choice in key.choices)
    if key.minimum is None:
        return {"nonempty": "not empty", "replicas": "`*` or `partition:broker,...`"}.get(
            key.allowed, "`earliest`, `latest`, `by_duration:...`" if key.allowed else ""
        )
    limits = f"from {key.minimum}" if key.maximum is None else f"{key.minimum} to {key.maximum}"
    return limits if key.besides is None else f"{limits}, or {key.besides}"


def _effect(key: ConfigKey) -> str:
    return "yes" if key.effective else "no"


NAME: Column = ("Name", lambda key: f"`{key.name}`")
TYPE: Column = ("Type", lambda key: key.type.name.lower())
UNIT: Column = ("Unit", lambda key: key.unit)
DEFAULT: Column = ("Default", _default)
RANGE: Column = ("Range", _range)
CHANGE: Column = ("Change", lambda key: key.dynamic.value)
SYNONYMS: Column = ("Broker defaults", lambda key: ", ".join(f"`{name}`" for name in key.synonyms))
EFFECTIVE: Column = ("Effect", _effect)
DOC: Column = ("Meaning", lambda key: key.doc)


def table(keys: Iterable[ConfigKey], columns: tuple[Column, ...]) -> str:
    lines = ["| " + " | ".join(title for title, _ in columns) + " |", "|" + "---|" * len(columns)]
    for key in keys:
        if key.effective or not key.internal:
            cells = (cell(key).replace(str(LONG_MAX), "2^63-1").replace("|", "\\|") for _, cell in columns)
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def topic_page() -> str:
    columns = (NAME, TYPE, UNIT, DEFAULT, RANGE, SYNONYMS, EFFECTIVE, DOC)
    return "\n".join(
        (TOPIC_INTRO, table(TOPIC_KEYS.values(), columns), GROUP_INTRO, table(GROUP_KEYS.values(), columns))
    )


def broker_page() -> str:
    columns = (NAME, TYPE, UNIT, DEFAULT, RANGE, CHANGE, EFFECTIVE, DOC)
    parts = [BROKER_INTRO]
    for title, rows in SECTIONS:
        parts += [f"## {title}\n", table((BROKER_KEYS[row[0]] for row in rows), columns)]
    return "\n".join(parts)


PAGES = {"topic-settings.md": topic_page, "broker-settings.md": broker_page}


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    stale = [name for name, page in PAGES.items() if not _is_current(REFERENCE / name, page())]
    if arguments:
        for name in stale:
            print(f"docs/reference/{name} is not current: run tools/generate_reference.py", file=sys.stderr)
        return 1 if stale else 0
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")
    return 0


def _is_current(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
