"""Stopping a node at an awkward moment."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from penstock.node.node import Node


async def nothing() -> None:
    return None


@pytest.mark.timeout(20)
async def test_a_job_that_has_just_ended_does_not_hold_up_the_stop() -> None:
    job = asyncio.ensure_future(nothing())
    jobs = {job: None}
    job.add_done_callback(jobs.pop)
    await asyncio.sleep(0)  # the job is done, and its callback is due in the next turn of the loop
    assert job.done()
    assert jobs
    node = SimpleNamespace(_jobs=jobs, _timers={}, cleaning=SimpleNamespace(stop=lambda: None))
    await Node._stop_timers(cast("Node", node))
    assert not jobs
