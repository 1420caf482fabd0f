"""Parses commands of the line protocol. Must not know: the log.

Verbs may be in any case, and words are separated by blanks. The message of PUBLISH is everything after the topic and
one blank, unchanged. A bad line raises `BadCommand`, whose text tells the caller what to write.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

DEFAULT_MAX = 100
MAX_RECORDS = 10_000
EARLIEST, LATEST = "earliest", "latest"

HELP = """\
PUBLISH <topic>[/partition] <message>           write one record
PUBLISHKEY <topic>[/partition] <key> <message>  write one record with a key; equal keys go to one partition
CONSUME <topic> [partition] [offset] [max]      read records; * means all partitions, max is 100 by default
FOLLOW <topic> [partition] [offset]             read new records until you send a line
COMMIT <group> <topic> <partition> <offset>     commit the offset of the next record to read
OFFSET <group> <topic> <partition>              show the committed offset
TOPICS                                          list topics and their partitions
CREATE <topic> [partitions]                     create a topic
HELP                                            show this text
QUIT                                            close the connection
An offset is a number, earliest, latest, or @ and a time in milliseconds since 1970."""

_NUMBER = re.compile(r"[0-9]{1,19}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


# The lines that a browser sends before the body of a request, which a web page controls.
_HTTP = re.compile(
    rb"[A-Z]{3,20} \S+ HTTP/[0-9](\.[0-9])?|(host|origin|user-agent|content-type|content-length):.*",
    re.IGNORECASE | re.DOTALL,
)


class BadCommand(Exception):
    pass


class SpokenHttp(Exception):
    """A line of HTTP. The next lines may come from a web page and must not be run as commands."""


class AtTime(NamedTuple):
    timestamp_ms: int


Where: TypeAlias = int | str | AtTime
"""An offset, EARLIEST or LATEST, or a time."""


class Publish(NamedTuple):
    topic: str
    partition: int | None
    key: bytes | None
    value: bytes


class Consume(NamedTuple):
    topic: str
    partition: int | None
    """None means all partitions."""
    where: Where
    max_records: int


class Follow(NamedTuple):
    topic: str
    partition: int | None
    where: Where


class Commit(NamedTuple):
    group: str
    topic: str
    partition: int
    offset: int


class Offset(NamedTuple):
    group: str
    topic: str
    partition: int


class Create(NamedTuple):
    topic: str
    partitions: int | None


class Topics(NamedTuple):
    pass


class Help(NamedTuple):
    pass


class Quit(NamedTuple):
    pass


class Nothing(NamedTuple):
    """An empty line or STOP, which ends a FOLLOW."""


Command: TypeAlias = Publish | Consume | Follow | Commit | Offset | Create | Topics | Help | Quit | Nothing


def parse(line: bytes) -> Command:
    """Parses a line without its line feed. Raises BadCommand or SpokenHttp."""
    line = line.removesuffix(b"\r")
    verb, _, rest = line.lstrip(b" ").partition(b" ")
    name = verb.decode("ascii", "replace").upper()
    if name in ("", "STOP"):
        return Nothing()
    if name in ("PUBLISH", "PUBLISHKEY"):
        return _publish(rest, keyed=name == "PUBLISHKEY")
    known = _VERBS.get(name)
    if known is None and _HTTP.fullmatch(line):
        raise SpokenHttp("this is the line protocol, not HTTP; goodbye")
    if known is None:
        shown = name[:40] if name.isprintable() and name.isascii() else "that is not text"
        raise BadCommand(f"unknown command {shown}; HELP lists all commands")
    least, most, usage, build = known
    words = _text(rest).split()
    if not least <= len(words) <= most:
        raise BadCommand(f"usage: {usage}")
    return build(words)


def _publish(rest: bytes, *, keyed: bool) -> Publish:
    usage = "PUBLISHKEY <topic>[/partition] <key> <message>" if keyed else "PUBLISH <topic>[/partition] <message>"
    target, blank, value = rest.lstrip(b" ").partition(b" ")
    key: bytes | None = None
    if keyed:
        key, blank, value = value.partition(b" ")
        if not key:
            raise BadCommand(f"usage: {usage}")
    if not target or not blank:
        raise BadCommand(f"usage: {usage}")
    topic, slash, partition = _text(target).partition("/")
    return Publish(_topic(topic), _number(partition, "partition") if slash else None, key, value)


def _consume(words: list[str]) -> Consume:
    partition = _partition(words[1]) if len(words) > 1 else None
    where = _where(words[2]) if len(words) > 2 else EARLIEST
    most = _number(words[3], "max") if len(words) > 3 else DEFAULT_MAX
    if not 1 <= most <= MAX_RECORDS:
        raise BadCommand(f"max must be from 1 to {MAX_RECORDS}")
    return Consume(_topic(words[0]), partition, _single(where, partition), most)


def _follow(words: list[str]) -> Follow:
    partition = _partition(words[1]) if len(words) > 1 else None
    where = _where(words[2]) if len(words) > 2 else LATEST
    return Follow(_topic(words[0]), partition, _single(where, partition))


def _single(where: Where, partition: int | None) -> Where:
    if partition is None and isinstance(where, int):
        raise BadCommand("an offset needs a partition: give one, or write earliest, latest or @time")
    return where


def _commit(words: list[str]) -> Commit:
    return Commit(words[0], _topic(words[1]), _number(words[2], "partition"), _number(words[3], "offset"))


def _offset(words: list[str]) -> Offset:
    return Offset(words[0], _topic(words[1]), _number(words[2], "partition"))


def _create(words: list[str]) -> Create:
    return Create(_topic(words[0]), _number(words[1], "partitions") if len(words) > 1 else None)


_VERBS: dict[str, tuple[int, int, str, Callable[[list[str]], Command]]] = {
    "CONSUME": (1, 4, "CONSUME <topic> [partition] [offset] [max]", _consume),
    "FOLLOW": (1, 3, "FOLLOW <topic> [partition] [offset]", _follow),
    "COMMIT": (4, 4, "COMMIT <group> <topic> <partition> <offset>", _commit),
    "OFFSET": (3, 3, "OFFSET <group> <topic> <partition>", _offset),
    "CREATE": (1, 2, "CREATE <topic> [partitions]", _create),
    "TOPICS": (0, 0, "TOPICS", lambda _: Topics()),
    "HELP": (0, 0, "HELP", lambda _: Help()),
    "QUIT": (0, 0, "QUIT", lambda _: Quit()),
}


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadCommand("only messages and keys may be other than UTF-8") from error


def _topic(text: str) -> str:
    if not _TOPIC.fullmatch(text) or text in (".", ".."):
        raise BadCommand("a topic's name must have 1 to 249 letters, digits, dots, underscores or hyphens")
    return text


def _is_number(text: str, limit: int) -> bool:
    return _NUMBER.fullmatch(text) is not None and int(text) < limit


def _number(text: str, what: str) -> int:
    if not _is_number(text, 1 << 31 if what.startswith("partition") else 1 << 63):
        raise BadCommand(f"{what} must be a number, not '{_shown(text)}'")
    return int(text)


def _partition(text: str) -> int | None:
    return None if text == "*" else _number(text, "partition")


def _where(text: str) -> Where:
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    if text.startswith("@"):
        return AtTime(_number(text[1:], "a time"))
    if not _is_number(text, 1 << 63):
        raise BadCommand(f"'{_shown(text)}' is not an offset: write a number, earliest, latest, or @ and milliseconds")
    return int(text)


def _shown(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text[:40])
