"""Stopping a node at an awkward moment."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.node.timers import NodeTimers


async def nothing() -> None:
    return None


@pytest.mark.timeout(20)
async def test_a_job_that_has_just_ended_does_not_hold_up_the_stop() -> None:
    job = asyncio.ensure_future(nothing())
    cleaning = SimpleNamespace(stop=lambda: None)
    timers = NodeTimers(asyncio.get_running_loop(), *(cast("Any", part) for part in (None, cleaning, None)))
    jobs = timers._jobs
    jobs[job] = None
    job.add_done_callback(jobs.pop)
    await asyncio.sleep(0)  # the job is done, and its callback is due in the next turn of the loop
    assert job.done()
    assert jobs
    await timers.stop()
    assert not jobs
