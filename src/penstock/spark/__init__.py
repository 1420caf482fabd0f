"""Topics as tables of Spark: `spark.read.format("penstock")` and its kin, and a session that suits them.

    from penstock.spark import session

    spark = session()
    spark.read.format("penstock").option("subscribe", "clicks").load().show()

Importing this imports neither Spark nor Arrow: every Python worker of Spark passes here.
"""

from __future__ import annotations

from penstock.spark.session import config_for, session  # now, or the module would take the function's name

__all__ = ["config_for", "session"]
