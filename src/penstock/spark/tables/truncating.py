"""TRUNCATE of a table in a pipeline's catalog: a request that the next write carries out.

Spark empties a table before it computes it anew. Readers shall see the old rows until the new ones are there. So the
catalog (`TableCatalog.java`) only notes the request, as a number in the file `_truncate_asked`, which grows with each
one. The version that carries it out has that number as the position of a stream. So a request is carried out once,
whatever is killed and repeated.
"""

from __future__ import annotations

from penstock.tables import Span, Table, TableFailed

ASKED = "_truncate_asked"
STREAM = "truncated"


def asked_for(table: Table) -> dict[str, Span]:
    """The position that carries out the request; empty if there is none. Raises TableFailed."""
    place = table.directory / ASKED
    try:
        asked = int(place.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise TableFailed(f"cannot read {place}: {error}") from error
    known = table.positions.get(STREAM, 0)
    return {STREAM: Span(known, asked)} if asked > known else {}
