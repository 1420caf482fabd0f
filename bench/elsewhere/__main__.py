"""`python -m bench.elsewhere` (`make tables-elsewhere`): do others read the rows that were written?

A table goes through appends, merges by key, compaction, a change of its schema, expiry and replacement. After each,
DuckDB, Polars and an older Spark with Delta's connector read it. The exit code is 0 if all have read the same rows as
Penstock, else 1; 2 if a reader cannot be had (no Maven, no PyPI, no Java).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.elsewhere.readers import OLDER, OlderSpark, Reader, ReaderUnavailable, Rows, by_penstock, present
from bench.elsewhere.stages import Story
from bench.maven import JarsUnavailable

SHOWN = 1


def difference(wanted: Rows, found: Rows) -> str:
    """Empty if they are the same rows, in any order."""
    more, less = Counter(found) - Counter(wanted), Counter(wanted) - Counter(found)
    parts = [
        f"{rows.total()} {word}, such as {list(rows.elements())[:SHOWN]}"
        for word, rows in (("rows missing", less), ("rows too many", more))
        if rows
    ]
    return "; ".join(parts)


def table_of(names: Sequence[str], wanted: Sequence[Rows], cells: Mapping[str, Sequence[str]]) -> list[str]:
    width = max(map(len, (*names, "after")))
    lines = [f"{'after':<{width}}  {'rows':>5}  {'  '.join(cells)}"]
    for number, name in enumerate(names):
        verdicts = [("differs" if column[number] else "same").ljust(len(who)) for who, column in cells.items()]
        lines.append(f"{name:<{width}}  {len(wanted[number]):>5}  {'  '.join(verdicts)}")
    return lines


def compared(
    readers: Mapping[str, Reader], directories: Sequence[Path], wanted: Sequence[Rows]
) -> dict[str, list[str]]:
    """How each one's rows differ, by reader; empty text where they do not."""
    found: dict[str, list[str]] = {}
    for name, read in readers.items():
        begun = time.monotonic()
        print(f"{name} reads ...", flush=True)
        found[name] = [difference(*pair) for pair in zip(wanted, read(directories), strict=True)]
        print(f"{name}: {len(directories)} tables in {time.monotonic() - begun:.1f} s", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.elsewhere", description=__doc__)
    parser.parse_args()
    try:
        older = OlderSpark()
    except (ReaderUnavailable, JarsUnavailable) as error:
        print(f"tables-elsewhere needs Java 17, Maven and PyPI: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="penstock-elsewhere-") as place:
        print("making the table ...", flush=True)
        stages = list(Story(Path(place)).stages())
        names, directories = [name for name, _ in stages], [directory for _, directory in stages]
        wanted = [by_penstock(directory) for directory in directories]
        try:
            cells = compared({**present(), f"Spark {OLDER} with Delta": older}, directories, wanted)
        except ReaderUnavailable as error:
            print(error, file=sys.stderr)
            return 1
    print(f"\nSpark {older.version}. The rows are those that Penstock reads:\n")
    print("\n".join(table_of(names, wanted, cells)))
    wrong = [
        f"{who}, {name}: {said}"
        for who, column in cells.items()
        for name, said in zip(names, column, strict=True)
        if said
    ]
    print("\n" + ("\n".join(wrong) if wrong else "All have read the same rows: passed."))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
