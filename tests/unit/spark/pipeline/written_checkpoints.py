"""Checkpoints as Spark writes them, written without Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path


class CheckpointWriter:
    """Into `root`, the directory `_checkpoints`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __call__(
        self,
        target: str,
        flow: str,
        batches: list[Mapping[str, int]],
        *,
        number: int = 0,
        committed: int | None = None,
        reads: Path | None = None,
        topic_id: str = "A" * 22,
    ) -> Path:
        """`batches`: offsets by partition of the topic clicks after each; the first `committed` of them are done, or
        all. `reads`: a table that a source has taken a file of."""
        directory = self._root / target / flow / str(number)
        for name in ("offsets", "commits", "sources/0"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        (directory / "metadata").write_text('{"id":"3af66410-3e2f-46e8-a75f-375d4b6bdde6"}')
        for batch, partitions in enumerate(batches):
            topics = {"clicks": {"id": topic_id, "partitions": partitions}}
            offset = json.dumps({"version": 1, "group": f"shop-{flow}", "topics": topics})
            (directory / "offsets" / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{offset}')
            if committed is None or batch < committed:
                (directory / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        if reads is not None:
            taken = json.dumps({"path": (reads / "part-0.parquet").resolve().as_uri(), "timestamp": 1, "batchId": 0})
            (directory / "sources" / "0" / "0").write_text(f"v1\n{taken}")
        return directory
