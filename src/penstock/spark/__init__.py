"""Topics in Spark: the format "penstock" for reading and writing, and a session with suitable settings.

    from penstock.spark import session

    spark = session()
    spark.read.format("penstock").option("subscribe", "clicks").load().show()

In a plain `SparkSession` the format works, too: import this module, before or after the session is created.

Importing this module imports neither Spark nor Arrow, because every Python worker of Spark imports it.
"""

from __future__ import annotations

from penstock.spark.session.lookup import use_this_python
from penstock.spark.session.session import config_for, session  # now, or the module would take the function's name
from penstock.spark.topic_views import register_topics

__all__ = ["config_for", "register_topics", "session"]

use_this_python()
