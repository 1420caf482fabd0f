"""Each acknowledged record is in the tables once, while whoever writes them is killed, in mid-commit and at random.

The short form is a part of `make test`. `make table-crashes CRASHES=100` makes so many kills of whoever writes a
pipeline's tables, and so many of whoever follows topics.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from table_follow_run import FollowRun
from table_input import CLICKS, KEYED, newest
from table_kills import Kills, Victim, is_named
from table_pipeline_run import PipelineRun

from penstock.sdk import BlockingAdmin
from support.processes.broker import BrokerProcess

CRASHES = os.environ.get("PENSTOCK_TABLE_CRASHES")
SEED = int(os.environ.get("PENSTOCK_TABLE_SEED", 1))
SHORT_OF_PIPELINES, SHORT_OF_TOPICS = 1, 5
ALL_VICTIMS = 3
"""So many kills of a pipeline have all of its victims."""


@pytest.fixture
def crashed(tmp_path: Path) -> BrokerProcess:
    """A broker of its own, because it is killed."""
    return BrokerProcess(tmp_path / "broker")


def test_followed_topics(tmp_path: Path, crashed: BrokerProcess) -> None:
    wanted = int(CRASHES or SHORT_OF_TOPICS)
    kills = Kills(random.Random(SEED))
    begun = time.monotonic()
    (tmp_path / "broker").mkdir()
    with crashed as broker:
        with BlockingAdmin(broker.bootstrap_servers) as admin:
            admin.create_topic(CLICKS, 2)
            admin.create_topic(KEYED, 2)
        FollowRun(tmp_path, broker, kills, SEED).run(wanted)
    print(f"\nfollowed topics: {wanted} kills in {time.monotonic() - begun:.0f} s, seed {SEED}\n{kills.table()}")
    print("each acknowledged record is in the tables once")
    assert kills.victims() == {Victim.FOLLOWER, Victim.COMPACTION, Victim.BROKER} or wanted < SHORT_OF_TOPICS


def test_tables_of_a_pipeline(tmp_path: Path, crashed: BrokerProcess) -> None:
    wanted = int(CRASHES or SHORT_OF_PIPELINES)
    kills = Kills(random.Random(SEED))
    begun = time.monotonic()
    (tmp_path / "broker").mkdir()
    with crashed as broker:
        with BlockingAdmin(broker.bootstrap_servers) as admin:
            admin.create_topic(CLICKS, 2)
        run = PipelineRun(tmp_path, broker, kills, SEED)
        run.run(wanted)
    seconds = time.monotonic() - begun
    print(f"\npipeline: {wanted} kills in {seconds:.0f} s, {run.starts} starts of serve, seed {SEED}\n{kills.table()}")
    print("each acknowledged record is in the tables once")
    assert kills.victims() >= {Victim.DRIVER, Victim.WORKER, Victim.BROKER} or wanted < ALL_VICTIMS


def test_the_verdict_knows_what_is_left() -> None:
    assert newest(3) == {"key 1": "1", "key 2": "2"}
    assert "key 7" not in newest(8)
    assert newest(48)["key 7"] == "47"


def test_files_of_a_commit_that_was_killed_are_found(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / f"{0:020d}.json").write_text('{"add":{"path":"part-1.parquet"}}')
    kills = Kills(random.Random(1))
    for name in ("part-1.parquet", "part-2.parquet"):
        (tmp_path / name).touch()
    assert is_named(tmp_path / "part-1.parquet")
    kills.note_files({tmp_path / "part-1.parquet"})
    assert kills.left_files == 0
    kills.note_files({tmp_path / "part-1.parquet", tmp_path / "part-2.parquet"})
    assert kills.left_files == 1
