from __future__ import annotations

import pytest
from written_checkpoints import CheckpointWriter

from penstock.model.topic_partition import TopicPartition
from penstock.spark.pipeline.checkpoints import FlowCheckpoint, flow_checkpoints
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.source.offsets import UnreadableOffset

TABLE = "spark_catalog/default/events"


def test_flows_into_tables_and_sinks(project: PipelineProject, checkpoint: CheckpointWriter) -> None:
    checkpoint(TABLE, "events", [{"0": 5}])
    checkpoint("output_topic", "results", [], reads=project.root / "warehouse/events")
    assert project.checkpoints is not None
    results, events = flow_checkpoints(project.checkpoints)
    assert (results.flow, results.target, results.is_table) == ("results", ("output_topic",), False)
    assert (events.flow, events.target, events.is_table) == ("events", ("spark_catalog", "default", "events"), True)
    assert results.reads(project.root / "warehouse/events")
    assert not results.reads(project.root / "warehouse/eve")
    assert not events.reads(project.root / "warehouse/events")


def positions(checkpoint: FlowCheckpoint) -> dict[TopicPartition, int]:
    return {tp: at for offset in checkpoint.source_offsets() for tp, at in offset.positions.items()}


def test_a_batch_counts_when_it_is_done(project: PipelineProject, checkpoint: CheckpointWriter) -> None:
    checkpoint(TABLE, "events", [{"0": 5, "1": 2}, {"0": 9, "1": 2}, {"0": 12, "1": 4}], committed=2)
    assert project.checkpoints is not None
    (events,) = flow_checkpoints(project.checkpoints)
    assert events.last_batch() == 1
    assert positions(events) == {TopicPartition("clicks", 0): 9, TopicPartition("clicks", 1): 2}
    assert [offset.group for offset in events.source_offsets()] == ["shop-events"]


def test_a_full_refresh_counts_anew(project: PipelineProject, checkpoint: CheckpointWriter) -> None:
    checkpoint(TABLE, "events", [{"0": 5}, {"0": 9}])
    checkpoint(TABLE, "events", [{"0": 3}], number=10)
    assert project.checkpoints is not None
    (events,) = flow_checkpoints(project.checkpoints)
    assert positions(events) == {TopicPartition("clicks", 0): 3}


def test_nothing_done_nothing_known(project: PipelineProject, checkpoint: CheckpointWriter) -> None:
    assert project.checkpoints is not None
    assert flow_checkpoints(project.checkpoints) == []
    checkpoint(TABLE, "events", [{"0": 5}], committed=0)
    (events,) = flow_checkpoints(project.checkpoints)
    assert events.last_batch() is None
    assert positions(events) == {}


def test_offsets_of_another_version_are_named(project: PipelineProject, checkpoint: CheckpointWriter) -> None:
    directory = checkpoint(TABLE, "events", [{"0": 5}])
    (directory / "offsets" / "0").write_text('v1\n{}\n{"version": 9, "topics": {}}')
    assert project.checkpoints is not None
    (events,) = flow_checkpoints(project.checkpoints)
    with pytest.raises(UnreadableOffset, match="version 9"):
        positions(events)
