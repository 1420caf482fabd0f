"""The observed metrics of batch queries of a Spark Connect session, whose server is in this process's JVM.

Connect hands over the metrics of streaming queries alone. Those of a batch query reach only a listener in the JVM, and
this process can be one through Py4J. Each run of a pipeline removes all listeners from the session's manager
(`GraphExecution.start`). So there is a second manager for the same session, which Spark does not know.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

ARRIVAL_TIMEOUT_MS = 10_000

Metrics = dict[str, dict[str, Any]]


class BatchListeners:
    """`host`: the ordinary session that started the JVM. One object serves a session for its lifetime."""

    def __init__(self, host: Any, session: Any) -> None:
        from pyspark.java_gateway import ensure_callback_server_started

        self._context = host.sparkContext
        cast(Any, ensure_callback_server_started)(self._context._gateway)
        jvm, client = host._jvm, session.client
        service = getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
        key = jvm.org.apache.spark.sql.connect.service.SessionKey(client._user_id or "", client._session_id)
        server_side = getattr(service, "MODULE$").sessionManager().getIsolatedSessionIfPresent(key).get().session()
        self._manager = jvm.org.apache.spark.sql.util.ExecutionListenerManager(
            server_side, server_side.sessionState().conf(), False
        )

    @contextmanager
    def told(self, take: Callable[[Metrics], None], failed: Callable[[str], None]) -> Iterator[None]:
        """Calls `take` with the metrics of each query, in another thread. All calls are made before the block ends, or
        `failed` gets the reason."""
        from py4j.protocol import Py4JError

        self._manager.register(_Listener(take))
        try:
            yield
        finally:
            try:
                self._context._jsc.sc().listenerBus().waitUntilEmpty(ARRIVAL_TIMEOUT_MS)
                self._manager.clear()
            except (Py4JError, OSError) as error:
                failed(str(error))


class _Listener:
    """Spark's QueryExecutionListener."""

    def __init__(self, take: Callable[[Metrics], None]) -> None:
        self._take = take

    def onSuccess(self, name: str, execution: Any, duration_ns: int) -> None:  # noqa: N802
        found: Metrics = {}
        entries = execution.observedMetrics().iterator()
        while entries.hasNext():
            entry = entries.next()
            found[entry._1()] = json.loads(entry._2().json())
        if found:
            self._take(found)

    def onFailure(self, name: str, execution: Any, error: Any) -> None:  # noqa: N802
        pass

    class Java:
        implements = ["org.apache.spark.sql.util.QueryExecutionListener"]
