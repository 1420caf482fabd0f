"""Java properties files: the text format of server.properties and meta.properties.

Must not know: settings. Comments start with # or !. A key ends at the first unescaped
=, : or blank. A line that ends in an odd number of backslashes continues on the next line.
\\uXXXX, \\t, \\n, \\r and \\f are characters. If a key is repeated, the last value wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.model.errors import ConfigError

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_WRITTEN = {
    "\t": "\\t",
    "\n": "\\n",
    "\r": "\\r",
    "\f": "\\f",
    "\\": "\\\\",
    "=": "\\=",
    ":": "\\:",
    "#": "\\#",
    "!": "\\!",
}


def parse_properties(text: str) -> dict[str, str]:
    properties: dict[str, str] = {}
    for number, line in _logical_lines(text):
        key, value = _split(line)
        properties[_unescape(key, number)] = _unescape(value, number)
    return properties


def format_properties(properties: Mapping[str, str]) -> str:
    """One key=value per line; `parse_properties` returns the same mapping."""
    return "".join(f"{_escape(key, blanks=True)}={_escape(value, blanks=False)}\n" for key, value in properties.items())


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    pending: str | None = None
    start = 0
    natural = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for number, line in enumerate(natural, 1):
        line = line.lstrip(_BLANKS)
        if pending is None:
            if not line or line[0] in "#!":
                continue
            start = number
            pending = ""
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending += line[:-1]
            continue
        if pending or line:
            yield start, pending + line
        pending = None
    if pending:
        yield start, pending


def _split(line: str) -> tuple[str, str]:
    position = 0
    while position < len(line) and line[position] not in "=:" + _BLANKS:
        position += 2 if line[position] == "\\" else 1
    key = line[:position]
    rest = line[position:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return key, rest


def _unescape(text: str, line: int) -> str:
    if "\\" not in text:
        return text
    parts: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\" or position == len(text):
            if character != "\\":
                parts.append(character)
            continue
        escaped = text[position]
        position += 1
        if escaped == "u":
            digits = text[position : position + 4]
            if len(digits) != 4 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
                raise ConfigError(f"line {line}: \\u must be followed by four hexadecimal digits")
            parts.append(chr(int(digits, 16)))
            position += 4
        else:
            parts.append(_ESCAPES.get(escaped, escaped))
    # Java writes characters beyond the basic plane as two escaped surrogates.
    return "".join(parts).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _escape(text: str, *, blanks: bool) -> str:
    parts: list[str] = []
    for position, character in enumerate(text):
        if character == " " and (blanks or position == 0):
            parts.append("\\ ")
        elif character in _WRITTEN:
            parts.append(_WRITTEN[character])
        elif " " <= character <= "~":
            parts.append(character)
        else:
            encoded = character.encode("utf-16-be", "surrogatepass").hex()
            parts.extend(f"\\u{encoded[i : i + 4]}" for i in range(0, len(encoded), 4))
    return "".join(parts)
