"""A hint for sessions whose Python processes talk to Spark through TCP, which is Spark's default.

The process that plans a query sees in its environment how Spark reaches it. It says so once in a session: the first
process to do that leaves a file in the session's scratch directory. Must not know: queries, the cluster.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

logger = logging.getLogger(__name__)

BY_TCP, BY_SOCKET_FILE = "PYTHON_WORKER_FACTORY_PORT", "PYTHON_WORKER_FACTORY_SOCK_PATH"
SCRATCH = "SPARK_LOCAL_DIRS"
SAID = "penstock-said-tcp"
SETTING = "spark.python.unix.domain.socket.enabled"


def hint_at_sockets() -> None:
    if BY_TCP not in os.environ or BY_SOCKET_FILE in os.environ or not _is_first():
        return
    logger.warning(
        "this session reaches Python through TCP, where each small batch waits several times for 40 ms: set %s=true "
        "when the session is created, or create it with penstock.spark.session()",
        SETTING,
    )


def _is_first() -> bool:
    directory = os.environ.get(SCRATCH, "").partition(",")[0]
    if directory:
        try:
            (Path(directory) / SAID).touch(exist_ok=False)
        except FileExistsError:
            return False
        except OSError as error:
            logger.debug("each query will repeat the hint: %s", error)
    return True
